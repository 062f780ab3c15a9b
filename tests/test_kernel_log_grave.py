"""Grave lines beside the well-known ones: ports that cut off, memory in use, drivers without a card."""

from __future__ import annotations

import pytest

from nodeproof.parsers import kernel_log

PORT, GPU, NIC = "0000:16:00.0", "0000:3b:00.0", "0000:9e:00.0"
NAME = "154, pid=1, name=to 0x0 (None), GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
UNIT = "145, pid=12, name=foo, UNIT Nonfatal, RLW_REMAP Fatal XC0 i0 Link 07 (0x1 0x40 0 0 0 0)"


def told(*lines):
    text = "".join(f"[{100 + n:5d}.000000] {line}\n" for n, line in enumerate(lines))
    return [
        (e.source, e.device or e.unit, str(e.severity), e.count) for e in kernel_log.events(text)
    ]


@pytest.mark.parametrize(
    ("lines", "event"),
    [
        ([f"pcieport {PORT}: DPC: containment event, status:0x1f01 source:0x0000", f"pcieport {PORT}: DPC: unmasked uncorrectable error detected"], ("aer", PORT, "fatal", 1)),
        ([f"pcieport {PORT}: DPC: containment event, status:0x1f05, ERR_FATAL received from {GPU}"], ("aer", PORT, "fatal", 1)),
        ([f"pcieport {PORT}: DPC: containment event, status:0x1f03 source:0x3b00", f"pcieport {PORT}: DPC: ERR_NONFATAL detected"], ("aer", PORT, "warning", 1)),
        ([f"pcieport {PORT}: DPC: ERR_FATAL detected"], ("aer", PORT, "fatal", 1)),
        ([f"pcieport {PORT}: pciehp: Slot(12): Card not present"], ("pcie", PORT, "warning", 1)),
        ([f"nvme {NIC}: Unable to change power state from D3cold to D0, device inaccessible"], ("pcie", NIC, "warning", 1)),
        ([f"pci {NIC}: 2.000 Gb/s available PCIe bandwidth, limited by Unknown x1 link at {PORT} (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"], ("pcie", NIC, "warning", 1)),
        (["mce: Uncorrected hardware memory error in user-access at 5f8cd80", "Memory failure: 0x5f8: Sending SIGBUS to foo:12 due to hardware memory corruption", "Memory failure: 0x5f8: recovery action for dirty LRU page: Recovered"], ("mce", None, "fatal", 1)),
        (["Memory failure: 0x1234: recovery action for dirty LRU page: Recovered"], ("mce", None, "warning", 1)),
        (["[Hardware Error]: System Fatal error."], ("mce", None, "fatal", 1)),
        ([f"mlx5_core {NIC}: mlx5_load_one:1300:(pid 1): mlx5_init_one failed with error code -5", f"mlx5_core: probe of {NIC} failed with error -5"], ("mlx5", NIC, "fatal", 1)),
        ([f"mlx5_core {NIC}: probe with driver mlx5_core failed with error -110"], ("mlx5", NIC, "fatal", 1)),
        ([f"mlx5_core {NIC}: print_health_info:491:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:"], ("mlx5", NIC, "fatal", 1)),
        ([f"mlx5_core {NIC}: print_health_info:491:(pid 0): Health issue observed, high temperature, severity(4) WARNING:"], ("mlx5", NIC, "warning", 1)),
        (["infiniband efa_0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0 (ctx: 0x1)"] * 2, ("efa", "efa_0", "fatal", 1)),
        (["infiniband efa_1: The device sent a completion but the driver didn't receive a MSI-X interrupt for admin cmd CREATE_CQ(4)"], ("efa", "efa_1", "fatal", 1)),
        ([f"nvidia-nvswitch: probe of {NIC} failed with error -5"], ("nvrm", NIC, "fatal", 1)),
        ([f"nvidia-nvswitch3: SXid ({NIC}): 24007, Fatal, Link 44"], ("sxid", NIC, "fatal", 1)),
        ([f"NVRM: GPU {GPU}: GPU does not have the necessary power cables connected.", f"NVRM: GPU {GPU}: RmInitAdapter failed! (0x26:0x56:1473)"], ("nvrm", GPU, "fatal", 1)),
        (["NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from foo @ x.c:123"] * 3, ("nvrm", None, "fatal", 1)),
        (["nvidia-uvm: uvm encountered global fatal error 0x60, requiring os reboot to recover."], ("nvrm", None, "fatal", 1)),
        ([f"nvidia {GPU}: Unable to change power state from D3cold to D0, device inaccessible"], ("nvrm", GPU, "fatal", 1)),
        ([f"nvidia {GPU}: can't change power state from D3cold to D0 (config space inaccessible)"], ("nvrm", GPU, "fatal", 1)),
        (["NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", f"NVRM: BAR1 is 0M @ 0x0 (PCI:{GPU})", f"nvidia: probe of {GPU} failed with error -1", "NVRM: The NVIDIA probe routine failed for 1 device(s)."], ("nvrm", GPU, "fatal", 1)),
        (["Kernel panic - not syncing: Fatal exception"], ("kernel", None, "fatal", 1)),
        (["BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!"], ("soft_lockup", None, "warning", 1)),
        (["kernel BUG at nvidia/nv.c:12!"], ("nvrm", None, "fatal", 1)),
        (["BUG: unable to handle page fault for address: ffff", "Oops: 0000 [#1] SMP", "RIP: 0010:_nv0001rm+0x1/0x2 [nvidia]", " os_x+0x1/0x2 [nvidia]"], ("nvrm", None, "fatal", 1)),
        (["BUG: unable to handle page fault for address: ffff", "RIP: 0010:mlx5e_x+0x1/0x2 [mlx5_core]"], ("mlx5", None, "fatal", 1)),
        (["general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP", "RIP: 0010:do_idle+0x1/0x2", "RIP: 0010:nv_x+0x1/0x2 [nvidia]"], ("kernel", None, "fatal", 1)),
        ([f"NVRM: Xid (PCI:{GPU}): {NAME}"], ("xid", GPU, "fatal", 1)),
        ([f"NVRM: Xid (PCI:{GPU}): {NAME[:70]}"], ("xid", GPU, "fatal", 1)),
        ([f"NVRM: Xid (PCI:{GPU}): {UNIT}"], ("xid", GPU, "fatal", 1)),
        ([f"NVRM: Xid (PCI:{GPU}): {UNIT[:48]}"], ("xid", GPU, "fatal", 1)),
        ([f"nvidia {GPU}: NVRM: Xid (PCI:{GPU}): 79, lost"], ("xid", GPU, "fatal", 1)),
    ],
)  # fmt: skip
def test_a_grave_line_is_one_event(lines, event):
    assert told(*lines) == [event]


