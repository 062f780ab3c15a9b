"""One node, its gate and everybody else who touches it, without HTTP: what a walk walks through.

The world keeps the truth that the gate can't see, which test really proved which boot of which
node, and holds each write of the gate against it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from gate_cluster import (
    DIGEST,
    JOBS,
    MANIFEST,
    NAMES,
    PODS,
    SETTINGS,
    SPEC,
    condition,
    ended,
    told,
)
from gate_evidence import FORGED, SILENT, evidence
from gate_others import Others

from nodeproof.gate import proof, writes
from nodeproof.gate.actions import Lift, Plan, Read, Record, Say
from nodeproof.gate.attempt import CONTAINER, job_of
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.plan import Known, plan
from tests.apiserver.store import Status

OURS = {NAMES.pending, NAMES.quarantined}
WALL_S = SETTINGS.run_deadline_s + SETTINGS.job_margin_s + SETTINGS.wall_margin_s


class Broken(AssertionError):  # noqa: N818  what a walk found
    """The gate did what it must never do."""


class World(Others):
    """The node, its gate, and the truth about both. Methods in plain words are what may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.judged: dict[str, proof.Judged] = {}
        # Uid, boot, trigger and Job of what truly passed.
        self.proved: set[tuple[str, str, str, str]] = set()
        self.evidence: list[tuple[str, str]] = []
        self.spent: set[str] = set()  # names of Jobs that have released the node
        self.freed: set[tuple[str, str]] = set()  # uid and boot of what was released
        self.suspicions: set[float | None] = set()  # when those began that the gate has seen
        self.outdone: set[str] = set()  # uids of Jobs that a suspicion came after
        self.lifts = 0
        self._nonces = itertools.count(1)
        self.views = [self.view()]

    # --- the gate ---------------------------------------------------------------------------

    def view(self) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        """What a cache holds at this moment."""
        return self.raw(), self.store.objects("jobs"), self.store.objects("pods")

    def look(self, *, stale: int = 0, crash: int | None = None) -> Plan | None:
        """Let a controller look, from a view that is `stale` looks old, and die after `crash` actions."""
        seen = self.views[-min(stale, len(self.views))] if stale else self.view()
        if not stale:
            self.views = [*self.views[-3:], seen]
        steps = itertools.count()
        made = None
        for _ in range(4):
            node = node_of(seen[0], NAMES)
            if not stale and crash is None and node.boot_id:
                self._suspected(node)
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
        if not stale and node.boot_id and node.has(NAMES.pending):
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
        self.judged[job.uid] = proof.judge(
            job, pod, log, node=node, manifest=MANIFEST, settings=SETTINGS, spec=SPEC
        )

    def _write(self, action: Any, node: Node) -> bool:
        """Write one action; `False` where the API refused it, so that the look ends there."""
        request = writes.request(
            action, node, SETTINGS, SPEC, now=self.now, nonce=f"nonce-{next(self._nonces)}"
        )
        if request is None:
            return True
        before = self.there()
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

    # --- what must never be -----------------------------------------------------------------

    def _judge_write(self, action: Any, before: dict[str, Any] | None) -> None:
        after = self.there()
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
            self.freed.add((node.uid, node.boot_id))
            self._proved(before, node, "released")
            self._spend(after)
            if not node_of(after, NAMES).accepted(NAMES):
                raise Broken(f"released without a condition that says so: {condition(after)}")
        if isinstance(action, Say) and action.status == "True":
            if node.has(NAMES.pending):
                self._proved(before, node, "called accepted")
            elif (node.uid, node.boot_id) not in self.freed:
                raise Broken("called accepted, and was never released for this boot")

    def _proved(self, raw: dict[str, Any], node: Node, what: str) -> None:
        """A valid proof is there for this node, this boot, and what was asked for last."""
        said = condition(raw)
        of_now = said and said["message"].startswith(f"boot {node.boot_id};")
        reason = said["reason"] if said and of_now else ""
        mine = {
            t
            for uid, boot, t, job in self.proved
            if (uid, boot) == (node.uid, node.boot_id) and job not in self.outdone
        }
        if not mine:
            raise Broken(f"{what} without any proof for this boot of this node")
        word = node.annotations.get(NAMES.requalify, "")
        if word and word != node.annotations.get(NAMES.requalified):
            if f"requalify-{word}" not in {t.rpartition("@")[0] or t for t in mine}:
                raise Broken(f"{what} with a proof from before the request {word!r}")
        elif node.has(NAMES.quarantined) or reason in {"HardwareCondemned", "UndecidedTooOften"}:
            raise Broken(f"{what} though {reason}, and nobody asked for another test")

    def _spend(self, after: dict[str, Any]) -> None:
        """A Job releases once; whoever strips what the gate remembers is refused by a policy."""
        said = json.loads(after["metadata"]["annotations"][NAMES.verdict])
        if said["job"] in self.spent:
            raise Broken(f"released again by {said['job']}")
        self.spent.add(said["job"])

    def _suspected(self, node: Node) -> None:
        """What ran before a suspicion that the gate has seen, or runs then, proves nothing after it."""
        told = node.others.get("NodeproofSuspect")
        if told is None or told.status != "True" or told.transition in self.suspicions:
            return
        self.suspicions.add(told.transition)
        self.outdone |= {j["metadata"]["uid"] for j in self.store.objects("jobs")}

    def strip(self) -> None:
        super().strip()
        self.spent.clear()
        self.outdone.clear()

    def withdraw(self) -> None:
        super().withdraw()
        self.outdone.clear()  # of a request by suspicion, too; a policy refuses it

    def _one_test_at_a_time(self) -> None:
        """Of this node: what was started for one that is gone goes with its owner."""
        uid = self.raw()["metadata"]["uid"]
        jobs = [j for o in self.store.objects("jobs") if (j := job_of(o, [], NAMES))]
        mine = [j for j in jobs if j.node_uid == uid]
        going = [j for j in mine if j.ended is None and j.created + WALL_S >= self.now]
        if len(going) > 1:
            raise Broken(f"two tests at once: {[(j.trigger, j.attempt, j.boot_id) for j in going]}")
        if any(j.attempt > SETTINGS.attempts for j in jobs):
            raise Broken("more attempts than the site allows")

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
        node = self.there()
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
                by = told(job, "trigger"), job["metadata"]["uid"]
                self.proved.add((node["metadata"]["uid"], self.boot, *by))
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

    def restart(self) -> None:
        self.judged.clear()

    def tick(self, duration_s: float) -> None:
        self.now += duration_s


def foreign(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Every taint that is not one of ours with our effect, in order."""
    taints = node["spec"].get("taints") or []
    return [t for t in taints if t["key"] not in OURS or t["effect"] != "NoSchedule"]
