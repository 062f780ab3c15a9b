"""The machine around the devices: read from files, and judged; every fault planted at its source."""

from __future__ import annotations

import errno
import json
import os
import resource

import pytest

from nodeproof.acceptance import test_host as host
from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call
from nodeproof.model import Cause, Outcome
from tests.standin.build import build, judged

HOST = "nodeproof.probes.host:host"
CHECKS = {
    "cores": host.test_cores,
    "memory": host.test_memory,
    "clock": host.test_clock_source,
    "time": host.test_time_sync,
    "memlock": host.test_memlock,
    "shm": host.test_shm,
    "disk": host.test_disk,
}
LIMITS = {
    "time": host.TimeLimits(max_error_s=16.0),  # whatever this machine's clock is
    "memlock": host.MemlockLimits(mib=0.0),
}
FILES = {
    "proc/self/cgroup": "0::/pod\n",
    "proc/meminfo": "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n",
    "proc/cpuinfo": "processor : 0\nmodel name : Example 9000\nmicrocode : 0x2b\ncpu MHz : 2000.0\n",
    "proc/uptime": "12.5 20.0\n",
    "proc/77/comm": "systemd-timesyn\n",
    "proc/sys/kernel/osrelease": "6.1.0\n",
    "proc/sys/kernel/hostname": "node-1\n",
    "proc/sys/kernel/random/boot_id": "b00t\n",
    "etc/machine-id": "0123456789abcdef\n",
    "sys/devices/system/cpu/online": "0-3,8\n",
    "sys/devices/system/cpu/present": "0-15\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm \n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
}


@pytest.fixture
def machine(tmp_path):
    """A machine made of files; write others into it before it is read."""
    root = tmp_path / "machine"

    def put(files):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    put(FILES)
    return put


@pytest.fixture
def read(pool, context):
    """Call a work function in a worker of its own."""
    count = 0

    def run(call=HOST, *, root="/", environment=None, **args):
        nonlocal count
        count += 1
        pool.add(f"w{count}", environment)
        work = Call(call=call, args=args, context=context(host_root=str(root)))
        reply = pool.run({f"w{count}": work}, deadline_s=30)[f"w{count}"]
        assert isinstance(reply, Answer), reply
        return dict(reply.result)

    return run


@pytest.fixture(scope="session")
def clock(tmp_path_factory):
    return build("clock.c", tmp_path_factory.mktemp("clock") / "clock.so")


def test_this_machine_is_read_whole_and_every_plant_breaks_its_bound(read):
    result = read()
    assert result["unreadable"] == {} or set(result["unreadable"]) <= {"microcode", "machine"}
    for name, check in CHECKS.items():
        judgement, _ = judged(check, result, LIMITS.get(name))
        assert judgement.outcome is Outcome.PASS, (name, judgement)
        for plant in spec_of(check).plants:
            judgement, broken = judged(check, plant.alter(result), LIMITS.get(name))
            told = (judgement.outcome, judgement.cause)
            assert told == (Outcome.FAIL, spec_of(check).cause), name
            assert set(broken) == set(plant.breaks), name


def test_the_files_of_a_node_are_read_where_it_is_mounted(read, machine):
    result = read(root=machine({}))
    assert result["unreadable"] == {}
    assert (result["cores_online"], result["cores_present"]) == (5, 16)
    assert (result["cpu_model"], result["microcode"]) == ("Example 9000", "0x2b")
    assert result["memory_total"] == 64 << 30
    assert result["clock_sources"] == ["tsc", "hpet", "acpi_pm"]
    assert result["boot_id"] == "b00t"
    assert result["huge_pages"] == "madvise"
    assert result["time"]["daemons"] == ["systemd-timesyncd"]
    assert "0123456789abcdef" not in json.dumps(result)


@pytest.mark.parametrize(
    ("files", "cpus", "gib"),
    [
        ({"sys/fs/cgroup/pod/cpu.max": "50000 100000\n"}, 0.5, 64),
        (
            {
                "sys/fs/cgroup/cpu.max": "20000 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "max 100000\n",
            },
            0.2,
            64,
        ),
        (
            {
                "sys/fs/cgroup/pod/memory.max": f"{1 << 30}\n",
                "sys/fs/cgroup/pod/memory.current": "1\n",
            },
            None,
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a/b\n1:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "30000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{2 << 30}\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{1 << 30}\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "1\n",
            },
            0.3,
            2,
        ),
    ],
    ids=["v2", "v2 above", "v2 memory", "v1"],
)
def test_a_control_group_leaves_no_more_than_its_lowest_ceiling(read, machine, files, cpus, gib):
    result = read(root=machine(files))
    assert result["memory_usable"] == gib << 30
    assert result["memory_available"] <= gib << 30
    assert result["memory_total"] == 64 << 30
    judgement, broken = judged(host.test_cores, result)
    if cpus is None:
        assert judgement.outcome is Outcome.PASS
    else:
        assert result["cores_usable"] == cpus
        assert (judgement.outcome, list(broken)) == (Outcome.FAIL, ["usable"])