@pytest.mark.parametrize(
    "line",
    [
        f"pcieport {PORT}: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+",
        f"pcieport {PORT}: pciehp: Slot(12): Card present",
        "infiniband efa_0: EFA device is up",
        f"mlx5_core {NIC}: Port module event: module 0, Cable plugged",
        "RIP: 0010:nv_x+0x1/0x2 [nvidia]",
    ],
)
def test_what_drivers_say_of_themselves_is_no_event(line):
    assert told(line) == []


HEAD = "pcieport 0000:c0:01.2: AER: "
DETAIL = "nvidia {}: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        ([HEAD + "Correctable error message received from 0000:00:00.0", DETAIL.format("0000:c1:00.0")], [("0000:c0:01.2", 1)]),
        ([HEAD + "Multiple Correctable error message received from 0000:c2:00.0", DETAIL.format("0000:c1:00.0"), DETAIL.format("0000:c2:00.0")], [("0000:c0:01.2", 1)]),
        ([HEAD + "Multiple Corrected error received: 0000:c2:00.0", DETAIL.format("0000:c1:00.0")], [("0000:c0:01.2", 1)]),
        # Of another device, of another segment, a second time, or of another severity: their own.
        ([HEAD + "Correctable error message received from 0000:c2:00.0", DETAIL.format("0000:c1:00.0")], [("0000:c0:01.2", 1), ("0000:c1:00.0", 1)]),
        ([HEAD + "Correctable error message received from 0000:00:00.0", DETAIL.format("0001:c1:00.0")], [("0000:c0:01.2", 1), ("0001:c1:00.0", 1)]),
        ([HEAD + "Correctable error message received from 0000:00:00.0", *[DETAIL.format("0000:c1:00.0")] * 2], [("0000:c0:01.2", 1), ("0000:c1:00.0", 1)]),
        ([HEAD + "Correctable error message received from 0000:00:00.0", DETAIL.format("0000:c1:00.0").replace("Correctable", "Uncorrectable (Fatal)")], [("0000:c0:01.2", 1), ("0000:c1:00.0", 1)]),
    ],
)  # fmt: skip
def test_details_of_a_device_below_are_of_the_report_of_its_port(lines, events):
    assert [(device, count) for _, device, _, count in told(*lines)] == events


SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): "
REQUEST = SWITCH + "22013, Non-fatal, Link 20 Minion Link DLREQ interrupt"


@pytest.mark.parametrize(
    ("times", "severities"),
    [
        ([(14, "using MSI"), (15, REQUEST), (402118, REQUEST)], ["info", "warning"]),
        ([(14, "using MSI"), (402118, REQUEST)], ["warning"]),
        ([(402000, "using MSI"), (402118, REQUEST)], ["info"]),  # the driver was loaded again
        ([(402118, REQUEST), (402200, "using MSI")], ["warning"]),
        ([(300, REQUEST)], ["info"]),
    ],
)
def test_a_link_asks_for_attention_only_while_a_switch_starts(times, severities):
    lines = [
        f"[{at}.000000] {text if text == REQUEST else f'nvidia-nvswitch0: {text}'}\n"
        for at, text in times
    ]
    assert [str(e.severity) for e in kernel_log.events("".join(lines))] == severities


@pytest.mark.parametrize(("number", "severity"), [(0, "warning"), (1, "fatal")])
def test_an_sxid_of_data_alone_has_the_severity_that_its_code_has_elsewhere(number, severity):
    other = SWITCH.replace("c5", "c6")
    got = told(f"{SWITCH}20034, Data {{0x1}}", f"{other}20034, Severity {number} Engine instance 1")
    assert [(device, level) for _, device, level, _ in got] == [
        ("0000:c5:00.0", severity),
        ("0000:c6:00.0", severity),
    ]


@pytest.mark.parametrize(
    ("link", "grade"),
    [
        ("Unknown x0 link at cf63:00:02.0 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "warn"),
        ("2.5 GT/s PCIe x0 link at cf63:00:02.0 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "warn"),
        ("Unknown x8 link at cf63:00:02.0 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "warn"),
        ("Unknown x4 link at cf63:00:02.0 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "fail"),
        ("2.5 GT/s PCIe x8 link at cf63:00:02.0 (capable of 63.008 Gb/s with 8.0 GT/s PCIe x8 link)", "fail"),
    ],
)  # fmt: skip
def test_a_link_that_cannot_be_read_is_not_one_that_is_limited(link, grade):
    line = (
        f"[    1.000000] pci cf63:00:02.0: 0.000 Gb/s available PCIe bandwidth, limited by {link}\n"
    )
    assert kernel_log.read(line.encode(), {}).grade == grade
