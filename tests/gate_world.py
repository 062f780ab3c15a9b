"""One node, its gate and everybody else who touches it, without HTTP: what a walk walks through.

The world keeps the truth that the gate can't see, which test really proved which boot of which
node, and holds each write of the gate against it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

from gate_cluster import (
    DIGEST,
    GPU,
    JOBS,
    MANIFEST,
    NAMES,
    PENDING,
    PODS,
    SETTINGS,
    SPEC,
    Kubelet,
    condition,
    ended,
    put_node,
    results_of,
    told,
)
from results_samples import accept, reject, undecided

from nodeproof.gate import dispatch, proof, writes
from nodeproof.gate.actions import Lift, Plan, Read, Record, Say
from nodeproof.gate.attempt import CONTAINER, job_of
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.plan import Known, Tenant, plan
from nodeproof.gate.proof import devices_digest
from nodeproof.results import parse
from nodeproof.verdict import decide
from tests.apiserver.store import NODES, Status, Store

NODE = f"{NODES}/a"
OURS = {NAMES.pending, NAMES.quarantined}
WALL_S = SETTINGS.run_deadline_s + SETTINGS.job_margin_s + SETTINGS.wall_margin_s
SILENT: dict[str, dict[str, Any]] = {
    "crash": {"code": 1},
    "lying exit": {"code": 0},
    "oom": {"code": 137, "reason": "OOMKilled"},
    "evicted": {"code": None, "reason": "Evicted"},
    "deadline": {"code": 143, "reason": "DeadlineExceeded"},
}
BLOCKING = (
    ("karpenter.sh/unregistered", "NoExecute"),
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
)
FORGED = ("said accept", "replayed", "other image", "log lost", "log cut", "other boot at the end")


@functools.cache
def _template(kind: str) -> tuple[bytes, dict[str, Any]]:
    """Results and message of one kind of run, with words in place of what binds them."""
    run = {
        "accept": lambda: accept(samples=0),
        "reject": lambda: reject().but(telemetry=()),
        "undecided": lambda: undecided().but(telemetry=()),
    }[kind]()
    said = {"nonce": "@nonce@", "profile": SETTINGS.profile.value, "spec-digest": SPEC.digest}
    job = {"metadata": {"annotations": {NAMES.label(k): v for k, v in said.items()}}}
    node = {
        "metadata": {"name": "@name@", "uid": "@uid@"},
        "status": {"nodeInfo": {"bootID": "@boot@"}},
    }
    data = results_of(job, node, run)
    message = dispatch.message(decide(parse(data), MANIFEST).document(), data)
    return data, json.loads(message)


def evidence(
    kind: str, job: dict[str, Any], node: dict[str, Any], boot: str, end_boot: str = ""
) -> tuple[str, str]:
    """The message and the log that a run of one kind leaves, bound to this Job, node and boot."""
    data, said = _template(kind)
    body, _, end = data.rpartition(b'{"type":"end"')
    data = body + b'{"type":"end"' + end.replace(b"@boot@", (end_boot or boot).encode())
    for word, value in (
        ("@nonce@", told(job, "nonce")),
        ("@uid@", node["metadata"]["uid"]),
        ("@boot@", boot),
        ("@name@", node["metadata"]["name"]),
    ):
        data = data.replace(word.encode(), value.encode())
    bound = {
        "nonce": told(job, "nonce"),
        "node_uid": node["metadata"]["uid"],
        "boot_id": boot,
        "results": dispatch.digest(data),
    }
    return json.dumps({**said, **bound}), "\n".join(dispatch.packed(data))


def sound_devices() -> str:
    """The digest of the GPUs of an accepted run."""
    return devices_digest(decide(parse(_template("accept")[0]), MANIFEST))


class Broken(AssertionError):  # noqa: N818  what a walk found
    """The gate did what it must never do."""


class World:
    """A cluster of one GPU node. Methods in their own words are what may happen to it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.store = Store(clock=lambda: self.now)
        self.kubelet = Kubelet(self.store)
        self.judged: dict[str, proof.Judged] = {}
        self.tenants: tuple[Tenant, ...] = ()
        self.breaker = ""
        self.devices = ""
        self.proved: set[tuple[str, str, str]] = set()  # uid, boot and trigger of what truly passed
        self.evidence: list[tuple[str, str]] = []
        self.lifts = 0
        self.did: list[str] = []
        self._words = itertools.count(1)
        self._nonces = itertools.count(1)
        self.boot = ""  # of the machine, whatever the API says of it
        self._made(put_node(self.store, "a"))
        self.views = [self.view()]

    def _made(self, node: dict[str, Any]) -> None:
        self.boot = node["status"]["nodeInfo"]["bootID"]

    # --- the gate ---------------------------------------------------------------------------

    def view(self) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        """What a cache holds at this moment."""
        return self.raw(), self.store.objects("jobs"), self.store.objects("pods")

    def raw(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(NODE)
        return found

    def look(self, *, stale: int = 0, crash: int | None = None) -> Plan | None:
        """Let a controller look, from a view that is `stale` looks old, and die after `crash` actions."""
        seen = self.views[-min(stale, len(self.views))] if stale else self.view()
        if not stale:
            self.views = [*self.views[-3:], seen]
        steps = itertools.count()
        made = None
        for _ in range(4):
            node = node_of(seen[0], NAMES)
            made = plan(node, self._known(node, seen), SETTINGS, now=self.now)
            learned = False
            for action in made.actions:
                if crash is not None and next(steps) >= crash:
                    self.judged.clear()
                    return made
                if isinstance(action, Read):
                    self._read(action, node, seen)
                    learned = True
                elif not isinstance(action, Record) and not self._write(action, node):
                    return made
            if not learned:
                break
        if not stale and node.boot_id:
            self._one_test_at_a_time()
        return made

    def settle(self) -> None:
        """Look until nothing moves, and hold how it stands against what must be."""
        for _ in range(12):
            before = self.store.version
            self.look()
            if self.store.version == before:
                break
        else:
            raise Broken("the gate does not come to rest")
        node = node_of(self.raw(), NAMES)
        if not node.has(NAMES.pending):
            return
        said = condition(self.raw())
        start = f"boot {node.boot_id or 'unknown'}; "
        if said is None or not said["reason"] or not said["message"].startswith(start):
            raise Broken(f"held without a word for this boot: {said}")
        if said["status"] == "True":
            raise Broken("held, and says that it is accepted")
        if len(said["message"]) < len(start) + 5:
            raise Broken("held without an explanation")

    def _known(self, node: Node, seen: Any) -> Known:
        jobs = [j for j in (job_of(o, seen[2], NAMES) for o in seen[1]) if j]
        mine = [j for j in jobs if j.node_uid == node.uid]
        return Known(
            jobs=mine,
            judged={j.name: self.judged[j.uid] for j in mine if j.uid in self.judged},
            tenants=self.tenants,
            devices=self.devices,
            breaker=self.breaker,
        )

    def _read(self, action: Read, node: Node, seen: Any) -> None:
        job = next(j for j in self._known(node, seen).jobs if j.name == action.job)
        pod = next((p for p in job.pods if p.name == action.pod), None)
        log = self.store.logs.get(action.pod)
        self.judged[job.uid] = proof.judge(job, pod, log, node=node, manifest=MANIFEST)

    def _write(self, action: Any, node: Node) -> bool:
        """Write one action; `False` where the API refused it, so that the look ends there."""
        request = writes.request(
            action, node, SETTINGS, SPEC, now=self.now, nonce=f"nonce-{next(self._nonces)}"
        )
        if request is None:
            return True
        before = self._there()
        try:
            match request.verb:
                case "POST":
                    self.store.create(request.path, request.body)
                case "PATCH":
                    self.store.patch(request.path, request.content, request.body)
                case "DELETE":
                    self.store.delete(request.path)
        except Status as status:
            return status.code in request.settled
        self._judge_write(action, before)
        return True

    def _there(self) -> dict[str, Any] | None:
        try:
            return self.raw()
        except Status:
            return None

    # --- what must never be -----------------------------------------------------------------

    def _judge_write(self, action: Any, before: dict[str, Any] | None) -> None:
        after = self._there()
        if before is None or after is None:
            return
        if foreign(before) != foreign(after):
            raise Broken(f"{action} changed the taints of others: {before} to {after}")
        node = node_of(before, NAMES)
        freed = node.has(NAMES.pending) and not node_of(after, NAMES).has(NAMES.pending)
        if freed and not isinstance(action, Lift):
            raise Broken(f"{action} released the node")
        if freed:
            self.lifts += 1
            self._proved(before, node, "released")
            if not node_of(after, NAMES).accepted(NAMES):
                raise Broken(f"released without a condition that says so: {condition(after)}")
        if isinstance(action, Say) and action.status == "True" and node.has(NAMES.pending):
            self._proved(before, node, "called accepted")

    def _proved(self, raw: dict[str, Any], node: Node, what: str) -> None:
        """A valid proof is there for this node, this boot, and what was asked for last."""
        said = condition(raw)
        of_now = said and said["message"].startswith(f"boot {node.boot_id};")
        reason = said["reason"] if said and of_now else ""
        mine = {t for uid, boot, t in self.proved if (uid, boot) == (node.uid, node.boot_id)}
        if not mine:
            raise Broken(f"{what} without any proof for this boot of this node")
        word = node.annotations.get(NAMES.requalify, "")
        if word and word != node.annotations.get(NAMES.requalified):
            if f"requalify-{word}" not in mine:
                raise Broken(f"{what} with a proof from before the request {word!r}")
        elif node.has(NAMES.quarantined) or reason in {"HardwareCondemned", "UndecidedTooOften"}:
            raise Broken(f"{what} though {reason}, and nobody asked for another test")

    def _one_test_at_a_time(self) -> None:
        jobs = [j for o in self.store.objects("jobs") if (j := job_of(o, [], NAMES))]
        going = [j for j in jobs if j.ended is None and j.created + WALL_S >= self.now]
        if len(going) > 1 and len({j.node_uid for j in going}) < len(going):
            raise Broken(f"two tests at once: {[(j.name, j.trigger, j.attempt) for j in going]}")
        if any(j.attempt > SETTINGS.attempts for j in jobs):
            raise Broken("more attempts than the site allows")

    # --- the node and its kubelet -----------------------------------------------------------

    def change(self, how: Callable[[dict[str, Any]], object]) -> None:
        self.store.change(NODE, how)

    def heartbeat(self) -> None:
        self.now += 10
        stamp = self.store.stamp()
        self.change(lambda n: n["status"]["conditions"][0].update(lastHeartbeatTime=stamp))

    def reboot(self) -> None:
        self.boot = f"boot-{next(self._words)}"
        self.tell_boot()

    def tell_boot(self) -> None:
        self.change(lambda n: n["status"]["nodeInfo"].update(bootID=self.boot))

    def boot_unknown(self) -> None:
        self.change(lambda n: n["status"]["nodeInfo"].pop("bootID", None))

    def replaced(self, *, tainted: bool, labelled: bool) -> None:
        """Another node of the same name, with or without what a cloud gives it from the start."""
        self.store.delete(NODE)
        taints = [GPU, PENDING] if tainted else None
        labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
        if labelled:
            labels["nvidia.com/gpu.present"] = "true"
        self._made(put_node(self.store, "a", spec={"taints": taints}, metadata={"labels": labels}))

    def karpenter(self, *, registered: bool) -> None:
        label = {
            "karpenter.sh/nodepool": "gpus",
            "karpenter.sh/registered": str(registered).lower(),
        }
        self.change(lambda n: n["metadata"]["labels"].update(label))

    def labelled(self) -> None:
        self.change(lambda n: n["metadata"]["labels"].update({"nvidia.com/gpu.present": "true"}))

    def ready(self, status: str) -> None:
        stamp = self.store.stamp()
        self.change(
            lambda n: n["status"]["conditions"][0].update(status=status, lastTransitionTime=stamp)
        )

    # --- pods and Jobs ----------------------------------------------------------------------

    def start(self) -> None:
        self.kubelet.start()

    def running(self) -> dict[str, Any] | None:
        """A Job that has not ended and whose pod is there."""
        names = {p["metadata"]["name"] for p in self.store.objects("pods")}
        jobs = self.store.objects("jobs")
        return next(
            (j for j in jobs if not ended(j) and f"{j['metadata']['name']}-pod" in names), None
        )

    def finish(self, how: str) -> None:
        """End the test that runs, if there is one: by a run, in silence, or by a forgery."""
        job = self.running()
        node = self._there()
        if job is None or node is None or told(job, "node-uid") != node["metadata"]["uid"]:
            return
        message, log, code, more = "", "Traceback", 0, {}
        if how in SILENT:
            code = SILENT[how]["code"]
            more = {"reason": SILENT[how]["reason"]} if "reason" in SILENT[how] else {}
        elif how in FORGED:
            message, log = self._forged(how, job, node)
        else:
            message, log = evidence(how, job, node, self.boot)
            code = {"accept": 0, "reject": 10, "undecided": 11}[how]
            self.evidence.append((message, log))
            if how == "accept" and self.boot == told(job, "boot-id"):
                self.proved.add((node["metadata"]["uid"], self.boot, told(job, "trigger")))
        image = "sha256:" + "2e" * 32 if how == "other image" else DIGEST
        self._end(job, code=code, message=message, log=log, image=image, more=more)

    def _forged(self, how: str, job: dict[str, Any], node: dict[str, Any]) -> tuple[str, str]:
        message, log = evidence("accept", job, node, self.boot)
        match how:
            case "said accept":
                return message, evidence("reject", job, node, self.boot)[1]
            case "replayed":
                return self.evidence[-1] if self.evidence else ("accept", log)
            case "log lost":
                return message, ""
            case "log cut":
                return message, log[: len(log) // 2]
            case "other boot at the end":
                return evidence("accept", job, node, self.boot, end_boot="another")
        return message, log

    def _end(
        self,
        job: dict[str, Any],
        *,
        code: int | None,
        message: str,
        log: str,
        image: str,
        more: Any,
    ) -> None:
        name = f"{job['metadata']['name']}-pod"
        self.store.logs[name] = log
        state = {"terminated": {"exitCode": code, "message": message}} if code is not None else {}
        row = {"name": CONTAINER, "imageID": f"registry.example.com/x@{image}", "state": state}
        status = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [row],
            **more,
        }
        self.store.change(f"{PODS}/{name}", lambda p: p.update(status=status))
        self.kubelet.end_job(job, failed=code != 0)

    def lose_pod(self) -> None:
        for pod in self.store.objects("pods")[:1]:
            self.store.delete(f"{PODS}/{pod['metadata']['name']}")

    def lose_job(self) -> None:
        for job in self.store.objects("jobs")[-1:]:
            self.store.delete(f"{JOBS}/{job['metadata']['name']}")

    def time_to_live(self) -> None:
        """Every Job that has ended is cleaned up, with its pod."""
        for job in filter(ended, self.store.objects("jobs")):
            self.store.delete(f"{JOBS}/{job['metadata']['name']}")

    def lose_logs(self) -> None:
        self.store.logs.update(dict.fromkeys(self.store.logs))

    # --- others -----------------------------------------------------------------------------

    def taint(self, taint: dict[str, str], place: int) -> None:
        """Somebody puts a taint on, unless one of this key and effect is there."""

        def put(n: dict[str, Any]) -> None:
            taints = list(n["spec"].get("taints") or [])
            if not any((t["key"], t["effect"]) == (taint["key"], taint["effect"]) for t in taints):
                taints.insert(place % (len(taints) + 1), dict(taint))
            n["spec"]["taints"] = taints

        self.change(put)

    def untaint(self, key: str, effect: str = "NoSchedule") -> None:
        def take(n: dict[str, Any]) -> None:
            rest = [
                t for t in n["spec"].get("taints") or [] if (t["key"], t["effect"]) != (key, effect)
            ]
            n["spec"]["taints"] = rest or None

        self.change(take)

    def overwrite(self, status: str, reason: str, text: str) -> None:
        """A foreign agent says something under our condition's name."""
        boot = self.raw()["status"]["nodeInfo"].get("bootID", "")
        row = {
            "type": NAMES.accepted,
            "status": status,
            "reason": reason,
            "message": text.replace("@boot@", boot),
            "lastHeartbeatTime": self.store.stamp(),
            "lastTransitionTime": self.store.stamp(),
        }
        self.drop_condition()
        self.change(lambda n: n["status"]["conditions"].append(row))

    def drop_condition(self) -> None:
        """A foreign agent writes the list of conditions as it knew it."""

        def drop(n: dict[str, Any]) -> None:
            rows = n["status"]["conditions"]
            n["status"]["conditions"] = [c for c in rows if c["type"] != NAMES.accepted]

        self.change(drop)

    def ask(self, *, again: bool = False) -> None:
        word = "again" if again else f"word-{next(self._words)}"
        self.annotate({NAMES.requalify: word})

    def withdraw(self) -> None:
        self.change(lambda n: n["metadata"]["annotations"].pop(NAMES.requalify, None))

    def annotate(self, words: dict[str, str]) -> None:
        self.change(lambda n: n["metadata"].setdefault("annotations", {}).update(words))

    def strip(self) -> None:
        """Somebody removes what the gate remembers of the node in annotations."""

        def gone(n: dict[str, Any]) -> None:
            kept = n["metadata"].get("annotations") or {}
            n["metadata"]["annotations"] = {
                k: v for k, v in kept.items() if not k.startswith(NAMES.domain)
            }

        self.change(gone)

    def calm(self) -> None:
        """Whatever only delays is over."""
        self.tenants, self.breaker, self.devices = (), "", ""
        self.tell_boot()
        self.ready("True")
        for key, effect in BLOCKING:
            self.untaint(key, effect)
        if "karpenter.sh/nodepool" in self.raw()["metadata"]["labels"]:
            self.karpenter(registered=True)

    def restart(self) -> None:
        self.judged.clear()

    def tick(self, duration_s: float) -> None:
        self.now += duration_s


def foreign(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Every taint that is not one of ours with our effect, in order."""
    taints = node["spec"].get("taints") or []
    return [t for t in taints if t["key"] not in OURS or t["effect"] != "NoSchedule"]
