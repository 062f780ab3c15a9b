"""Stand-ins for what only a GPU node or a root shell has: shared libraries built from C."""

from __future__ import annotations

import inspect
import shutil
import subprocess
from pathlib import Path

from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call, Pool
from nodeproof.plugin.judging import Judgement, Measurements, judge

HERE = Path(__file__).parent
GPUS = (
    "GPU-5a4f3c2b-0001-4e6f-8a9b-c0d1e2f3a4b5",
    "GPU-5a4f3c2b-0002-4e6f-8a9b-c0d1e2f3a4b5",
)


def build(source: str, library: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, (
        "these tests need a C compiler: they build stand-ins for the driver's libraries"
    )
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", library, HERE / source], check=True)
    return library


class Driver:
    """A driver without a GPU: its libraries, and a machine on whose bus the GPUs are."""

    def __init__(self, libraries: Path, root: Path, pool: Pool, context) -> None:
        self.root = root
        self._environment = {"LD_LIBRARY_PATH": str(libraries)}
        self._pool = pool
        self._context = context
        self._workers = 0

    def run(self, call, *, deadline_s=30, device="node", host_root=None, args=None, **plan):
        """Run one work function in a worker that loads these libraries, told what `plan` says."""
        self._workers += 1
        name = f"w{self._workers}"
        told = {key if "VISIBLE" in key else f"STANDIN_{key}": text for key, text in plan.items()}
        self._pool.add(name, {**self._environment, **told})
        calls = {name: self.call_of(call, device=device, host_root=host_root, args=args)}
        return self._pool.run(calls, deadline_s=deadline_s)[name]

    def call_of(self, call, *, device="node", host_root=None, args=None):
        context = self._context(device_id=device, host_root=str(host_root or self.root))
        return Call(call=call, args=args or {}, context=context)

    def answer(self, call, **more):
        reply = self.run(call, **more)
        assert isinstance(reply, Answer), reply
        return dict(reply.result)


def put_gpu(
    root: Path,
    address: str,
    *,
    vendor="0x10de",
    kind="0x030200",
    head=b"\xde\x10\x30\x23",
    **attributes,
):
    """A device on the bus of a machine made of files."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    texts = {
        "vendor": vendor,
        "class": kind,
        "device": "0x2330",
        "numa_node": "1",
        "current_link_width": "16",
        "max_link_width": "16",
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        **attributes,
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")
    (folder / "config").write_bytes(head + bytes(60))


def planted(check, result):
    """The answer with the first of the check's own faults in it."""
    return spec_of(check).plants[0].alter(result)


def judged(
    check, result, limits=None, peers=(), device=None
) -> tuple[Judgement, dict[str, object]]:
    """What a check makes of an answer: the judgement, and the broken measurements by name."""
    spec, measure, raised = spec_of(check), Measurements(), None
    given = {"result": result, "measure": measure}
    more = {"peers": list(peers), "device": device}
    given |= {name: more[name] for name in inspect.signature(check).parameters if name in more}
    if "limits" in inspect.signature(check).parameters:
        given["limits"] = limits or spec.limits()
    try:
        check(**given)
    except Exception as error:  # noqa: BLE001  as the plugin does: what was raised decides
        raised = error
    return judge(spec, measure.taken, raised), {m.name: m for m in measure.taken if not m.held}
