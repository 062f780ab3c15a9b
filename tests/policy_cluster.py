"""A real cluster with our policies in it: who asks for what, and what the server says to it.

Everything is asked as a dry run, so that each case finds its node as it was. Whoever asks has the
rights that he has in a cluster: the gate those of k8s/, a kubelet those of its node.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonpatch
from k8s_cases import ALL, ALONE, GATE, GPUS, KUBELET, MAIN, PROVED, READINESS, STATUS, pod
from k8s_shapes import SHAPES
from k8s_tree import built

from tests import real_cluster
from tests.apiserver.store import NODES
from tests.real_store import Answer, Who

Object = dict[str, Any]
Change = Callable[[Object], object]

HOME = "nodeproof-system"
TESTS_GPUS = "labelled"  # a namespace whose pods may tolerate the gate's taints
AGENT = "system:serviceaccount:kube-system:agent"
MASTERS = ("system:masters",)
_JSON_PATCH = "application/json-patch+json"
_ACTIVE_S = 60.0
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS = f"{_POLICIES.removesuffix('ies')}ybindings"

# What agents of other projects may do to nodes.
_AGENTS: list[Object] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "agents"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch"]}
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "agents"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "agents",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
            for name in (AGENT, READINESS)
        ],
    },
]


class PolicyCluster:
    """A server, nodes in every state that the cases begin with, and one set of policies at a time."""

    def __init__(self, server: real_cluster.RealServer) -> None:
        self.server, self.store = server, server.store
        self._installed = ""

    @property
    def knows_policies(self) -> bool:
        return self.store.answer("GET", _POLICIES).admitted

    # --- what is there ----------------------------------------------------------------------

    def furnish(self, states: Iterable[Object]) -> None:
        """Make the nodes, while nobody refuses it: some of these states no policy would let come."""
        labels = {"nodeproof.dev/may-tolerate": "true"}
        space = {"apiVersion": "v1", "kind": "Namespace"}
        self.store.apply([{**space, "metadata": {"name": TESTS_GPUS, "labels": labels}}, *_AGENTS])
        for folder in (".", "jobs/standalone"):
            self.store.apply(o for o in built(folder) if "ValidatingAdmission" not in o["kind"])
        for state in {name_of(s): s for s in states}.values():
            self.store.ask("POST", NODES, _named(state))

    def install(self, folder: str) -> None:
        """Have the policies of this folder in force, and no others."""
        if folder == self._installed:
            return
        wanted = [o for o in built(folder) if "ValidatingAdmission" in o["kind"]]
        names = {o["metadata"]["name"] for o in wanted}
        for path in (_BINDINGS, _POLICIES):
            for there in self.store.get(path)["items"]:
                name = there["metadata"]["name"]
                if name.startswith("nodeproof-") and name not in names:
                    self.store.ask("DELETE", f"{path}/{name}")
        self.store.apply(wanted)
        self._installed = folder
        writer = ALONE if folder == "jobs/standalone" else GATE
        refuses = folder != "overlays/observe"
        for name in sorted(names):
            self.until(lambda name=name: self._active(name, writer, refuses), f"{name} in force")

    def until(self, what: Callable[[], bool], about: str) -> None:
        """Wait for what the server comes to by itself."""
        ends = time.monotonic() + _ACTIVE_S
        while not what():
            assert time.monotonic() < ends, f"still not so after {_ACTIVE_S} s: {about}"
            time.sleep(0.05)

    def _active(self, policy: str, writer: str, refuses: bool) -> bool:
        """Whether this policy does what it has to: it speaks where it must, and only there."""
        answer = self._probe(policy, writer)
        spoken = answer.message if refuses else " ".join(answer.warnings)
        own = {name: (s, how) for name, w, s, how, _ in [*STATUS, *MAIN] if w == GATE}
        says, lifts = own["the gate accepts"], own["lifts"]
        works = (self.by(writer, *says, sub="status"), self.by(writer, *lifts))
        return (
            answer.admitted != refuses
            and f"'{policy}'" in spoken
            and all(w.admitted and not w.warnings for w in works)
        )

    def _probe(self, policy: str, writer: str) -> Answer:
        cases = {name: (state, how) for name, _, state, how, _ in [*STATUS, *MAIN]}
        match policy.removeprefix("nodeproof-"):
            case "own-condition":
                return self.by(writer, *cases["flips Ready"], sub="status")
            case "own-taints":
                return self.by(writer, *cases["cordons"])
            case "taint-lock":
                return self.by("admin", *cases["an administrator lifts"])
            case "verdict-writers":
                return self.by("admin", *cases["an administrator forges one"], sub="status")
            case "own-pods":
                shape = next(s for n, s, _ in SHAPES if n == "host network")
                return self.pod(shape, HOME)
            case "workloads":
                return self.pod(pod(ALL, limits=GPUS), "default")
            case "standalone-own-node":
                return self.node(Who(name=writer), *cases["cordons"])
        raise AssertionError(f"no probe for {policy}")

    # --- who asks ---------------------------------------------------------------------------

    def who(self, name: str, node: str) -> Who:
        """One of the cases' identities, as the server would know it."""
        if name == KUBELET:
            return Who(name=f"system:node:{node}", groups=("system:nodes",))
        if name == ALONE:
            return Who(name=name, node=node)
        return Who(name=name, groups=() if name.startswith("system:") else MASTERS)

    def by(self, name: str, state: Object, how: Change, sub: str = "") -> Answer:
        """Change the node that is in this state, as one of the cases' identities."""
        return self.node(self.who(name, name_of(state)), state, how, sub)

    def node(self, who: Who, state: Object, how: Change, sub: str = "") -> Answer:
        """Change the node that is in this state."""
        at = f"{NODES}/{name_of(state)}"
        before = self.store.get(at)
        after = copy.deepcopy(before)
        how(after)
        patch = jsonpatch.make_patch(before, after).patch
        path = f"{at}/{sub}" if sub else at
        return self.patch(who, path, patch)

    def patch(self, who: Who, path: str, patch: list[Object]) -> Answer:
        return self.store.answer("PATCH", f"{path}?dryRun=All", patch, who=who, content=_JSON_PATCH)

    def pod(self, wanted: Object, space: str) -> Answer:
        """Make a pod, with every right to."""
        who = Who(name="somebody", groups=MASTERS)
        path = f"/api/v1/namespaces/{space}/pods?dryRun=All"
        return self.store.answer("POST", path, whole(wanted), who=who)

    def audited(self) -> list[Object]:
        """What the audit log has of requests that ended."""
        lines = self.server.audited.read_text().splitlines()
        return [json.loads(line) for line in lines]


def name_of(state: Object) -> str:
    """The name of the node in this state."""
    return f"n-{hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:12]}"


def _named(state: Object) -> Object:
    made = copy.deepcopy(state)
    made["metadata"]["name"] = name_of(state)
    return made


def whole(wanted: Object) -> Object:
    """A pod with everything that a server insists on, and that the cases leave out."""
    # As whoever applies the standalone form does.
    made: Object = json.loads(json.dumps(wanted).replace("NODE_NAME", "n1"))
    made.setdefault("metadata", {}).setdefault("name", "p")
    spec = made["spec"]
    spec.setdefault("serviceAccountName", "default")
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        container.setdefault("image", "x")
    for claim in spec.get("resourceClaims", []):
        if not claim.keys() & {"resourceClaimName", "resourceClaimTemplateName"}:
            claim["resourceClaimName"] = "c"
    return made


def states() -> Iterator[Object]:
    yield PROVED
    for _, _, state, _, _ in [*STATUS, *MAIN]:
        yield state


@contextmanager
def running(folder: Path) -> Iterator[PolicyCluster]:
    """A server of its own, since policies would refuse what other tests do to bring things about."""
    with real_cluster.running(folder) as server:
        yield PolicyCluster(server)
