"""The fabric manager's journal: its errors carry no tag there, and systemd tells whether it runs."""

from __future__ import annotations

import pytest

from nodeproof.parsers import fabricmanager_log

EXPECTED = {"fabric_manager_expected": True}
NONE_NEEDED = {"fabric_manager_expected": False}
STAMP = "Nov 05 13:55:26 gpu-node-1 "
MANAGER = STAMP + "nv-fabricmanager[104230]: "
SCRIPT = STAMP + "nvidia-fabricmanager-start.sh[104200]: "
SYSTEMD = STAMP + "systemd[1]: "

STARTING = SYSTEMD + "Starting NVIDIA fabric manager service..."
CONNECTED = MANAGER + "Connected to 1 node."
CONFIGURED = (
    MANAGER + "Successfully configured all the available NVSwitches to route GPU NVLink traffic. "
    "NVLink Peer-to-Peer support will be enabled once the GPUs are successfully registered with "
    "the NVLink fabric."
)
STARTED = SYSTEMD + "Started NVIDIA fabric manager service."
STOPPING = SYSTEMD + "Stopping NVIDIA fabric manager service..."
DEACTIVATED = SYSTEMD + "nvidia-fabricmanager.service: Deactivated successfully."
STOPPED = SYSTEMD + "Stopped NVIDIA fabric manager service."
EXITED = (
    SYSTEMD + "nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE"
)
AGAIN = SYSTEMD + "nvidia-fabricmanager.service: Scheduled restart job, restart counter is at 1."
MISMATCH = (
    "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version "
    "550.120. Please update with matching NVIDIA driver package."
)
SOUND = [STARTING, CONNECTED, CONFIGURED, STARTED]
SOUND_NVL5 = [
    STARTING,
    SCRIPT + "Detected NVL5+ system",
    SCRIPT + 'Started "Nvidia NVLink Subnet Manager"',
    STAMP + "OpenSM[31060]: Entering DISCOVERING state",
    STAMP + "OpenSM[31060]: Entering MASTER state",
    MANAGER + "NodeId 0 partition id 57082 is activated.",
    CONFIGURED.replace("NVSwitches", "GPUs and NVSwitches"),
    SCRIPT + 'Started "Nvidia Fabric Manager"',
    SYSTEMD + "Started nvidia-fabricmanager.service - NVIDIA fabric manager service.",
]
HEADING = "● nvidia-fabricmanager.service - NVIDIA fabric manager service"
LOADED = "     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled)"
RUNS = [
    HEADING,
    LOADED,
    "     Active: active (running) since Fri 2025-11-05 13:55:26 UTC; 2h 37min ago",
    "    Process: 2114 ExecStart=/usr/bin/nv-fabricmanager -c /x.cfg (code=exited, status=0/SUCCESS)",
    "   Main PID: 2116 (nv-fabricmanage)",
    "     CGroup: /system.slice/nvidia-fabricmanager.service",
    "             └─2116 /usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg",
    "",
]
DEAD = [HEADING, LOADED, "     Active: inactive (dead)", ""]
BROKEN = [HEADING, LOADED, "     Active: failed (Result: exit-code) since Fri; 5min ago", ""]
OTHER_DEAD = ["○ nvidia-dcgm.service - NVIDIA DCGM service", "     Active: inactive (dead)", ""]


def read(lines, context=None):
    text = "".join(f"{line}\n" for line in lines)
    return fabricmanager_log.read(text.encode(), context or {})


@pytest.mark.parametrize("tag", ["[Jan 14 2026 03:12:45] [ERROR] [tid 2211] ", "[ERROR] "])
def test_a_line_that_runs_into_one_of_the_journal_is_read_all_the_same(tag):
    torn = (
        tag + "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id" + CONFIGURED[8:]
    )
    reading = fabricmanager_log.read(f"{STARTING}\n{torn}\n{STARTED}".encode(), {})
    assert reading.grade == "fail"


