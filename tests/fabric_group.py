"""A group of hosts that run `nodeproof fabric run`: start it, harm it, read what it left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from netns import Network, network
from rehearsal import FIVE, NODEPROOF

PORT = 29400
ACCEPT, REJECT, UNDECIDED = 0, 10, 11
_MARK = "NODEPROOF_TEST_GROUP"  # in the environment of everything that a group starts
_JUDGING_S = 60.0  # after the deadline, for the verdict and its files
_LINGER_S = 10.0  # what a killed parent leaves ends by itself, but not at once


class Group:
    """One host for each member; host 0 is the head. Everything is found by the host's number."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        *more: object,
        join_s: float = 60.0,
        timeout_s: float = 30.0,
        deadline_s: float = 400.0,
        environments: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.network, self.folder, self.more = network, folder, more
        self.limits = {"join-timeout": join_s, "timeout": timeout_s, "deadline": deadline_s}
        self.environments = environments or {}
        self.mark = uuid.uuid4().hex
        self.begun = time.monotonic()
        self.members: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, hosts: Iterable[int] | None = None) -> None:
        """Start the members on these hosts; all of them, if nothing else is said."""
        self.begun = time.monotonic()
        for host in range(self.network.size) if hosts is None else hosts:
            with self._log(host).open("wb") as out:
                self.members[host] = self.network.run(
                    host,
                    [*NODEPROOF, "fabric", "run", *self._words(host)],
                    {
                        "NODEPROOF_FABRIC_TOKEN": "word",
                        _MARK: self.mark,
                        **self.environments.get(host, {}),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )

    def finish(self) -> dict[int, int]:
        """Wait for the end of all members, which has to come in time; the exit status of each."""
        within_s = self.limits["deadline"] + _JUDGING_S
        ends = self.begun + within_s
        try:
            for member in self.members.values():
                member.wait(max(0.01, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over within {within_s:g} s:\n{self.told()}") from None
        return {host: member.returncode for host, member in self.members.items()}

    def end(self) -> None:
        """Kill whatever is left of the group."""
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for member in self.members.values():
            member.kill()
            member.wait()

    # --- what goes on -----------------------------------------------------------------------

    def until(self, what: Callable[[], Any], *, seconds: float = 300.0) -> Any:
        """Wait until something is so, and return it; fails where the head ends before."""
        ends = time.monotonic() + seconds
        while not (found := what()):
            over = self.members[0].poll() is not None
            assert not over, f"the head has ended:\n{self.told()}"
            assert time.monotonic() < ends, f"not within {seconds:g} s:\n{self.told()}"
            time.sleep(0.05)
        return found

    def until_head_says(self, text: str) -> None:
        """Wait for a line of the head."""
        self.until(lambda: text in self._log(0).read_text())

    def until_sent(self, host: int, size: int) -> None:
        """Wait until a host has sent `size` bytes from now on: ranks are in the midst of it."""
        before = self.network.carried(host)[1]
        self.until(lambda: self.network.carried(host)[1] - before > size)

    def processes(self, host: int, module: str) -> list[int]:
        """Ids of the processes on a host that were started as `python -P -m MODULE`."""
        found = []
        for pid in self.network.processes(host):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if module.encode() in words:
                    found.append(pid)
        return sorted(found)

    def living(self) -> list[int]:
        """Ids of all processes of this group that are not dead, on whatever host."""
        mark = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in {"Z", "X"}:
                        found.append(int(entry.name))
        return found

    def left_over(self) -> list[str]:
        """Command lines of what is still there some seconds after the end."""
        ends = time.monotonic() + _LINGER_S
        while (pids := self.living()) and time.monotonic() < ends:
            time.sleep(0.1)
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
        return [line.decode(errors="replace") for line in found]

    # --- what it left -----------------------------------------------------------------------

    def output(self, host: int) -> Path:
        """Where a member has its files."""
        return self.folder / f"out-{host}"

    def verdict(self, host: int = 0) -> dict[str, Any]:
        """The verdict that a member wrote."""
        found: dict[str, Any] = json.loads((self.output(host) / "verdict.json").read_text())
        return found

    def record(self) -> dict[str, Any]:
        """What the head wrote down of what was measured."""
        found: dict[str, Any] = json.loads((self.output(0) / "fabric.json").read_text())
        return found

    def missing_files(self, hosts: Iterable[int]) -> list[str]:
        """Files of a run that one of these members did not write."""
        paths = [self.output(host) / name for host in hosts for name in FIVE]
        return [
            f"{path.parent.name}/{path.name}"
            for path in paths
            if not path.is_file() or not path.stat().st_size
        ]

    def blamed(self, host: int = 0) -> set[str]:
        """The members that a verdict rejects; who is only suspected stands in `reasons`."""
        told = self.verdict(host)
        members = {row["id"] for row in told["devices"] if row["kind"] == "member"}
        return {row["device"] for row in told["failed"]} & members

    def reasons(self, host: int = 0) -> str:
        """Everything that a verdict holds against the group, one reason a line."""
        told = self.verdict(host)
        rows = [*told["failed"], *told["undecided"]]
        return "\n".join(f"{row['check']} {row['label']}: {row['text']}" for row in rows)

    def told(self) -> str:
        """What the members printed, for people who look at a test that failed."""
        parts = []
        for host in self.members:
            with contextlib.suppress(OSError):
                parts.append(f"--- host{host}\n{self._log(host).read_text()[-4000:]}")
        return "\n".join(parts)

    def _log(self, host: int) -> Path:
        return self.folder / f"host{host}.log"

    def _words(self, host: int) -> list[object]:
        head = f"{self.network.address(0)}:{PORT}"
        of_all = {"device": "cpu", "cpu-devices": 1, "nodes": self.network.size, "head": head}
        own = {"node-rank": host, "node-name": f"host{host}", "output": self.output(host)}
        both = of_all | own | {"max-bytes": "512KiB"} | self.limits
        return [*(f"--{name}={value}" for name, value in both.items()), *self.more]


@contextlib.contextmanager
def group(folder: Path, size: int, *more: object, **how: Any) -> Iterator[Group]:
    """Make hosts and a group that is to run on them; nothing of either stays."""
    with network(size) as made:
        ours = Group(made, folder, *more, **how)
        try:
            yield ours
        finally:
            ours.end()


def sabotage(folder: Path, code: str) -> dict[str, str]:
    """Environment of a host on which `code` runs in every worker before everything else."""
    folder.mkdir()
    only = "import sys\nif 'nodeproof.worker' in sys.orig_argv:\n"
    (folder / "sitecustomize.py").write_text(
        only + textwrap.indent(textwrap.dedent(code).strip(), "    ") + "\n"
    )
    return {"PYTHONPATH": str(folder)}
