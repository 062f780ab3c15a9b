"""A node whose driver says what a scenario says, asked through the real binding in a real worker."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call, Pool
from nodeproof.model import Device, DeviceKind
from nodeproof.plugin.selftesting import concluded, planted_in_answer
from tests.standin.build import build, judged

SCENARIOS = Path(__file__).parent.parent / "scenarios"


@contextmanager
def standing(factory) -> Iterator[Node]:
    """A node to ask, ended afterwards; `factory` makes its folders."""
    libraries = factory.mktemp("driver")
    build("nvml.c", libraries / "libnvidia-ml.so.1")
    node = Node(libraries, factory.mktemp("node"))
    try:
        yield node
    finally:
        node.close()


class Node:
    """One worker for all questions; the driver reads its scenario anew at each call."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        self.told = folder / "scenario.txt"
        self.steps: list[str] = []
        self._pool = Pool(ends=time.monotonic() + 600, logs=folder, listen=self._listen)
        environment = {"LD_LIBRARY_PATH": str(libraries), "STANDIN_SCENARIO": str(self.told)}
        self._pool.add("gpu", environment)

    def _listen(self, _worker, kind, content) -> None:
        if kind == "progress":
            self.steps.append(content["step"])

    def close(self) -> None:
        self._pool.close(grace_s=0.5)

    def says(self, *scenarios, also="") -> Node:
        """Lay scenarios over each other, the last on top, and the lines of a test over them."""
        texts = [(SCENARIOS / f"{name}.txt").read_text() for name in scenarios]
        self.told.write_text("\n".join([*texts, also]) + "\n")
        return self

    @property
    def uuids(self) -> list[str]:
        lines = self.told.read_text().splitlines()
        return next(line for line in lines if line.startswith("gpus="))[5:].split()

    def reply(self, call, *, gpu=0, args=None, deadline_s=30, host_root="/"):
        context = {
            "device_kind": "gpu",
            "device_id": self.uuids[gpu],
            "device_label": f"gpu{gpu}",
            "torch_device": "",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": 7,
            "host_root": str(host_root),
            "group": None,
        }
        work = Call(call=call, args=args or {}, context=context)
        return self._pool.run({"gpu": work}, deadline_s=deadline_s)["gpu"]

    def answer(self, call, *, gpu=0, args=None, host_root="/"):
        reply = self.reply(call, gpu=gpu, args=args, host_root=host_root)
        assert isinstance(reply, Answer), reply
        return dict(reply.result)

    def judged(self, check, *, gpu=0, limits=None, args=None):
        """What a check makes of a GPU, with the others for its peers if it looks at them."""
        result, peers = self._results(check, gpu, args)
        return judged(check, result, limits, peers, _device(self.uuids[gpu]))

    def selftest(self, check, *, gpu=0, limits=None, args=None):
        """Feed the check its own plants on this GPU's answer, as every run does."""
        result, peers = self._results(check, gpu, args)
        spec = spec_of(check)

        def attempt(answer):
            return judged(check, answer, limits, peers, device)[0]

        device = _device(self.uuids[gpu])
        trials = [planted_in_answer(spec, plant, result, attempt) for plant in spec.plants]
        return concluded(spec, device, trials, attempt(result).bounded)

    def _results(self, check, gpu, args):
        call = spec_of(check).work.call
        if call.endswith(":heat"):
            args = {"pause_s": 0.0}
        looks = "peers" in inspect.signature(check).parameters
        others = [n for n in range(len(self.uuids)) if n != gpu and looks]
        peers = [(_device(self.uuids[n]), self.answer(call, gpu=n)) for n in others]
        return self.answer(call, gpu=gpu, args=args), peers


def _device(uuid):
    return Device(kind=DeviceKind.GPU, id=uuid, label=uuid)