@pytest.mark.parametrize(
    ("files", "check", "limits"),
    [
        (
            {"proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 1 kB\n"},
            host.test_memory,
            None,
        ),
        (
            {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
            host.test_clock_source,
            None,
        ),
        (
            {"sys/devices/system/cpu/online": "0-2\n"},
            host.test_cores,
            host.CoreLimits(online=4),
        ),
        ({}, host.test_shm, host.ShmLimits(free_mib=1e12)),
        ({}, host.test_disk, host.DiskLimits(output_gib=1e9)),
        ({}, host.test_disk, host.DiskLimits(root_gib=1e9)),
    ],
    ids=["memory", "clock", "cores", "shm", "disk output", "disk root"],
)
def test_a_machine_short_of_what_is_asked_fails_for_its_environment(
    read, machine, files, check, limits
):
    judgement, broken = judged(check, read(root=machine(files)), limits)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert len(broken) == 1


@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("proc/meminfo", host.test_memory),
        ("sys/devices/system/cpu/online", host.test_cores),
        ("proc/self/cgroup", host.test_cores),
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            host.test_clock_source,
        ),
    ],
)
def test_a_file_that_is_not_there_leaves_the_host_unjudged_and_is_named(read, machine, file, check):
    root = machine({})
    (root / file).unlink()
    judgement, _ = judged(check, read(root=root))
    assert judgement.outcome is Outcome.ERROR
    assert str(root / file) in judgement.summary
    assert "--host-root" in judgement.summary


def test_nonsense_in_a_file_is_not_a_number(read, machine):
    result = read(root=machine({"sys/devices/system/cpu/online": "many\n"}))
    assert result["cores_online"] is None
    assert "'many'" in result["unreadable"]["cores_online"]


def test_a_place_that_is_not_there_leaves_its_space_unjudged(read):
    result = read(output="/nowhere/at/all", shm="/nowhere/either")
    for check, where in (
        (host.test_disk, "/nowhere/at/all"),
        (host.test_shm, "/nowhere/either"),
    ):
        judgement, _ = judged(check, result)
        assert judgement.outcome is Outcome.ERROR
        assert where in judgement.summary


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ({"STANDIN_MAXERROR": "25000"}, Outcome.PASS),
        (
            {"STANDIN_MAXERROR": "25000", "STANDIN_UNSYNC": "1"},
            Outcome.PASS,
        ),  # corrected, flag left
        ({"STANDIN_MAXERROR": "16000000", "STANDIN_UNSYNC": "1"}, Outcome.FAIL),
        ({"STANDIN_CLOCK_ERRNO": str(errno.EPERM)}, Outcome.ERROR),
    ],
    ids=["corrected", "corrected without the flag", "free", "refused"],
)
def test_a_clock_is_judged_by_how_far_the_kernel_says_it_may_be_off(read, clock, state, outcome):
    result = read(environment={"LD_PRELOAD": str(clock), **state})
    judgement, _ = judged(host.test_time_sync, result)
    assert judgement.outcome is outcome
    if outcome is Outcome.FAIL:
        assert judgement.cause is Cause.ENVIRONMENT
        assert "unsynchronised" in judgement.summary
        assert judged(host.test_time_sync, result, LIMITS["time"])[0].outcome is Outcome.PASS
    if outcome is Outcome.PASS:
        assert result["time"]["offset_s"] == pytest.approx(2.5e-6)


def test_a_low_limit_on_locked_memory_fails_and_an_unlimited_one_does_not(read):
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        result = read()
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    judgement, broken = judged(host.test_memlock, result)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert broken["memlock"].value == 0.0625
    unlimited = {**result, "memlock_bytes": resource.RLIM_INFINITY}
    limits = host.MemlockLimits(mib=1e6)
    assert judged(host.test_memlock, unlimited, limits)[0].outcome is Outcome.PASS


def test_a_recorded_node_holds_what_was_read_and_nothing_that_names_its_owner(read, machine):
    secret = {"SECRET_TOKEN": "hunter2"}
    root = machine({"proc/stat": "cpu  1 0 0 9 0 0 0 0 0 0\n"})
    result = read("nodeproof.probes.record:files", root=root, environment=secret)
    assert result["files"]["proc/meminfo"] == FILES["proc/meminfo"].strip()
    assert result["files"]["proc/sys/kernel/random/boot_id"] == "b00t"
    assert result["files"]["proc/stat"].startswith("cpu  1 0 0 9")
    assert not [
        path for path in result["files"] if "bus/pci" in path
    ]  # none, and no loss of others
    whole = json.dumps(result)
    for hidden in ("hunter2", "node-1", "0123456789abcdef", os.environ.get("HOME", "/root") + "/"):
        assert hidden not in whole
