"""The groups of a cluster as a controller follows them: Jobs, their pods, what each came to."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeproof.gate import group_proof, logs
from nodeproof.gate.actions import Place, Read
from nodeproof.gate.attempt import Job, job_of
from nodeproof.gate.cache import Cache, owner_of, uid_of
from nodeproof.gate.ending import wall_s
from nodeproof.gate.fleet import Fleet
from nodeproof.gate.group import (
    LABEL,
    Group,
    Together,
    Waiting,
    alike,
    divided,
    group_of,
    members_of,
)
from nodeproof.gate.kube import Kube
from nodeproof.gate.node import Node
from nodeproof.gate.proof import Judged, sure
from nodeproof.gate.settings import Settings
from nodeproof.manifest import Manifest
from nodeproof.spec import Spec


class Groups:
    """Groups by their members. `wake` is told the uid of each node of a group that moved."""

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        spec: Spec,
        manifest: Manifest,
        *,
        wake: Callable[[str], None],
    ) -> None:
        self._kube, self._settings, self._spec = kube, settings, spec
        self._manifest, self._wake = manifest, wake
        space = settings.names.namespace
        ours = {"labelSelector": f"app.kubernetes.io/name={LABEL}"}
        self.jobs = Cache(
            kube,
            f"/apis/batch/v1/namespaces/{space}/jobs",
            group=lambda _: "",
            changed=self._moved,
            **ours,
        )
        self.pods = Cache(
            kube,
            f"/api/v1/namespaces/{space}/pods",
            group=owner_of,
            changed=self._pod_moved,
            **ours,
        )
        self._lock = threading.Lock()
        self._of_node: defaultdict[str, set[str]] = defaultdict(set)  # uids of Jobs by uid of node
        self._members: dict[str, tuple[Place, ...]] = {}  # by uid of Job
        self._times: Counter[Place] = Counter()  # Jobs that each is in
        self._moves = 0  # how often any Job moved
        # The rows of those that wait, divided, and when that was: no look divides them anew.
        self._rows: dict[tuple[str, str], dict[str, tuple[Waiting, ...]]] = {}
        self._rows_at: tuple[object, ...] = ()
        self._going: dict[str, Job] = {}  # that have not ended, by uid
        self._judged: dict[tuple[str, str], Judged] = {}  # by uids of Job and node

    def caches(self) -> dict[str, Cache]:
        """What has to be followed: nothing where no node is measured with others."""
        return {"group jobs": self.jobs, "group pods": self.pods} if self._settings.grouped else {}

    def put(self, answer: Mapping[str, Any]) -> None:
        """Take in a Job of a group that was just made."""
        self.jobs.put(answer)
        self._moved(answer)

    def known(self, node: Node, fleet: Fleet, *, now: float) -> Together:
        """What `plan` has to know of groups for one node."""
        if not self._settings.measured_together(node.labels):
            return Together()
        with self._lock:
            uids = sorted(self._of_node.get(node.uid, ()))
        groups = [g for g in (self._group(uid, node) for uid in uids) if g]
        judged = {
            g.job.name: self._judged[g.job.uid, node.uid]
            for g in groups
            if (g.job.uid, node.uid) in self._judged
        }
        oldest = now - wall_s(self._settings.of_groups())
        going = [j.uid for j in list(self._going.values()) if j.created > oldest]
        return Together(
            groups=groups,
            judged=judged,
            waiting=self._beside(node, fleet, going),
            room=self._settings.groups_at_once - len(going),
        )

    def _beside(self, node: Node, fleet: Fleet, going: Sequence[str]) -> Sequence[Waiting]:
        """The group that a node is in while nobody has begun it; `()` for none.

        A row is divided once, and again when anything in it has moved.
        """
        like = alike(node, self._settings)
        at = (id(fleet), fleet.waits, self._moves, *going)
        if at != self._rows_at:
            self._rows, self._rows_at = {}, at
        if like not in self._rows:
            row = self._free(fleet.waiting(like), going)
            groups = divided(row, self._settings)
            self._rows[like] = {w.place.uid: group for group in groups for w in group}
        return self._rows[like].get(node.uid, ())

    def _free(self, rows: Sequence[Waiting], going: Sequence[str]) -> list[Waiting]:
        """Those of the rows that are in no group that goes on: theirs may not say so yet."""
        with self._lock:
            taken = {m for uid in going for m in self._members.get(uid, ())}
            return [
                dataclasses.replace(w, times=times) if (times := self._times[w.place]) else w
                for w in rows
                if w.place not in taken
            ]

    def _group(self, uid: str, node: Node) -> Group | None:
        found = self.jobs.get(uid)
        return group_of(found, self.pods.of(uid), self._settings.names, node) if found else None

    def judge(self, read: Read, known: Together, node: Node, *, tested: str, now: float) -> None:
        """Read what a group left on one node, and judge it. Raises `Refused` to be asked again."""
        group = next(g for g in known.groups if g.job.name == read.job)
        pod = next((p for p in group.job.pods if p.name == read.pod), None)
        text = logs.of(self._kube, self._settings.names, group.job, read.pod, now=now)

        def judging() -> Judged:
            return group_proof.judge(
                group,
                pod,
                text,
                node=node,
                tested=tested,
                manifest=self._manifest,
                settings=self._settings,
                spec=self._spec,
            )

        self._judged[group.job.uid, node.uid] = sure(judging, read.pod)

    # --- what moves -------------------------------------------------------------------------

    def _moved(self, found: Mapping[str, Any]) -> None:
        uid = uid_of(found)
        names = self._settings.names
        there = self.jobs.get(uid) is not None
        job = self._job(found) if there else None
        members = members_of(found, names) if job else ()
        with self._lock:
            before = self._members.pop(uid, ())
            for m in before:
                self._of_node[m.uid].discard(uid)
                if not self._of_node[m.uid]:
                    del self._of_node[m.uid]
                if not there:
                    self._judged.pop((uid, m.uid), None)
            self._times.subtract(before)
            self._times.update(members)
            for m in before:
                if not self._times[m]:
                    del self._times[m]
            for m in members:
                self._of_node[m.uid].add(uid)
            self._moves += 1
            if members:
                self._members[uid] = members
            self._going.pop(uid, None)
            if job and members and job.ended is None and not job.deleting:
                self._going[uid] = job
        for node in {m.uid for m in (*before, *members)}:
            self._wake(node)

    def _job(self, found: Mapping[str, Any]) -> Job | None:
        """The Job without what differs between its members."""
        names, metadata = self._settings.names, found.get("metadata") or {}
        notes = {**(metadata.get("annotations") or {})}
        notes.update({names.label(key): "" for key in ("node-uid", "boot-id", "trigger")})
        return job_of({**found, "metadata": {**metadata, "annotations": notes}}, (), names)

    def _pod_moved(self, found: Mapping[str, Any]) -> None:
        for member in self._members.get(owner_of(found), ()):
            self._wake(member.uid)
