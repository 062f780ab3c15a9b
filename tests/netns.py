"""Network namespaces as hosts: a bridge between them, links of one rate, and ways to harm them.

Each host is a namespace with one interface, `eth0`, whose other end hangs on a bridge in a
namespace of its own, so that the machine's own network is never touched. Both ends of each link
have a token bucket, which limits what the host sends and what it receives.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import need

MBIT = 100.0  # of a link, each way: so little that two busy cores are not what limits it
_PREFIX = "np"
_NAMES = Path("/run/netns")  # where iproute2 keeps them
_FILES = Path("/etc/netns")  # what a namespace sees in place of files of /etc
_LIMIT = "burst 64kb latency 100ms"  # fabric.md: the settings the experiments were made with
_made = itertools.count()


class RefusedError(RuntimeError):
    """The kernel or iproute2 would not do it. Says what, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Hosts 0 to `size - 1`, of which each reaches all others."""

    stem: str
    size: int

    def name(self, host: int) -> str:
        """The namespace of a host."""
        return f"{self.stem}-{host}"

    def address(self, host: int) -> str:
        """The IPv4 address of a host; no two networks see each other, so all have the same."""
        return f"10.77.0.{host + 1}"

    def slow(self, host: int, mbit: float) -> None:
        """Limit what a host sends and what it receives, in Mbit/s."""
        self.slow_sending(host, mbit)
        _tc(self._hub, f"qdisc replace dev v{host} root tbf rate {mbit}mbit {_LIMIT}")

    def slow_sending(self, host: int, mbit: float) -> None:
        """Limit what a host sends alone, in Mbit/s."""
        _tc(self.name(host), f"qdisc replace dev eth0 root tbf rate {mbit}mbit {_LIMIT}")

    def cut(self, host: int) -> None:
        """Take a host's link down at the switch: all that is sent to or by it is lost unsaid."""
        _ip(self._hub, f"link set v{host} down")

    def mend(self, host: int) -> None:
        """Take the link up again."""
        _ip(self._hub, f"link set v{host} up")

    def carried(self, host: int) -> tuple[int, int]:
        """Bytes that a host's link has brought it, and that it has taken from it."""
        of = f"ip netns exec {self.name(host)} cat"
        names = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("rx", "tx")]
        received, sent = _done([*of.split(), *names]).split()
        return int(received), int(sent)

    def run(
        self, host: int, words: Sequence[object], environment: Mapping[str, str], **how: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host; its id is that of the command itself."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name(host), *map(str, words)],
            env={**os.environ, **environment},
            **how,
        )

    def processes(self, host: int) -> list[int]:
        """Ids of all processes that live on a host."""
        return [int(pid) for pid in _done(["ip", "netns", "pids", self.name(host)]).split()]

    @property
    def _hub(self) -> str:
        return f"{self.stem}-hub"


@contextlib.contextmanager
def network(size: int, *, mbit: float = MBIT) -> Iterator[Network]:
    """Make hosts whose links carry `mbit` Mbit/s each way; whatever happens, nothing of them stays.

    Skips the test, and fails it in CI, where the machine has no such namespaces or limits.
    """
    _sweep()
    made = Network(stem=f"{_stem(os.getpid())}-{next(_made)}", size=size)
    try:
        try:
            _build(made, mbit)
        except RefusedError as refusal:
            need(there=False, what=f"network namespaces, veth and tc tbf, as root ({refusal})")
        yield made
    finally:
        _remove(made.stem)


def _build(made: Network, mbit: float) -> None:
    hub = f"{made.stem}-hub"
    _done(["ip", "netns", "add", hub])
    _ip(hub, "link add br0 type bridge")
    _ip(hub, "link set br0 up")
    hosts = "".join(f"{made.address(i)} host{i}\n" for i in range(made.size))
    for host in range(made.size):
        name = made.name(host)
        # Without these, who looks up the name of an address waits half a minute for a server.
        files = _FILES / name
        files.mkdir(parents=True, exist_ok=True)
        (files / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{hosts}")
        _done(["ip", "netns", "add", name])
        _ip(hub, f"link add v{host} type veth peer name eth0 netns {name}")
        _ip(hub, f"link set v{host} master br0 up")
        _ip(name, f"address add {made.address(host)}/24 dev eth0")
        _ip(name, "link set eth0 up")
        _ip(name, "link set lo up")
        made.slow(host, mbit)


def _ip(name: str, words: str) -> None:
    _done(["ip", "-n", name, *words.split()])


def _tc(name: str, words: str) -> None:
    _done(["tc", "-n", name, *words.split()])


def _done(words: Sequence[str]) -> str:
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{' '.join(words)}: {error}") from error
    if ran.returncode:
        raise RefusedError(f"{' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout


# --- leaving nothing behind -------------------------------------------------------------------


def _stem(pid: int) -> str:
    """What the namespaces of a process are called: its id, and when it was born."""
    try:
        born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        born = "gone"
    return f"{_PREFIX}{pid}-{born}"


def _sweep() -> None:
    """Remove what processes left that were killed before they could."""
    for name in _leftovers(f"{_PREFIX}*-*-*-*"):
        stem, number, _ = name.rsplit("-", 2)
        pid = stem.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and stem != _stem(int(pid)):
            _remove(f"{stem}-{number}")


def _remove(stem: str) -> None:
    """End what lives in these namespaces, and remove them."""
    for name in _leftovers(f"{stem}-*"):
        for pid in _inside(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ends = time.monotonic() + 10
        while _inside(name) and time.monotonic() < ends:
            time.sleep(0.01)
        with contextlib.suppress(RefusedError):
            _done(["ip", "netns", "delete", name])
        shutil.rmtree(_FILES / name, ignore_errors=True)


def _leftovers(pattern: str) -> set[str]:
    return {path.name for where in (_NAMES, _FILES) for path in where.glob(pattern)}


def _inside(name: str) -> list[int]:
    """Processes in a namespace that are not dead already."""
    with contextlib.suppress(RefusedError):
        pids = _done(["ip", "netns", "pids", name]).split()
        return [int(pid) for pid in pids if _state(pid) not in {"Z", "X", ""}]
    return []


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
