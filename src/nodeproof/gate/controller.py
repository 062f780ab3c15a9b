"""The loop: look at a node, make its plan, carry it out; again when anything moves.

Correct by looking again, never by remembering: it may be killed between any two requests, and two
of it may run at once. What it holds in memory saves requests and decides nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodeproof.gate import devices, logs, proof, slices, tenants, writes
from nodeproof.gate.actions import (
    Action,
    Measure,
    Phase,
    Plan,
    Quarantine,
    Read,
    Record,
    Say,
    Tell,
    Test,
)
from nodeproof.gate.attempt import Job, job_of
from nodeproof.gate.breaker import why_open
from nodeproof.gate.cache import Cache, owner_of, uid_of
from nodeproof.gate.due import Due
from nodeproof.gate.ending import wall_s
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.groups import Groups
from nodeproof.gate.kube import Gone, Kube, Refused
from nodeproof.gate.memory import Memory
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.occasion import may_be_said_anew
from nodeproof.gate.plan import Known, Tenant, plan
from nodeproof.gate.proof import Judged
from nodeproof.gate.saying import message_of
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest
from nodeproof.spec import Spec
from nodeproof.verdict import Decision

log = logging.getLogger("nodeproof.gate")
_AGAIN_S = 1.0  # after a conflict: the watch brings what moved
_REFUSED_S = 10.0
_TOLD_AGAIN = 300  # refusals: an hour or so, which is how long an event is kept
_OFTEN = 4  # refusals in a row of one node's writes: a policy, not somebody who was quicker
_REFUSED = "WriteRefused"  # reason of the event and of the condition
_RESYNC_S = 300.0
_BLIND_S = 300.0  # what is not seen for this long is not held
_SILENT_S = 3 * _RESYNC_S
_LIST_S = 0.5  # between two looks at whether we are to stop before there is anything to look at
_LOOKS = 4  # plans in a row for one node: a log is read, pods are looked for


class _Silenced(Refused):
    """What was refused comes before our condition in a plan: it has to be said there by itself."""


class Controller:
    """Everything of one controller but its lease."""

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        spec: Spec,
        manifest: Manifest,
        *,
        clock: Callable[[], float] | None = None,
        leads: Callable[[], bool] = lambda: True,
        dry: bool = False,
    ) -> None:
        self._kube, self._spec, self._manifest = kube, spec, manifest
        self._clock, self._leads, self._dry = clock or kube.now, leads, dry
        self._settings = settings
        self.memory = Memory(kube, settings.names)
        space = settings.names.namespace
        ours = {"labelSelector": "app.kubernetes.io/name=nodeproof"}
        self._nodes = Cache(kube, "/api/v1/nodes", group=_name, changed=self._node_moved)
        self._jobs = Cache(
            kube,
            f"/apis/batch/v1/namespaces/{space}/jobs",
            group=self._node_of_job,
            changed=self._job_moved,
            **ours,
        )
        self._pods = Cache(
            kube,
            f"/api/v1/namespaces/{space}/pods",
            group=owner_of,
            changed=self._pod_moved,
            **ours,
        )
        self._groups = Groups(
            kube, settings, spec, manifest, wake=lambda uid: self._due.wake(uid, 0.0)
        )
        self._slices = Cache(kube, slices.PATH, group=slices.node_of, changed=self._slice_moved)
        self.caches = {"nodes": self._nodes, "jobs": self._jobs, "pods": self._pods}
        self.caches |= self._groups.caches()
        self._fleet = Fleet(settings)
        self._running: dict[
            str, float
        ] = {}  # Jobs that have not ended: when they were made, by uid
        self._judged: dict[str, Judged] = {}  # by uid of the Job
        self._due = Due()
        self._phases: dict[str, Phase] = {}  # by uid of the node
        self._refusals: dict[str, int] = {}  # in a row, by uid of the node
        self._looked: float | None = None  # monotonic; None while another one leads

    # --- what it tells of itself ------------------------------------------------------------

    def phases(self) -> Counter[Phase]:
        """How many nodes stand where."""
        return Counter(list(self._phases.values()))

    def breakers(self) -> dict[str, str]:
        """Why the breaker is open, by kind of node."""
        return {kind: self._breaker(kind) for kind in self._fleet.kinds()}

    @property
    def requests(self) -> int:
        """Requests to the API so far."""
        return self._kube.sent

    @property
    def running(self) -> int:
        """Tests that go on. One past every deadline is given up, and its place with it."""
        oldest = self._clock() - wall_s(self._settings)
        return sum(made > oldest for made in list(self._running.values()))

    def ailing(self) -> str:
        """Why this controller should be started anew, `""` for no reason."""
        for kind, cache in self.caches.items():
            if cache.dead:
                return f"it no longer follows {kind}"
            if cache.blind_s > _BLIND_S:
                return f"it could not follow {kind} for {cache.blind_s:.0f} s: {cache.refusal}"
        silent = 0.0 if self._looked is None else time.monotonic() - self._looked
        return f"it has not looked at a node for {silent:.0f} s" if silent > _SILENT_S else ""

    # --- the loop ---------------------------------------------------------------------------

    def start(self) -> None:
        """Read what there is, and follow it. Raises `Refused` where the state can't be read."""
        if not self._dry:
            self.memory.load(self._clock())
        installed = self._settings.installed_at or self.memory.installed_at or self._clock()
        self._settings = dataclasses.replace(self._settings, installed_at=installed)
        self._fleet = Fleet(self._settings)
        if self._kube.serves(slices.PATH):
            self.caches["resourceslices"] = self._slices
        for cache in self.caches.values():
            cache.start()
        for cache in self.caches.values():
            while not cache.listed.wait(_LIST_S) and not self._due.stopped:
                pass

    def stop(self) -> None:
        """End `run` and stop following. Nothing is left half done that another look won't mend."""
        self._due.stop()
        for cache in self.caches.values():
            cache.stop()

    def run(self) -> None:
        """Look at nodes as they move and fall due, until `stop`."""
        resync = time.monotonic()
        while True:
            self._looked = time.monotonic()
            if time.monotonic() >= resync:
                resync += _RESYNC_S
                for found in self._nodes.all():
                    self._due.wake(uid_of(found), 0.0)
            uid = self._due.next(resync)
            if uid is None:
                return
            if uid:
                self.look(uid)

    def look(self, uid: str) -> Plan | None:
        """Look at one node and do what its plan says; `None` for a node that is gone."""
        try:
            made = self._look(uid)
        except Gone:
            made = Plan(phase=Phase.WAITING, wake_s=_AGAIN_S)
        except Refused as refusal:
            made = Plan(phase=Phase.WAITING, wake_s=self._refused(uid, refusal))
        except Exception:
            # What tests write is judged here: no node may stop the gate for all the others.
            log.exception("node with uid %s", uid)
            made = Plan(phase=Phase.WAITING, wake_s=_REFUSED_S)
        else:
            self._refusals.pop(uid, None)
        if made is None:
            self._phases.pop(uid, None)
            self._refusals.pop(uid, None)
        elif made.wake_s is not None:
            self._due.wake(uid, made.wake_s)
        return made

    def _refused(self, uid: str, refusal: Refused) -> float:
        """Seconds until the next look. What is refused again and again has not only moved: tell."""
        count = self._refusals[uid] = self._refusals.get(uid, 0) + 1
        if refusal.status in {409, 422} and count < _OFTEN:
            log.info("%s", refusal)
            return _AGAIN_S
        log.warning("%s", refusal)
        found = self._nodes.get(uid)
        if count >= _OFTEN and found is not None:
            with contextlib.suppress(Refused, Gone):
                self._say_refused(node_of(found, self._settings.names), refusal, count)
        return _REFUSED_S

    def _say_refused(self, node: Node, refusal: Refused, count: int) -> None:
        """Tell of a node what the API refuses; say it, where else the node waits without a word."""
        if refusal.status and (count - _OFTEN) % _TOLD_AGAIN == 0:
            self._tell(Tell(reason=_REFUSED, message=str(refusal), warning=True), node)
        told = node.condition
        waits = node.has(self._settings.names.pending) and may_be_said_anew(node)
        if isinstance(refusal, _Silenced) and waits and (told is None or told.reason != _REFUSED):
            text = message_of(node, str(refusal))
            self._write(Say(status="Unknown", reason=_REFUSED, message=text), node)

    def _look(self, uid: str) -> Plan | None:
        holding: tuple[Tenant, ...] | None = None
        made = None
        for _ in range(_LOOKS):
            found = self._nodes.get(uid)
            if found is None:
                return None
            node = node_of(found, self._settings.names)
            known = self._known(node, holding or ())
            made = plan(node, known, self._settings, now=self._clock())
            self._phases[uid] = made.phase
            if holding is None and any(isinstance(a, Test) for a in made.actions):
                holding = self._tenants(node)
                if holding:
                    continue
            if not self._carry_out(made, node, known):
                break
        return made

    def _carry_out(self, made: Plan, node: Node, known: Known) -> bool:
        """Do the actions of a plan; whether something was learned that calls for another look."""
        learned = False
        # Rulings first: a condition that says so already would keep one from being written down.
        for action in sorted(made.actions, key=lambda a: not isinstance(a, Record)):
            if isinstance(action, Read) and action.group:
                self._read_group(action, node, known)
                learned = True
            elif isinstance(action, Read):
                job = next(j for j in known.jobs if j.name == action.job)
                self._judged[job.uid] = self._judge(job, action, node)
                learned = True
            elif isinstance(action, Record):
                if self._record(action):
                    return True  # others' rulings may have opened the breaker
            elif isinstance(action, Test | Measure):
                self._start(action, node)
            elif isinstance(action, Tell):
                self._tell(action, node)
            else:
                with _silenced(when=isinstance(action, Quarantine)):
                    node = self._write(action, node)
        return learned

    def _record(self, action: Record) -> bool:
        """Write a ruling down; whether others' have come to light by that.

        An accept that can't be written down keeps no proved node held. No node is quarantined that
        the breaker does not hear of.
        """
        if self._dry:
            return False
        self._sure_to_lead()
        try:
            with _silenced(when=not action.ruled.accepted):
                return self.memory.record(action.ruled)
        except (Refused, Gone) as refusal:
            if not action.ruled.accepted:
                raise
            log.warning("an accept is not written down: %s", refusal)
            return False

    def _tell(self, action: Tell, node: Node) -> None:
        """Publish an event. That it can't be keeps nobody waiting: the condition says it too."""
        try:
            self._write(action, node)
        except (Refused, Gone) as refusal:
            log.warning("%s: an event is lost: %s", node.name, refusal)

    def _start(self, test: Test | Measure, node: Node) -> None:
        """Start a Job; where the server takes none, the node says so instead of waiting for it."""
        try:
            self._write(test, node)
        except Refused as refusal:
            text = f"boot {node.boot_id}; no Job could be started: {refusal}"[:1024]
            say = Say(status="Unknown", reason="JobRefused", message=text)
            told = node.condition
            if told is None or (told.reason, told.message) != (say.reason, say.message):
                self._write(say, node)
            raise Refused(0, text) from None  # whatever its status, the node has not moved

    def _write(self, action: Action, node: Node) -> Node:
        """Do an action; the node as it stands after that, which the plan's next one is done to."""
        request = writes.request(
            action,
            node,
            self._settings,
            self._spec,
            now=self._clock(),
            nonce=secrets.token_hex(16),
        )
        if request is None:
            return node
        log.info("%s: %s", node.name, action)
        if self._dry:
            return node
        self._sure_to_lead()
        answer = self._kube.send(request)
        if answer and answer.get("kind") == "Node":
            self._nodes.put(answer)
            self._fleet.take(uid_of(answer), self._nodes.get(uid_of(answer)))
            return node_of(answer, self._settings.names)
        if answer and isinstance(action, Measure):
            self._groups.put(answer)
        elif answer and answer.get("kind") == "Job":
            self._jobs.put(answer)
            self._count(answer)
        return node

    def _sure_to_lead(self) -> None:
        """Raise `Refused` where another one may lead by now: this one stood still, or its renewals.

        Versions keep old pictures from nodes. Jobs, pods and rulings have none of theirs.
        """
        if not self._leads():
            raise Refused(0, "the Lease was not renewed in time: another one may lead")

    # --- what is known ----------------------------------------------------------------------

    def _known(self, node: Node, holding: tuple[Tenant, ...]) -> Known:
        settings = self._settings
        jobs = [j for j in map(self._job, self._jobs.of(node.uid)) if j]
        judged = {j.name: self._judged[j.uid] for j in jobs if j.uid in self._judged}
        together = self._groups.known(node, self._fleet, now=self._clock())
        # Only where it can decide: it looks at every node of the kind.
        shut = node.has(settings.names.quarantined)
        condemned = not shut and (
            node.condemned
            or bool(node.annotations.get(settings.names.held_for))
            or any(r.decision is not Decision.ACCEPT for r in judged.values())
            or any(r.decision is not Decision.ACCEPT for r in (together.judged or {}).values())
            or (settings.quarantine_undecided and bool(jobs))
        )
        kind = node.labels.get(settings.kind_label, "")
        published = slices.digest(self._slices.of(node.name))
        installed, also = devices.of(node, published, settings.names)
        return Known(
            jobs=jobs,
            judged=judged,
            tenants=holding,
            devices=installed,
            also=also,
            room=settings.tests_at_once - self.running,
            served_held=self._fleet.held_beside(node.uid),
            breaker=self._breaker(kind) if condemned else "",
            crowded=self._fleet.crowded(kind),
            together=together,
        )

    def _breaker(self, kind: str) -> str:
        nodes = self._fleet.of_kind(kind)
        return why_open(nodes, self.memory.rulings, kind, self._settings, now=self._clock())

    def _job(self, found: Mapping[str, Any]) -> Job | None:
        return job_of(found, self._pods.of(uid_of(found)), self._settings.names)

    def _tenants(self, node: Node) -> tuple[Tenant, ...]:
        with _silenced():
            listing = self._kube.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")
        return tenants.of(listing.items, self._settings)

    def _read_group(self, read: Read, node: Node, known: Known) -> None:
        """Judge what a group left on the node, by the proof that the node brought into it."""
        proof = next(
            m.proof
            for g in known.together.groups
            if g.job.name == read.job
            for m in g.members
            if m.uid == node.uid
        )
        alone = (known.judged or {}).get(proof)
        tested = alone.devices if alone else ""
        self._groups.judge(read, known.together, node, tested=tested, now=self._clock())

    def _judge(self, job: Job, read: Read, node: Node) -> Judged:
        pod = next((p for p in job.pods if p.name == read.pod), None)
        text = logs.of(self._kube, self._settings.names, job, read.pod, now=self._clock())

        def judging() -> Judged:
            return proof.judge(
                job,
                pod,
                text,
                node=node,
                manifest=self._manifest,
                settings=self._settings,
                spec=self._spec,
            )

        return proof.sure(judging, read.pod)

    # --- what moves -------------------------------------------------------------------------

    def _node_moved(self, found: Mapping[str, Any]) -> None:
        uid = uid_of(found)
        self._fleet.take(uid, self._nodes.get(uid))
        self._due.wake(uid, 0.0)

    def _node_of_job(self, found: Mapping[str, Any]) -> str:
        labels = (found.get("metadata") or {}).get("labels") or {}
        return str(labels.get(self._settings.names.label("node-uid")) or "")

    def _job_moved(self, found: Mapping[str, Any]) -> None:
        self._count(found)
        if node := self._node_of_job(found):
            self._due.wake(node, 0.0)

    def _count(self, found: Mapping[str, Any]) -> None:
        """Keep count of the Jobs that have not ended."""
        uid = uid_of(found)
        job = job_of(found, (), self._settings.names)
        there = self._jobs.get(uid) is not None
        if job and job.ended is None and not job.deleting and there:
            self._running[uid] = job.created
        else:
            self._running.pop(uid, None)
        if not there:
            self._judged.pop(uid, None)

    def _slice_moved(self, found: Mapping[str, Any]) -> None:
        for node in self._nodes.of(slices.node_of(found)):
            self._due.wake(uid_of(node), 0.0)

    def _pod_moved(self, found: Mapping[str, Any]) -> None:
        job = self._jobs.get(owner_of(found))
        if job is not None:
            self._job_moved(job)


@contextlib.contextmanager
def _silenced(*, when: bool = True) -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        raise (_Silenced(refusal.status, str(refusal)) if when else refusal) from None


def _name(found: Mapping[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("name") or "")
