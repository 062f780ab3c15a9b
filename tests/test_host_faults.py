"""Faults of the machine: memory, disks, processors and a kernel that was told to keep quiet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bus_tree import put

from nodeproof.acceptance import test_host_faults as suite
from nodeproof.checks import spec_of
from nodeproof.child import Answer, Call
from nodeproof.model import Cause, Outcome, Remedy
from nodeproof.probes import cores, disks, edac, kernel_command
from nodeproof.probes.tree import Unreadable
from nodeproof.worker import Context
from tests.standin.build import judged

WORK = {
    suite.test_memory_errors: edac.memory_errors,
    suite.test_disks: disks.disks,
    suite.test_alike: cores.cores,
    suite.test_kernel_options: kernel_command.command,
}
MC0 = "sys/devices/system/edac/mc/mc0"
CORE = """\
processor\t: {n}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Example 8480C
stepping\t: {stepping}
microcode\t: {microcode}
cpu MHz\t\t: 2000.{n}
flags\t\t: fpu

"""
ARM = "processor\t: {n}\nCPU implementer\t: 0x41\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,discard,errors=remount-ro
28 27 7:1 / /snap/core ro,nodev - squashfs /dev/loop1 ro
30 27 259:1 /var/lib/kubelet /host ro,relatime - ext4 /dev/nvme0n1p1 rw,discard,errors=remount-ro
31 27 259:2 / /boot ro,relatime - ext4 /dev/nvme0n1p2 ro
"""


def cpus(stepping="8", microcode="0x2b000590", last=None):
    told = [(stepping, microcode)] * 3 + [last or (stepping, microcode)]
    return "".join(CORE.format(n=n, stepping=s, microcode=m) for n, (s, m) in enumerate(told))


@pytest.fixture
def machine(tmp_path):
    """A sound machine with one watched controller, four NVMe disks and an array."""
    files = {
        "proc/meminfo": "MemTotal: 64 kB\nHardwareCorrupted:     0 kB\n",
        "proc/cpuinfo": cpus(),
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1234 ro pci=realloc iommu=pt token=hunter2\n",
        "proc/1/mountinfo": MOUNTS,
        f"{MC0}/mc_name": "Intel_SKX\n",
        f"{MC0}/ue_count": "0\n",
        f"{MC0}/ce_count": "0\n",
        f"{MC0}/dimm0/dimm_label": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n",
        f"{MC0}/dimm0/dimm_location": "channel 0 slot 0\n",
        f"{MC0}/dimm0/dimm_ue_count": "0\n",
        f"{MC0}/dimm0/dimm_ce_count": "0\n",
        "sys/block/nvme0n1/size": "1\n",
        "sys/block/loop0/size": "1\n",
        "sys/block/sda/device/state": "running\n",
        "sys/block/md0/md/array_state": "clean\n",
        "sys/block/md0/md/degraded": "0\n",
        "sys/block/md1/md/array_state": "active\n",
        "sys/fs/ext4/nvme0n1p1/errors_count": "0\n",
        "sys/fs/ext4/features/batched_discard": "supported\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n",
    }
    files |= {f"sys/class/nvme/nvme{n}/state": "live\n" for n in range(4)}
    files |= {f"sys/class/nvme/nvme{n}/transport": "pcie\n" for n in range(4)}

    def make(**more):
        for name, text in (files | more).items():
            put(tmp_path, name, text)
        return tmp_path

    return make


@pytest.fixture
def read(context):
    def run(check, root):
        return WORK[check](Context(**{**context(), "host_root": Path(root)}))

    return run


def sound(check, result, limits=None):
    """It passes, and each bound that it holds is broken by one of the planted faults."""
    told, _ = judged(check, result, limits)
    assert told.outcome is Outcome.PASS, told
    broken = set()
    for plant in spec_of(check).plants:
        ill, names = judged(check, plant.alter(result), limits)
        assert ill.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(names)
        broken |= set(names)
    assert told.bounded <= broken
    return True


