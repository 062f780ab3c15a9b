"""What happens to a node beside the gate: its kubelet, its cloud, and everybody who writes to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from gate_cluster import GPU, NAMES, PENDING, Kubelet, put_node

from nodeproof.gate.plan import Tenant
from tests.apiserver.store import NODES, Status, Store

NODE = f"{NODES}/a"
BLOCKING = (
    ("karpenter.sh/unregistered", "NoExecute"),
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
)


class Others:
    """A cluster of one GPU node, and those who change it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.store = Store(clock=lambda: self.now)
        self.kubelet = Kubelet(self.store)
        self.boot = ""  # of the machine, whatever the API says of it
        self.tenants: tuple[Tenant, ...] = ()  # these three a look is told beside what the API says
        self.breaker = ""
        self.devices = ""
        self._words = itertools.count(1)
        self._made(put_node(self.store, "a"))

    def _made(self, node: dict[str, Any]) -> None:
        self.boot = node["status"]["nodeInfo"]["bootID"]

    def raw(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(NODE)
        return found

    def there(self) -> dict[str, Any] | None:
        try:
            return self.raw()
        except Status:
            return None

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

    def suspect(self, status: str) -> None:
        """A monitor says, from now on, what it thinks of the node."""
        row = {"type": "NodeproofSuspect", "status": status, "reason": "GpuFaultSeen"}
        row |= {"message": "GPU x: xid 79", "lastTransitionTime": self.store.stamp()}

        def say(n: dict[str, Any]) -> None:
            rows = n["status"]["conditions"]
            n["status"]["conditions"] = [c for c in rows if c["type"] != row["type"]] + [row]

        self.now += 1  # of two suspicions one is the later
        self.change(say)

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
