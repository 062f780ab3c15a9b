"""A cluster of several nodes that are measured together, and its controllers.

These may be killed at any request; `settle` goes through as many as that takes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gate_cluster import (
    GPU,
    NAMES,
    PENDING,
    SETTINGS,
    SPEC,
    Kubelet,
    condition,
    ended,
    put_node,
    told,
)
from gate_group_evidence import (
    MANIFEST,
    Change,
    Left,
    boot_of,
    cleared,
    left_alone,
    left_together,
)
from gate_life import Clock

from nodeproof.gate.controller import Controller
from nodeproof.gate.group import LABEL
from nodeproof.gate.kube import Gone, Kube, Refused
from tests.apiserver.server import Server, serving
from tests.apiserver.store import NODES, Store

KIND, OTHER_KIND = "p5.48xlarge", "p4d.24xlarge"
GROUPED = dataclasses.replace(
    SETTINGS,
    expected={KIND: 2, OTHER_KIND: 2},
    grouped=[KIND, OTHER_KIND],
    group_most=4,
    group_wait_s=300.0,
)


class Life:
    """One cluster, driven look by look over all of its nodes."""

    def __init__(self, server: Server, store: Store, clock: Clock, **settings: Any) -> None:
        self.server, self.store, self.clock = server, store, clock
        self.settings = dataclasses.replace(GROUPED, **settings)
        self.kubelet = Kubelet(store)
        self.disturbed = False  # since the last round of looks
        self.kill = False  # after the look, by whoever interferes
        self.anew = False  # a controller that has no memory, for each round of looks
        self.controllers: list[Controller] = []
        self.passed: set[tuple[str, str]] = set()  # nodes, and the names of Jobs that they passed

    def controller(self) -> Controller:
        """Start one more; as often as it takes, as a Deployment does."""
        for _ in range(5):
            made = Controller(
                Kube(self.server.client()), self.settings, SPEC, MANIFEST, clock=self.clock
            )
            try:
                made.start()
            except (Refused, Gone):
                self.kill = self.disturbed = False
                continue
            self.controllers.append(made)
            return made
        raise AssertionError("no controller comes up")

    def close(self) -> None:
        while self.controllers:
            self.controllers.pop().stop()

    def settle(self, *others: Controller) -> None:
        """Look at all nodes until nothing moves any more, with `others` in turn."""
        turn = quiet = 0
        while quiet <= len(others):
            assert turn < 40, "the gate does not come to rest"
            if self.anew:
                self.close()
            everybody = [*others] or self.controllers[-1:] or [self.controller()]
            before, self.disturbed = self.store.version, False
            self._round(everybody[turn % len(everybody)])
            turn += 1
            if self.kill:
                self.kill = False
                self.controllers.pop().stop()
                self.disturbed = True
            quiet = quiet + 1 if self.store.version == before and not self.disturbed else 0

    def _round(self, controller: Controller) -> None:
        for node in self.store.objects("nodes"):
            if not self.kill:
                self.see(controller)
                controller.look(node["metadata"]["uid"])

    def see(self, controller: Controller) -> None:
        """Let a controller see everything there is."""
        for kind, cache in controller.caches.items():
            name = LABEL if kind.startswith("group ") else "nodeproof"
            plural = kind.removeprefix("group ")
            wanted = {
                o["metadata"]["uid"]: o["metadata"]["resourceVersion"]
                for o in self.store.objects(plural)
                if plural == "nodes" or _called(o) == name
            }
            deadline = time.monotonic() + 60
            while cache.known() != wanted:
                assert time.monotonic() < deadline, f"{kind}: {cache.known()} is not {wanted}"
                time.sleep(0.001)

    def later(self, seconds: float) -> None:
        """Let time go by, and the gate look."""
        self.clock.now += seconds
        self.settle()

    # --- what happens -----------------------------------------------------------------------

    def arrive(self, *names: str, kind: str = KIND, uid: str = "uid", **labels: str) -> None:
        for name in names:
            put_node(
                self.store,
                name,
                metadata={
                    "uid": f"{uid}-{name}",
                    "labels": {
                        "nvidia.com/gpu.present": "true",
                        SETTINGS.kind_label: kind,
                        **labels,
                    },
                },
                status={"nodeInfo": {"bootID": f"boot-{name}-1"}},
                spec={"taints": [GPU, PENDING]},
            )

    def reboot(self, name: str) -> None:
        self.store.change(
            f"{NODES}/{name}", lambda n: n["status"]["nodeInfo"].update(bootID=f"boot-{name}-2")
        )

    def test(self, name: str, how: str = "accept") -> None:
        """The test of one node alone runs, and ends."""
        self.kubelet.start()
        node = self.node(name)
        [job] = [j for j in self.alone() if told(j, "node-uid") == node["metadata"]["uid"]]
        if how == "accept":
            self.passed.add((name, job["metadata"]["name"]))
        self._end(job, f"{job['metadata']['name']}-pod", left_alone(how, job, node))
        self.kubelet.end_job(job, failed=how != "accept")

    def waiting(self, *names: str) -> None:
        """Nodes arrive, and pass alone."""
        self.arrive(*names)
        self.settle()
        for name in names:
            self.test(name)
        self.settle()

    def measure(
        self,
        job: dict[str, Any] | None = None,
        change: Change = lambda run: run,
        but: Sequence[str] = (),
        *,
        only: str = "",
        came_late: bool = False,
    ) -> dict[str, Any]:
        """A group runs, and ends; on the nodes `but` its pods leave nothing, others than `only` go on.

        The head writes down in which boot each member came: that in which it was when the group
        began, or, `came_late`, that in which it is now.
        """
        job = job or self.group()
        self.kubelet.start()
        placed = [p for p in self.pods(job) if p["spec"].get("nodeName")]
        names = [str(p["spec"]["nodeName"]) for p in placed]
        began = {row["node"]: str(row["boot_id"]) for row in json.loads(told(job, "members"))}
        now = {name: boot_of(self.node(name)) for name in names}
        left = left_together(job, {n: (now if came_late else began)[n] for n in names}, change)
        for pod, name in zip(placed, names, strict=True):
            if only and name != only:
                continue
            if name not in but and cleared(left)[name] == "accept":
                self.passed.add((name, job["metadata"]["name"]))
            self._end(job, pod["metadata"]["name"], (137, "", "") if name in but else left)
        if not only:
            self.kubelet.end_job(job, failed=bool(left[0] or but), reason="FailedIndexes")
        return job

    def _end(self, job: dict[str, Any], pod: str, left: Left) -> None:
        code, message, log = left
        self.store.logs[pod] = log
        self.kubelet.end_pod(pod, code, message, image=told(job, "image").rpartition("@")[2])

    # --- how it stands ----------------------------------------------------------------------

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(f"{NODES}/{name}")
        return found

    def alone(self) -> list[dict[str, Any]]:
        """The tests of single nodes that go on."""
        jobs = self.store.objects("jobs")
        return [j for j in jobs if _called(j) == "nodeproof" and not ended(j)]

    def groups(self) -> list[dict[str, Any]]:
        """All Jobs of groups, in the order they were made."""
        return [j for j in self.store.objects("jobs") if _called(j) == LABEL]

    def group(self) -> dict[str, Any]:
        """The one that goes on."""
        [job] = [j for j in self.groups() if not ended(j)]
        return job

    def pods(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        uid = job["metadata"]["uid"]
        return [
            p
            for p in self.store.objects("pods")
            if any(o["uid"] == uid for o in p["metadata"].get("ownerReferences") or [])
        ]

    def said(self, name: str) -> tuple[str, str, str]:
        found = condition(self.node(name))
        return (found["status"], found["reason"], found["message"]) if found else ("", "", "")

    def reasons(self) -> dict[str, str]:
        """What the condition of each node gives as its reason."""
        return {
            n["metadata"]["name"]: self.said(n["metadata"]["name"])[1]
            for n in self.store.objects("nodes")
        }

    def unproved(self) -> list[str]:
        """The nodes that the scheduler may use, and that have not passed what lifted them."""
        wrong = []
        for name in self.free():
            told = json.loads(self.node(name)["metadata"]["annotations"].get(NAMES.verdict, "{}"))
            jobs = {(name, told.get("job")), (name, told.get("group"))}
            if not jobs <= self.passed:
                wrong.append(name)
        return wrong

    def free(self) -> str:
        """The names of the nodes that the scheduler may use, in one word."""
        return "".join(
            n["metadata"]["name"]
            for n in self.store.objects("nodes")
            if not {NAMES.pending, NAMES.quarantined} & {t["key"] for t in n["spec"]["taints"]}
        )


def members(job: dict[str, Any]) -> str:
    """The names of a group's nodes, sorted, in one word."""
    return "".join(sorted(row["node"] for row in json.loads(told(job, "members"))))


def _called(found: dict[str, Any]) -> str:
    return str((found["metadata"].get("labels") or {}).get("app.kubernetes.io/name"))


@contextmanager
def living(**settings: Any) -> Iterator[Life]:
    with serving(store := Store(clock=(clock := Clock()))) as server:
        life = Life(server, store, clock, **settings)
        try:
            yield life
        finally:
            life.close()


def outcome(life: Life) -> dict[str, Any]:
    """How it stands: everything that a scene has to come to, whatever came between."""
    [state] = life.store.objects("configmaps")
    return {
        "nodes": {
            n["metadata"]["name"]: {
                "taints": sorted(t["key"] for t in n["spec"]["taints"]),
                "notes": n["metadata"]["annotations"],
                "said": life.said(n["metadata"]["name"]),
            }
            for n in life.store.objects("nodes")
        },
        "jobs": sorted(j["metadata"]["name"] for j in life.store.objects("jobs")),
        # An accept is written down only by a controller that has heard of a reject of its kind.
        "rulings": sorted(
            (r["node_uid"], r["reason"])
            for r in json.loads(state["data"]["rulings"])
            if not r["accepted"]
        ),
    }
