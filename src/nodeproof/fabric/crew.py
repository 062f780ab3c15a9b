"""The workers of one member: a process for each of its devices, and one for the node itself."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeproof import autopsy
from nodeproof.child import Answer, Call, Lost, Pool, Raised, Reply
from nodeproof.model import COMPUTE, Device, DeviceKind
from nodeproof.nccl_tests import logs
from nodeproof.results import device_from

NODE = "node"  # the worker for what is about no single device
FOLDER = "@folder"  # an argument: where the workers of this member leave their logs
_ENUMERATE = "nodeproof.probes.devices:enumerate_devices"
_VERSIONS = "nodeproof.probes.software:versions"
# NVLink, PCIe and shared memory are not to be taken, by NCCL nor by libfabric's EFA provider.
_LOOPBACK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
_DEAD = frozenset({"", "Z", "X"})
_ASK_S = 90.0  # loading CUDA's libraries can take long on a node that has just come up


class NoDeviceError(Exception):
    """There is nothing here to measure. Says why, and what to do."""


class Crew:
    """Processes that do what the head asks of this member.

    `provider` is the network that the spec expects between nodes, "" without a word: NCCL then
    fails rather than take another. `alone`: the devices of this node have only each other, and are
    made to send over its network. Raises `NoDeviceError` where the node shows no device under test.
    """

    def __init__(
        self,
        *,
        device: str,
        cpu_devices: int,
        host_root: Path,
        seconds: float,
        provider: str,
        alone: bool,
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="nodeproof-")
        self.folder = Path(self._scratch.name)
        self._host_root = host_root
        self._provider = provider
        self._alone = alone
        self.pool = Pool(ends=time.monotonic() + seconds, logs=self.folder, listen=lambda *_: None)
        self.pool.add(NODE)
        self.devices: tuple[Device, ...] = ()
        self._used: dict[str, int] = {}  # process of each worker that has done something
        asked = {"device": device, "cpu_devices": cpu_devices}
        found = self._ask(_ENUMERATE, asked)
        self.devices = tuple(device_from(row) for row in found.get("devices", []))
        if not self.devices or any(d.kind not in COMPUTE for d in self.devices):
            self.close()
            why = found.get("says") or "no device was found"
            raise NoDeviceError(f"{why}; --device cpu rehearses without a GPU")
        for each in self.devices:
            self.pool.add(each.label, self._environment(each))
        self.software = self._ask(_VERSIONS, {"device": device}).get("versions", {})

    def do(self, calls: Mapping[str, Mapping[str, Any]], *, seed: int, deadline_s: float) -> Any:
        """Do these calls at once; return by worker its `answer`, or what is `said` of it instead.

        `type` is what it raised, or "Lost" for a worker that died or hung; it is started anew by its
        next call.
        """
        known = {NODE, *(d.label for d in self.devices)}
        if strange := sorted(set(calls) - known):
            return {name: {"said": f"there is no worker {name!r} here"} for name in strange}
        whole = {
            name: Call(
                call=c["call"],
                args={k: str(self.folder) if v == FOLDER else v for k, v in c["args"].items()},
                context=self._context(name, c, seed),
            )
            for name, c in calls.items()
        }
        replies = self.pool.run(whole, deadline_s=deadline_s)
        self._used |= {name: self.pool.pid(name) for name in calls if self.pool.pid(name)}
        failed = [name for name, reply in replies.items() if not isinstance(reply, Answer)]
        # After a broken meeting a communicator may be left in any state.
        self.pool.retire([name for name in failed if name != NODE])
        for name in failed:
            self._used.pop(name, None)
        return {name: _told(reply) for name, reply in replies.items()}

    def deaths(self) -> list[str]:
        """Say of each worker that has died since it was last used, with nothing to do: each once."""
        found = []
        for name, pid in list(self._used.items()):
            if autopsy.state(pid) in _DEAD:
                del self._used[name]
                found.append(f"{name}: worker {name} (process {pid}) died with nothing to do")
        return found

    def close(self) -> list[str]:
        """End all workers; return a sentence for each that will not go."""
        left = self.pool.close(grace_s=1.0)
        self._scratch.cleanup()
        return left

    def _ask(self, call: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        context = self._context(NODE, {}, 0)
        reply = self.pool.run(
            {NODE: Call(call=call, args=args, context=context)}, deadline_s=_ASK_S
        )[NODE]
        return reply.result if isinstance(reply, Answer) else {"says": _said(reply)}

    def _environment(self, device: Device) -> dict[str, str]:
        environment = {"OMP_NUM_THREADS": str(self._threads())}
        if device.kind is DeviceKind.GPU:
            # By UUID, so that the worker sees this GPU and no other, whatever its index.
            environment["CUDA_VISIBLE_DEVICES"] = device.id
            environment |= logs.environment(str(self.folder)) | logs.required(self._provider)
            environment |= _LOOPBACK if self._alone else {}
        return environment

    def _threads(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // max(1, len(self.devices)))

    def _context(self, name: str, call: Mapping[str, Any], seed: int) -> dict[str, Any]:
        device = next((d for d in self.devices if d.label == name), None)
        torch_device = ""
        if device is not None:
            torch_device = "cuda:0" if device.kind is DeviceKind.GPU else "cpu"
        return {
            "device_kind": device.kind.value if device else "",
            "device_id": device.id if device else "",
            "device_label": name if device else "",
            "torch_device": torch_device,
            "threads": self._threads(),
            "peers": max(1, len(self.devices)),
            "profile": "quick",
            "seed": seed,
            "host_root": str(self._host_root),
            "group": call.get("group"),
            "facts": dict(device.facts) if device else {},
        }


def _told(reply: Reply) -> dict[str, Any]:
    match reply:
        case Answer(result=result):
            return {"answer": dict(result)}
        case Lost():
            return {"said": _said(reply), "type": "Lost"}
        case Raised(type=kind):
            return {"said": _said(reply), "type": kind}


def _said(reply: Reply) -> str:
    match reply:
        case Lost(text=text):
            return text
        case Raised(type=kind, message=message):
            return f"{kind}: {message}"
        case Answer():
            return ""