@pytest.mark.parametrize("check", WORK)
def test_a_machine_whose_files_are_not_to_be_read_is_not_judged(read, tmp_path, check):
    with pytest.raises(Unreadable):
        read(check, tmp_path)


@pytest.mark.parametrize("check", WORK)
def test_a_sound_machine_passes_and_every_bound_is_broken_by_a_plant(read, machine, check):
    assert sound(check, read(check, machine()))


@pytest.mark.parametrize("check", WORK)
def test_this_machine_passes_through_a_worker(pool, context, check):
    pool.add("w")
    work = Call(call=spec_of(check).work.call, args={}, context=context())
    reply = pool.run({"w": work}, deadline_s=30)["w"]
    assert isinstance(reply, Answer), reply
    assert sound(check, dict(reply.result))


def test_limits_of_a_spec_are_broken_by_the_plants_too(read, machine):
    root = machine()
    many = {
        suite.test_memory_errors: suite.MemoryErrorLimits(controllers=1, corrected=10),
        suite.test_disks: suite.DiskLimits(nvme=4),
        suite.test_alike: suite.ProcessorLimits(
            governors="performance schedutil", microcode="0x2b000590"
        ),
        suite.test_kernel_options: suite.KernelLimits(wanted="iommu=pt pci=realloc"),
    }
    for check, limits in many.items():
        assert sound(check, read(check, root), limits)


# --- memory ---------------------------------------------------------------------------------


def test_an_uncorrected_error_condemns_the_host_and_names_the_module(read, machine):
    root = machine(**{f"{MC0}/ue_count": "1\n", f"{MC0}/dimm0/dimm_ue_count": "1\n"})
    told, broken = judged(suite.test_memory_errors, read(suite.test_memory_errors, root))
    assert (told.outcome, told.cause, told.remedy) == (
        Outcome.FAIL,
        Cause.HARDWARE,
        Remedy.REPLACE,
    )
    assert "CPU_SrcID#0_MC#0_Chan#0_DIMM#0" in broken["uncorrected"].detail
    assert "channel 0 slot 0" in broken["uncorrected"].detail


def test_an_uncorrected_error_of_no_known_module_condemns_too(read, machine):
    result = read(suite.test_memory_errors, machine(**{f"{MC0}/ue_count": "2\n"}))
    _, broken = judged(suite.test_memory_errors, result)
    assert broken["uncorrected"].value == 2
    assert "no module is named" in broken["uncorrected"].detail


def test_corrected_errors_are_shown_and_judged_where_the_spec_asks(read, machine):
    root = machine(**{f"{MC0}/ce_count": "900\n", f"{MC0}/dimm0/dimm_ce_count": "900\n"})
    result = read(suite.test_memory_errors, root)
    assert judged(suite.test_memory_errors, result)[0].outcome is Outcome.PASS
    limits = suite.MemoryErrorLimits(corrected=100)
    told, broken = judged(suite.test_memory_errors, result, limits)
    assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["corrected"])