@pytest.mark.parametrize(
    "says",
    [
        MISMATCH,
        MISMATCH.replace("don't", "doesn't"),
        "failed to configure request routing information for fabric partition id 3 port 5",
        "request to query NVSwitch device information failed with error:Timeout",
        "not all the GPUs are present, excluding GPU 3",
        "NVSwitch 2 is missing",
        "/opt/nvidia/nvlsm/sbin/nvlsm does not exist. Please install it",
        "GPU 3 could not be registered with the fabric",
    ],
)
@pytest.mark.parametrize("writer", [MANAGER, SCRIPT])
def test_an_error_without_a_tag_is_one_all_the_same(writer, says):
    got = read([*SOUND, writer + says])
    assert got.grade == "warn"
    (event,) = got.fields["events"]
    assert (event["source"], event["severity"], event["text"]) == ("fabricmanager", "warning", says)


def test_an_error_is_one_without_its_writer_too():
    assert read([CONNECTED, MISMATCH]).grade == "warn"
    assert read([MISMATCH]).grade == "warn"


def test_a_word_that_nobody_knows_is_noted_and_no_event():
    got = read([*SOUND, MANAGER + "trunk 4 wanders about"])
    assert (got.grade, got.fields["events"]) == ("warn", [])
    assert "trunk 4 wanders about" in got.why


TAGGED = "[Nov 05 2025 13:55:26] [ERROR] [tid 12] "


@pytest.mark.parametrize(
    "line", [MANAGER + MISMATCH, TAGGED + MISMATCH, MANAGER + TAGGED + MISMATCH]
)
def test_a_manager_of_another_version_ends_and_fails_where_there_has_to_be_one(line):
    assert read([STARTING, line, EXITED], EXPECTED).grade == "fail"
    assert read([line], EXPECTED).grade == "fail"
    assert read([line]).grade == "warn"
    assert read([line, *SOUND], EXPECTED).grade == "warn"  # it was put right


@pytest.mark.parametrize("context", [{}, EXPECTED])
@pytest.mark.parametrize(
    "lines",
    [
        SOUND,
        SOUND_NVL5,
        [CONNECTED, CONFIGURED],
        [STARTED],
        [*RUNS, *SOUND],
        [*RUNS, CONNECTED, CONFIGURED],
        [*OTHER_DEAD, *RUNS],
        [*RUNS, *OTHER_DEAD],
        [*SOUND, STOPPING, DEACTIVATED, STOPPED, *SOUND],
        [*SOUND, STOPPED, "-- Boot 1f2e3d4c5b6a79880123456789abcdef --", *SOUND],
        ["nvidia-fabricmanager.service loaded active running NVIDIA fabric manager service"],
        [*SOUND, MANAGER + "multicast group 0 is allocated."],
        [*SOUND, MANAGER + "Successfully reset all links with 0 errors"],
        [*SOUND, STAMP + "kernel: nvidia-nvswitch0: using MSI"],
        [*SOUND, STAMP + "kernel: nvidia-nvlink: Nvlink Core is being initialized, major device number 508"],
    ],
)  # fmt: skip
def test_the_ordinary_journal_of_a_sound_manager_passes(lines, context):
    got = read(lines, context)
    assert (got.grade, got.fields["events"]) == ("pass", []), got.why


ABSENT = [
    ["Unit nvidia-fabricmanager.service could not be found."],
    ["Failed to start nvidia-fabricmanager.service: Unit nvidia-fabricmanager.service not found."],
    [
        "Failed to restart nvidia-fabricmanager.service: Unit nvidia-fabricmanager.service is masked."
    ],
    [HEADING, "     Loaded: not-found (Reason: Unit not found.)", "     Active: inactive (dead)"],
    ["nvidia-fabricmanager.service not-found inactive dead nvidia-fabricmanager.service"],
]
DOWN = [
    DEAD,
    [*DEAD, *SOUND],  # what stands below the state is older than it
    [*DEAD, *SOUND, STOPPING, STOPPED],
    BROKEN,
    [*BROKEN, STARTING, EXITED],
    ["LoadState=loaded", "Id=nvidia-fabricmanager.service", "ActiveState=inactive"],
    [HEADING, LOADED, "     Active: active (exited) since Fri"],
    ["● nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager service"],
    [*SOUND, STOPPING, DEACTIVATED, STOPPED],
    [*SOUND, STOPPING],
    [*SOUND, EXITED.replace("Control", "Main").replace("1/FAILURE", "0/SUCCESS")],
    [*SOUND, SCRIPT + 'Stopped "Nvidia Fabric Manager"'],
    [*RUNS, *SOUND, STOPPED],
    [SYSTEMD + "Condition check resulted in NVIDIA fabric manager service being skipped."],
]


