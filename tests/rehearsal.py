"""Start real runs and watch them from outside, as an operator or an intruder would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

NODEPROOF = [sys.executable, "-P", "-m", "nodeproof"]
FIVE = ("results.jsonl", "verdict.json", "junit.xml", "report.html", "metrics.prom")

# Little memory, so that a run of the tests fits beside others.
SMALL = """
name = "small-rehearsal"
["device.memory.pattern"]
cpu_share = 0.005
["host.time.sync"]
max_error_s = 16.0
["node.collective.bandwidth"]
all_reduce_gbs = 0.001
all_gather_gbs = 0.001
reduce_scatter_gbs = 0.001
all_to_all_gbs = 0.001
sendrecv_gbs = 0.001
broadcast_gbs = 0.001
["device.burnin.throughput"]
cpu_p5_of_median = 0.06
telemetry_hz = 0.05
["node.burnin.spread"]
cpu_below_median = 0.9
"""


class Rehearsal:
    """One `nodeproof run` in a directory of its own."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        environment: Mapping[str, str] | None = None,
        spec_text: str = SMALL,
        only: str = "",
    ) -> None:
        self.output = folder / "out"
        spec = folder / "small.toml"
        spec.write_text(spec_text)
        self.text = ""
        self.process = subprocess.Popen(
            self._command(spec, more, only),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            text=True,
        )

    def _command(self, spec: Path, more: tuple[str, ...], only: str) -> list[str]:
        options = {"device": "cpu", "spec": spec, "output": self.output}
        if not only:
            return [*NODEPROOF, "run", *(f"--{k}={v}" for k, v in options.items()), *more]
        return [  # a selection, under pytest itself
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-k", only),
            *(f"--nodeproof-{k}={v}" for k, v in options.items()),
            *more,
        ]

    def records(self) -> list[dict[str, Any]]:
        """What the results file holds so far."""
        with contextlib.suppress(OSError):
            data = (self.output / "results.jsonl").read_bytes()
            return [json.loads(line) for line in data.split(b"\n")[:-1]]
        return []

    def wait_for(
        self, what: Callable[[dict[str, Any]], bool], within_s: float = 120.0
    ) -> dict[str, Any]:
        """Return the first record of which `what` is true."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            for record in self.records():
                if what(record):
                    return record
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"not seen; the run says:\n{self.finish()[1]}")

    def wait_for_load(self) -> None:
        """Return when the devices are under the long load."""
        begun = self.wait_for(lambda r: r.get("name") == "check.started" and "burnin" in r["check"])
        self.wait_for(lambda r: "tflops" in r and r["seq"] > begun["seq"])

    def worker(self, label: str, within_s: float = 20.0) -> int:
        """Process id of the worker of a device, by its place in the tree and its log."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:  # it may be about to be started
            for pid in descendants(self.process.pid):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    log = Path(f"/proc/{pid}/fd/1").readlink().name
                    if b"nodeproof.worker" in command and log == f"worker-{label}.log":
                        return pid
            time.sleep(0.02)
        raise AssertionError(f"no worker of {label}")

    def wait_for_memory(self, label: str, size: int) -> int:
        """Return the worker of a device once it holds `size` bytes."""
        begun = self.wait_for(lambda r: r.get("check") == "device.memory.pattern")
        assert begun["name"] == "check.started"
        worker = self.worker(label)
        ends = time.monotonic() + 60
        while int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * 4096 < size:
            assert time.monotonic() < ends
            time.sleep(0.005)
        return worker

    def finish(self, within_s: float = 300.0) -> tuple[int, str]:
        """Wait for the end; return exit status and what was printed."""
        if self.process.stdout and not self.process.stdout.closed:
            try:
                self.text += self.process.communicate(timeout=within_s)[0]
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        return self.process.returncode, self.text

    def findings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By check and label of the device."""
        return {
            (r["check"], r["device"]["label"]): r for r in self.records() if r["type"] == "finding"
        }

    def verdict(self) -> dict[str, Any]:
        """Return verdict.json."""
        told: dict[str, Any] = json.loads((self.output / "verdict.json").read_text())
        return told


def descendants(pid: int) -> Iterator[int]:
    """Yield every process below `pid`."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def leftovers(output: Path) -> list[str]:
    """Command lines of processes of a run that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
                ours = b"nodeproof" in command and b"NODEPROOF_SUPERVISOR=" in environment
                if ours and str(output).encode() in command + environment:
                    found.append(command.decode())
    return found


def stop(process: subprocess.Popen[str]) -> None:
    """Ask a run to end."""
    process.send_signal(signal.SIGTERM)