def test_pages_out_of_use_condemn_also_where_no_controller_counts(read, machine, tmp_path):
    root = machine(**{"proc/meminfo": "MemTotal: 64 kB\nHardwareCorrupted: 4 kB\n"})
    for file in sorted((root / "sys/devices/system/edac").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    result = read(suite.test_memory_errors, root)
    assert result["controllers"] == []
    told, broken = judged(suite.test_memory_errors, result)
    assert (told.cause, list(broken)) == (Cause.HARDWARE, ["taken out"])
    asked = suite.MemoryErrorLimits(controllers=1, taken_out_kib=4.0)
    told, broken = judged(suite.test_memory_errors, result, asked)
    assert (told.cause, list(broken)) == (Cause.ENVIRONMENT, ["controllers"])


@pytest.mark.parametrize("text", ["", "none\n", "-1\n"])
def test_a_counter_that_is_no_number_is_no_zero(read, machine, text):
    with pytest.raises(Unreadable, match="ue_count"):
        read(suite.test_memory_errors, machine(**{f"{MC0}/ue_count": text}))


# --- disks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "broken", "cause"),
    [
        ({"sys/class/nvme/nvme2/state": "dead\n"}, "failed", Cause.HARDWARE),
        ({"sys/block/sda/device/state": "offline\n"}, "failed", Cause.HARDWARE),
        ({"sys/block/sda/device/state": "transport-offline\n"}, "failed", Cause.HARDWARE),
        ({"sys/class/nvme/nvme2/state": "connecting\n"}, "not ready", Cause.ENVIRONMENT),
        ({"sys/class/nvme/nvme2/state": "deleting (no IO)\n"}, "not ready", Cause.ENVIRONMENT),
        ({"sys/class/nvme/nvme2/state": "unknown state\n"}, "not ready", Cause.ENVIRONMENT),
        ({"sys/block/md0/md/degraded": "1\n"}, "degraded arrays", Cause.HARDWARE),
        ({"sys/block/md1/md/array_state": "broken\n"}, "lost arrays", Cause.HARDWARE),
        ({"sys/fs/ext4/nvme0n1p1/errors_count": "7\n"}, "damaged", Cause.ENVIRONMENT),
        (
            {"proc/1/mountinfo": MOUNTS.replace("rw,discard", "ro,discard")},
            "read-only",
            Cause.ENVIRONMENT,
        ),
        (
            {"proc/1/mountinfo": MOUNTS.replace("rw,discard", "rw,emergency_ro")},
            "read-only",
            Cause.ENVIRONMENT,
        ),
        (
            {"proc/1/mountinfo": "27 1 0:40 / / rw - btrfs /dev/sda2 ro,ssd\n"},
            "read-only",
            Cause.ENVIRONMENT,
        ),
    ],
)
def test_each_fault_of_a_disk_is_found_and_named(read, machine, files, broken, cause):
    told, names = judged(suite.test_disks, read(suite.test_disks, machine(**files)))
    assert (told.outcome, told.cause, list(names)) == (Outcome.FAIL, cause, [broken])
    assert names[broken].value == 1
    named = {"read-only": "/ (", "damaged": "nvme0n1p1"}.get(broken)
    assert (named or next(iter(files)).split("/")[2 if "block" in next(iter(files)) else 3]) in (
        names[broken].detail
    )


def test_what_is_read_only_by_design_is_no_fault(read, machine):
    result = read(suite.test_disks, machine())
    assert result["read_only"] == []
    assert result["disks"] == ["nvme0n1", "sda"]


def test_a_disk_of_another_machine_is_no_part_of_this_one(read, machine):
    remote = {"sys/class/nvme/nvme3/transport": "tcp\n", "sys/class/nvme/nvme3/state": "dead\n"}
    result = read(suite.test_disks, machine(**remote))
    assert sorted(result["nvme"]) == ["nvme0", "nvme1", "nvme2"]
    assert judged(suite.test_disks, result)[0].outcome is Outcome.PASS
    told, broken = judged(suite.test_disks, result, suite.DiskLimits(nvme=4))
    assert (told.cause, list(broken)) == (Cause.HARDWARE, ["nvme"])


def test_network_disks_are_not_counted_as_local_ones(read, machine):
    local, remote = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"
    models = {f"sys/class/nvme/nvme{n}/model": f"{local}        \n" for n in (1, 2)}
    root = machine(**models, **{"sys/class/nvme/nvme0/model": remote})
    result = read(suite.test_disks, root)
    limits = suite.DiskLimits(nvme=2, nvme_model=local)
    assert sound(suite.test_disks, result, limits)
    more = suite.DiskLimits(nvme=3, nvme_model=local)
    told, broken = judged(suite.test_disks, result, more)
    assert (told.cause, broken["nvme"].value) == (Cause.HARDWARE, 2)


