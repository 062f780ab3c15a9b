"""Pods of the gate's own namespace: those that ship, and each with more of its host than it needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from k8s_tree import K8S, built, documents

Object = dict[str, Any]


def _pods() -> dict[str, Object]:
    found = {}
    files = [
        *sorted((K8S / "jobs").glob("*.yaml")),
        *sorted((K8S / "jobs/standalone").glob("job*.yaml")),
    ]
    for file in files:
        for made in documents(file):
            if made["kind"] == "Job":
                found[file.stem] = {"spec": made["spec"]["template"]["spec"]}
    for made in built("."):
        if made["kind"] == "Deployment":
            found[made["metadata"]["name"]] = {"spec": made["spec"]["template"]["spec"]}
    return found


SHIPPED = _pods()
_TEST, _ALONE = SHIPPED["node-acceptance"], SHIPPED["job"]
_CONTROLLER = SHIPPED["nodeproof-controller"]


def _but(pod: Object, how: Callable[[Object], object]) -> Object:
    made = copy.deepcopy(pod)
    how(made["spec"])
    return made


def _first(spec: Object) -> Object:
    container: Object = spec["containers"][0]
    return container


def _security(spec: Object, **more: object) -> None:
    _first(spec)["securityContext"].update(more)


def _with_a_disk(spec: Object) -> None:
    spec["volumes"].append({"name": "d", "persistentVolumeClaim": {"claimName": "d"}})
    _first(spec).update(volumeDevices=[{"name": "d", "devicePath": "/dev/x"}])


# As a server takes them: what contradicts itself is refused before anybody asks the policies.
_PRIVILEGED = {"privileged": True, "allowPrivilegeEscalation": True}
_SECRET = {"name": "s", "secret": {"secretName": "s"}}
_TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
_ETC = {"name": "e", "hostPath": {"path": "/etc"}}
_SYS = {"name": "host-sys", "mountPath": "/host/sys-to-write"}

SHAPES = [
    ("host network", _but(_TEST, lambda s: s.update(hostNetwork=True)), "no namespace"),
    ("host processes", _but(_TEST, lambda s: s.update(hostPID=True)), "no namespace"),
    ("host messages", _but(_TEST, lambda s: s.update(hostIPC=True)), "no namespace"),
    ("a node of its choice", _but(_TEST, lambda s: s.update(nodeName="control-plane-1")), "scheduler"),
    ("a container added later", _but(_TEST, lambda s: s.update(ephemeralContainers=[{"name": "x"}])), "while it runs"),
    ("privileged", _but(_TEST, lambda s: _security(s, **_PRIVILEGED)), "no privilege"),
    ("no word of privilege", _but(_TEST, lambda s: _first(s).pop("securityContext")), "no privilege"),
    ("escalation", _but(_TEST, lambda s: _security(s, allowPrivilegeEscalation=True)), "no privilege"),
    ("another capability", _but(_TEST, lambda s: _security(s, capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]})), "no privilege"),
    ("capabilities kept", _but(_TEST, lambda s: _security(s, capabilities={"add": ["SYSLOG"]})), "no privilege"),
    ("an unmasked /proc", _but(_TEST, lambda s: (s.update(hostUsers=False), _security(s, procMount="Unmasked"))), "no privilege"),
    ("in an init container", _but(_ALONE, lambda s: s["initContainers"][0]["securityContext"].update(_PRIVILEGED)), "no privilege"),
    ("an image by a tag", _but(_TEST, lambda s: _first(s).update(image="nodeproof:1")), "digest"),
    ("another path of the host", _but(_TEST, lambda s: s["volumes"].append(_ETC)), "nothing else of it"),
    ("a path of the host to write", _but(_TEST, lambda s: _first(s)["volumeMounts"].append(_SYS)), "never written"),
    ("a disk", _but(_TEST, _with_a_disk), "never written"),
    ("a token", _but(_TEST, lambda s: s.update(automountServiceAccountToken=True)), "no token"),
    ("a token of its own", _but(_TEST, lambda s: s["volumes"].append(_TOKEN)), "no token"),
    ("a secret", _but(_TEST, lambda s: s["volumes"].append(_SECRET)), "no token"),
    ("the controller's account", _but(_TEST, lambda s: s.update(serviceAccountName="nodeproof-controller")), "no token"),
    ("a controller that sees its host", _but(_CONTROLLER, lambda s: s["volumes"].append({"name": "p", "hostPath": {"path": "/proc"}})), "no token"),
    ("the suites with the token", _but(_ALONE, lambda s: s["initContainers"][0]["volumeMounts"].append({"name": "token", "mountPath": "/t"})), "sees nothing of the host"),
]  # fmt: skip
