"""Scenes from a node's life with a controller that may be killed at any request, and how they end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gate_cluster import (
    DIGEST,
    GPU,
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
)
from gate_evidence import evidence

from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Gone, Kube, Refused
from tests.apiserver.server import Server, serving
from tests.apiserver.store import NODES, Store

NODE = f"{NODES}/a"
FIRST, SECOND = "boot-1", "boot-2"
Scene = Callable[["Life"], None]


class Life:
    """One cluster of one node. `settle` goes through as many controllers as are killed."""

    def __init__(self, server: Server, store: Store) -> None:
        self.server, self.store = server, store
        self.kubelet = Kubelet(store)
        self.disturbed = False  # since the last look
        self.kill = False  # after the look, by whoever interferes
        self.controllers: list[Controller] = []

    def controller(self) -> Controller:
        """Start one more; as often as it takes, as a Deployment does."""
        for _ in range(5):
            made = Controller(
                Kube(self.server.client()), SETTINGS, SPEC, MANIFEST, clock=self.store.clock
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
        for controller in self.controllers:
            controller.stop()

    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(NODE)
        return found

    def settle(self, *others: Controller) -> None:
        """Look until nothing moves any more, with `others` in turn where there are several."""
        turn = 0
        quiet = 0
        while quiet <= len(others):
            assert turn < 40, "the gate does not come to rest"
            everybody = [*others] or self.controllers[-1:] or [self.controller()]
            before = self.store.version
            self.disturbed = False
            self.look(everybody[turn % len(everybody)])
            turn += 1
            if self.kill:
                self.kill = False
                self.controllers.pop().stop()
                self.disturbed = True
            quiet = quiet + 1 if self.store.version == before and not self.disturbed else 0

    def look(self, controller: Controller) -> None:
        """Let a controller see everything there is, then look."""
        for kind, cache in controller.caches.items():
            wanted = {
                o["metadata"]["uid"]: o["metadata"]["resourceVersion"]
                for o in self.store.objects(kind)
            }
            deadline = time.monotonic() + 30
            while cache.known() != wanted:
                assert time.monotonic() < deadline, f"{kind}: {cache.known()} is not {wanted}"
                time.sleep(0.001)
        controller.look(self.node()["metadata"]["uid"])

    # --- what happens to the node -----------------------------------------------------------

    def arrive(self) -> None:
        put_node(
            self.store,
            "a",
            metadata={"uid": "uid-a", "annotations": {"other.example.com/x": "1"}},
            status={"nodeInfo": {"bootID": FIRST}},
            spec={"taints": [GPU, PENDING]},
        )

    def serve(self) -> None:
        """Arrive as it stands after an accept."""
        said = {"type": NAMES.accepted, "status": "True", "reason": "AllChecksPassed"}
        said |= {
            "message": f"boot {FIRST}; 9 checks passed",
            "lastHeartbeatTime": self.store.stamp(),
        }
        self.arrive()

        def done(n: dict[str, Any]) -> None:
            n["spec"]["taints"] = [GPU]
            n["metadata"]["annotations"][NAMES.accepted_boot] = FIRST
            n["status"]["conditions"].append(said)

        self.store.change(NODE, done)

    def ask(self, word: str) -> None:
        self.store.change(
            NODE, lambda n: n["metadata"]["annotations"].update({NAMES.requalify: word})
        )

    def suspect(self) -> None:
        row = {"type": "NodeproofSuspect", "status": "True", "reason": "GpuFaultSeen"}
        row |= {"message": "GPU x: xid 79", "lastTransitionTime": self.store.stamp()}
        self.store.change(NODE, lambda n: n["status"]["conditions"].append(row))

    def reboot(self) -> None:
        self.store.change(NODE, lambda n: n["status"]["nodeInfo"].update(bootID=SECOND))

    def running(self) -> dict[str, Any]:
        [job] = [j for j in self.store.objects("jobs") if not ended(j)]
        return job

    def run(self, how: str) -> None:
        """The test that was started runs, and ends."""
        self.kubelet.start()
        job, node = self.running(), self.node()
        boot = node["status"]["nodeInfo"]["bootID"]
        message, log = evidence(how, job, node, boot)
        name = f"{job['metadata']['name']}-pod"
        self.store.logs[name] = log
        code = {"accept": 0, "reject": 10, "undecided": 11}[how]
        state = {"terminated": {"exitCode": code, "message": message}}
        row = {"name": CONTAINER, "imageID": f"registry.example.com/x@{DIGEST}", "state": state}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [row]}
        self.store.change(f"{PODS}/{name}", lambda p: p.update(status=status))
        self.kubelet.end_job(job, failed=code != 0)


def accepted(life: Life) -> None:
    life.arrive()
    life.settle()
    life.run("accept")
    life.settle()


def rejected_then_asked_for(life: Life) -> None:
    life.arrive()
    life.settle()
    life.run("reject")
    life.settle()
    life.ask("again")
    life.settle()
    life.run("accept")
    life.settle()


def asked_for_then_rejected(life: Life) -> None:
    life.serve()
    life.ask("look")
    life.settle()
    life.run("reject")
    life.settle()


def rebooted(life: Life) -> None:
    life.serve()
    life.reboot()
    life.settle()
    life.run("accept")
    life.settle()


def suspected(life: Life) -> None:
    life.serve()
    life.suspect()
    life.settle()
    life.run("accept")
    life.settle()


SCENES: dict[str, Scene] = {
    "accepted": accepted,
    "rejected, then asked for": rejected_then_asked_for,
    "asked for, then rejected": asked_for_then_rejected,
    "rebooted": rebooted,
    "suspected": suspected,
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def living() -> Iterator[Life]:
    with serving(store := Store(clock=Clock())) as server:
        life = Life(server, store)
        try:
            yield life
        finally:
            life.close()


def outcome(life: Life) -> dict[str, Any]:
    """How it stands: everything that a scene has to come to, whatever came between."""
    node, said = life.node(), condition(life.node())
    jobs = [j["metadata"] for j in life.store.objects("jobs")]
    [state] = life.store.objects("configmaps")
    rulings = json.loads(state["data"]["rulings"])
    return {
        "taints": sorted((t["key"], t["effect"]) for t in node["spec"]["taints"]),
        "notes": node["metadata"]["annotations"],
        "said": said and (said["status"], said["reason"], said["message"]),
        "jobs": sorted(j["name"] for j in jobs),
        "rulings": sorted((r["node_uid"], r["accepted"], r["reason"]) for r in rulings),
        # "Accepted" follows the lift: a controller that dies between them takes it along.
        "warnings": sorted(
            (e["reason"], e["message"])
            for e in life.store.objects("events")
            if e["type"] == "Warning"
        ),
    }
