"""Fixtures of our own tests: real processes, real control groups, real runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeproof.child import Pool

TESTS = Path(__file__).parent


def need(*, there: bool, what: str) -> None:
    """Skip where a machine lacks something; in CI nothing may be lacking."""
    if there:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI has to have {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture
def context() -> Callable[..., dict[str, object]]:
    """The context of a piece of work on a CPU device, with what the test says otherwise."""

    def build(**more: object) -> dict[str, object]:
        return {
            "device_kind": "cpu",
            "device_id": "cpu0",
            "device_label": "cpu0",
            "torch_device": "cpu",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": 7,
            "host_root": "/",
            "group": None,
            **more,
        }

    return build


@pytest.fixture
def heard() -> list[tuple[str, str, dict[str, object]]]:
    """What the workers of `pool` said beside their answers."""
    return []


@pytest.fixture
def pool(tmp_path: Path, heard: list[tuple[str, str, dict[str, object]]]) -> Iterator[Pool]:
    """A pool whose workers can import the stand-in work of these tests."""
    logs = tmp_path / "logs"
    logs.mkdir()
    made = Pool(
        ends=time.monotonic() + 120,
        logs=logs,
        listen=lambda worker, kind, content: heard.append((worker, kind, dict(content))),
    )
    yield made
    made.close(grace_s=0.5)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A version 1 freezer group: what is frozen in it no signal can end."""
    root = Path("/sys/fs/cgroup/freezer")
    need(there=(root / "cgroup.procs").exists() and os.geteuid() == 0, what="a cgroup v1 freezer")
    group = root / f"nodeproof-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    _remove(group)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory control group of 256 MiB; write a process id into its `cgroup.procs`."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    old = (v1 / "cgroup.procs").exists()
    need(
        there=os.geteuid() == 0 and (old or (v2 / "cgroup.subtree_control").exists()),
        what="a memory control group",
    )
    group = (v1 if old else v2) / f"nodeproof-test-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(256 << 20))
    yield group
    _remove(group)


def _remove(group: Path) -> None:
    ends = time.monotonic() + 20
    while True:
        try:
            group.rmdir()
        except OSError:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
            assert time.monotonic() < ends, f"{group} can't be removed"
            time.sleep(0.05)
        else:
            return