@pytest.mark.parametrize("line", ["27 1 259:1 /", "27 1 259:1 / / rw - ext4"])
def test_a_line_of_mounts_that_is_cut_short_is_not_passed_over(read, machine, line):
    with pytest.raises(Unreadable, match="mountinfo"):
        read(suite.test_disks, machine(**{"proc/1/mountinfo": MOUNTS + line}))


# --- processors and kernel ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (cpus(last=("8", "0x2b000461")), ["microcodes"]),
        (cpus(last=("7", "0x2b000590")), ["kinds"]),
        (ARM.format(n=0, part="0xd4f") + ARM.format(n=1, part="0xd40"), ["kinds"]),
        (ARM.format(n=0, part="0xd4f") + ARM.format(n=1, part="0xd4f"), []),
    ],
    ids=["microcode", "stepping", "arm64, two parts", "arm64"],
)
def test_processors_that_differ_are_told_apart(read, machine, text, broken):
    result = read(suite.test_alike, machine(**{"proc/cpuinfo": text}))
    told, names = judged(suite.test_alike, result)
    assert list(names) == broken
    if broken:
        assert told.cause is Cause.ENVIRONMENT
        assert "(1)" in names[broken[0]].detail


def test_an_old_microcode_and_a_refused_governor_fail_where_the_spec_asks(read, machine):
    policy = "sys/devices/system/cpu/cpufreq/policy1/scaling_governor"
    result = read(suite.test_alike, machine(**{policy: "powersave\n"}))
    limits = suite.ProcessorLimits(governors="performance", microcode="0x2b000600")
    told, broken = judged(suite.test_alike, result, limits)
    assert (told.outcome, set(broken)) == (Outcome.FAIL, {"governors", "microcode"})
    assert "powersave (1)" in broken["governors"].detail
    bare = {**result, "governors": {}, "microcodes": {}}
    for asked in (
        suite.ProcessorLimits(governors="performance"),
        suite.ProcessorLimits(microcode="0x1"),
    ):
        told, _ = judged(suite.test_alike, bare, asked)
        assert (told.outcome, told.cause) == (Outcome.ERROR, Cause.CONFIG)


@pytest.mark.parametrize("text", ["", "flags : fpu\n", "processor : 0\nflags : fpu\n"])
def test_a_list_of_processors_that_describes_none_is_not_passed(read, machine, text):
    with pytest.raises(Unreadable, match="cpuinfo"):
        read(suite.test_alike, machine(**{"proc/cpuinfo": text}))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("root=/dev/sda1 mce=off", "mce=off"),
        ("pci=realloc,noaer", "pci=noaer"),
        ("pci=realloc pci=noaer", "pci=noaer"),
        ("nomce", "nomce"),
        ("mce=ignore_ce pci=realloc", ""),
        ("root=/dev/sda1 -- mce=off", ""),  # a word for init
        ("mce=offline", ""),
    ],
)
def test_a_kernel_that_was_told_to_keep_quiet_is_not_believed(read, machine, line, refused):
    result = read(suite.test_kernel_options, machine(**{"proc/cmdline": line + "\n"}))
    told, broken = judged(suite.test_kernel_options, result)
    if refused:
        assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.CONFIG)
        assert broken["refused"].detail == refused
    else:
        assert told.outcome is Outcome.PASS


def test_an_option_that_the_spec_wants_and_is_missing_is_named(read, machine):
    result = read(suite.test_kernel_options, machine())
    limits = suite.KernelLimits(wanted="iommu=pt pci=nommconf")
    told, broken = judged(suite.test_kernel_options, result, limits)
    assert (told.cause, broken["wanted"].detail) == (Cause.CONFIG, "pci=nommconf")


def test_no_other_word_of_the_command_line_is_kept(read, machine):
    result = read(suite.test_kernel_options, machine())
    assert "hunter2" not in json.dumps(result)
    assert "1234" not in json.dumps(result)
    assert result["count"] == 6