@pytest.mark.parametrize("lines", [*ABSENT, *DOWN])
@pytest.mark.parametrize(
    ("context", "grade"),
    [
        ({}, "error"),
        (EXPECTED, "fail"),
        ({"fabric_expected": True}, "fail"),
        (NONE_NEEDED, "warn"),
    ],
)
def test_a_manager_that_is_absent_or_stopped_is_no_pass(lines, context, grade):
    got = read(lines, context)
    assert got.grade == grade, got.why
    assert got.why.startswith("the fabric manager ")


@pytest.mark.parametrize(
    "lines",
    [
        [STARTING],
        [STARTING, CONNECTED],
        [*SOUND, STOPPED, STARTING],
        [STARTING, EXITED, AGAIN],
        [HEADING, LOADED, "     Active: activating (start) since Fri; 4min ago"],
    ],
)
def test_a_manager_that_is_still_starting_is_not_judged(lines):
    assert read(lines).grade == "error"
    assert read(lines, EXPECTED).grade == "error"


def test_a_manager_that_came_up_at_the_second_try_is_noted():
    assert read([STARTING, EXITED, AGAIN, *SOUND], EXPECTED).grade == "warn"
    for end in (EXITED, SYSTEMD + "nvidia-fabricmanager.service: start operation timed out."):
        assert read([STARTING, end], EXPECTED).grade == "fail"
        assert read([STARTING, end]).grade == "warn"


@pytest.mark.parametrize(
    "text",
    [
        "ii  nvidia-fabricmanager-550  550.127.05-1  amd64  Fabric Manager for NVSwitch based systems.",
        HEADING,
        LOADED.strip(),
        "/usr/bin/nv-fabricmanager",
        STAMP + "kernel: nvidia-nvswitch0: using MSI",
        "[    7.101010] nvidia-nvlink: Nvlink Core is being initialized, major device number 508",
    ],
)
def test_a_mere_name_is_no_log(text):
    assert read([text], EXPECTED).grade == "error"


SXID = "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): {code}, {word}, Link 54 LTSSM Fault Up"
FATAL = SXID.format(code=20034, word="Fatal")


@pytest.mark.parametrize(
    "line", [STAMP + "kernel: " + FATAL, "[ 4711.000000] " + FATAL, FATAL]
)  # fmt: skip
@pytest.mark.parametrize("around", [[], SOUND])
def test_what_the_kernel_says_of_a_switch_counts_in_an_extract_of_the_journal(around, line):
    got = read([*around, line])
    assert got.grade == "fail"
    (event,) = got.fields["events"]
    assert (event["source"], event["code"], event["device"]) == ("sxid", 20034, "0000:c5:00.0")


def test_events_of_the_manager_and_of_the_kernel_stand_in_the_order_of_the_text():
    non_fatal = STAMP + "kernel: " + SXID.format(code=12028, word="Non-fatal")
    lost = STAMP + "kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    detected = "detected NVSwitch fatal error 20034 on NVSwitch pci bus id 00000000:c5:00.0"
    got = read([*SOUND, non_fatal, MANAGER + detected, lost])
    assert [e["source"] for e in got.fields["events"]] == ["sxid", "fabricmanager", "xid"]
    assert read([*SOUND, non_fatal]).grade == "warn"


def test_what_another_program_quotes_of_the_kernel_is_no_event():
    quoted = f"{STAMP}agent[77]: seen before: {FATAL}"
    assert read([*SOUND, quoted]).fields["events"] == []
