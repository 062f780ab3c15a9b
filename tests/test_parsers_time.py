"""A text sixteen times as long takes a reader about sixteen times as long, whatever it is made of.

Measured in the processor's time of this thread, so that a busy machine changes little; a reader
whose time grew by the square of the length would take 256 times as long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from parser_texts import KINDS, texts

from nodeproof.parsers.reading import reader

LENGTH = 8_000  # bytes; and sixteen times that
TIMES = 16
MOST = 4.0  # times what is linear: caches, collections of garbage, other processes
LEAST_S = 0.001  # what is faster is not measured well

Make = Callable[[int], bytes]


def over_and_over(piece: bytes) -> Make:
    return lambda length: piece * (length // len(piece) + 1)


def counted(line: str, *, head: str = "", end: str = "") -> Make:
    """A line with a number of its own each time."""

    def made(length: int) -> bytes:
        count = length // len(line) + 1
        return (head + "".join(line.replace("@", str(n)) for n in range(count)) + end).encode()

    return made


def ids(length: int) -> bytes:
    """Results that name very many GPUs and carry very long warnings."""
    half = length // 2
    named = ",".join(str(n) for n in range(half // 5))
    result = {"status": "Fail", "gpu_ids": named, "warnings": ["x"] * (half // 5)}
    return json.dumps({"tests": [{"name": "Memory", "results": [result]}]}).encode()


def few_ids(length: int) -> bytes:
    """As many GPUs as a result may name, each with a long warning."""
    result = {"status": "Fail", "gpu_ids": ",".join(map(str, range(60))), "warnings": "x" * length}
    return json.dumps({"tests": [{"name": "Memory", "results": [result]}]}).encode()


ANY = [
    *(
        b"\0",
        b"\xff",
        b"\n",
        b"\r",
        b"\r\n",
        b" ",
        b"\t",
        b" \n",
        b"9",
        b"a",
        b"|",
        b"-",
        b".",
        b"'",
    ),
    *(
        b"[",
        b"{",
        b"]",
        b'"',
        b"\\",
        b'{"a":',
        b'{"a"',
        b"[{",
        b"{}\n",
        b"null\n",
        b'{"a" 1}',
        b"[,",
    ),
    *(
        b"0000:3b:00",
        b"[1.0] ",
        b"-> ",
        b": ",
        b"a b ",
        b"GPU 1 ",
        b"fatal ",
        b"error",
        b"(",
        b"\xe2\x80",
    ),
]
XID = r'{"_TRANSPORT":"kernel","MESSAGE":"NVRM: Xid (PCI:@:3b:00): 79, GPU has fallen off"}' + "\n"
RULED = "| Diagnostic                | Result        |\n"
SHAPES: dict[str, list[Make]] = {
    "dcgm_json": [
        ids,
        few_ids,
        counted(
            '{"name":"t@","results":[{"gpu_id":"@","status":"Fail","warnings":"@"}]},', head="["
        ),
        counted(
            '{"status":"Pass","warnings":[{"warning":"x","error_id":@}]},', head='{"results":['
        ),
        counted('"k@":{"status":"Skip"},', head="{"),
        counted("[" * 60 + "@" + "]" * 60 + ","),
        over_and_over(b'"\\u0041\\ud800'),
        counted("ECC ", head='{"status":"Fail","warnings":"', end='"}'),
        counted("NvLink link, GPU @ ", head='{"status":"Fail","warnings":"', end='"}'),
    ],
    "dcgm_text": [
        counted("@, ", head=f"{RULED}| PCIe | Fail - GPUs: ", end=" |\n"),
        counted("| | GPU@: Fail |\n", head=f"{RULED}| PCIe | Fail |\n"),
        counted("| | Fail - GPU: @ |\n", head=f"{RULED}| PCIe | Fail |\n"),
        counted(
            "| | Detected x on GPU @ and more of it |\n",
            head=f"{RULED}| P | Fail |\n| Error | y |\n",
        ),
        counted("| Warning: GPU@ | it is of no use |\n", head=f"{RULED}| P | Pass - All |\n"),
        counted("| t@ | Skip |\n", head=RULED),
        counted("gpuId @ : U U D X _\n"),
        over_and_over(b"+-----  Hardware  ----------+----"),
    ],
    "dcgm_health_text": [
        counted("| | GPU 2's NvLink link @ is down |\n", head="| -> NVLINK system | Failure |\n"),
        counted("| -> @ | Failure |\n", head="| Overall Health | Failure |\n"),
        counted("| -> s@ system | Failure |\n| | words |\n"),
        counted("| g@ | |\n| -> 1 | Warning |\n"),
        over_and_over(b"| Overall Health "),
        over_and_over(b"GPU 1's NvLink link 1 is "),
    ],
    "fi_info": [
        counted("provider: efa\n    domain: d@-rdm\n    type: FI_EP_RDM\n    protocol: P\n"),
        counted("p@;q:\n    version: 1.0\n"),
        counted("fi_getinfo: -@ x\n"),
        counted("fi_info:\n    fi_domain_attr:\n        name: d@\n"),
    ],
    "journal_json": [
        counted(XID),
        counted(XID.strip() + ",\n", head="[", end="{}]"),
        counted(
            '"MESSAGE":"NVRM: Xid (PCI:0000:3b:00): @, x",',
            head='{"_TRANSPORT":"kernel",',
            end='"a":1}',
        ),
        counted("78,", head='{"_TRANSPORT":"kernel","MESSAGE":[', end="10]}"),
        counted('"a",[64],', head='{"_TRANSPORT":"kernel","MESSAGE":[', end='"b"]}'),
        counted(
            r"NVRM: Xid (PCI:0000:@:00): 79\n", head='{"_TRANSPORT":"kernel","MESSAGE":"', end='"}'
        ),
        counted("{\n"),
    ],
    "fabricmanager_log": [
        counted("[ERROR] [tid 1] detected NVSwitch fatal error @ on pci bus id 00000000:c8:00.0\n"),
        counted("[ERROR] [tid 1] x on pci bus id @:c8:00.0\n"),
        over_and_over(b"nv-fabricmanager[1]: "),
        over_and_over(b"aborting fabric "),
        over_and_over(b"Failed to start nvidia-fabricmanager.service: "),
        over_and_over(b"[Jan 14 2026 03:12:45] [ERROR] "),
        over_and_over(b"detected fatal "),
        over_and_over(b"Started Stopped Starting nvidia-fabricmanager.service: "),
        over_and_over(b"Unit x kernel: nv fabric-manager loaded "),
        over_and_over(b"nv-fabricmanager[1]: no errors, don't fail "),
        counted("nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): @, Fatal, x\n"),
    ],
    "nccl_tests_text": [
        counted("  @  64 float sum -1 6.1 0.1 0.1 0 6.1 0.1 0.1 0\n"),
        counted("#  Rank  @ Group 0 Pid 1 on n device  @ [0000:53:00] x\n"),
        counted("# nThread 1 nGpus @ minBytes 1 maxBytes 8 step: 2(factor) validation: 1\n"),
        counted("# Out of bounds values : @ OK\n# Avg bus bandwidth : @\n"),
        counted("node: Test NCCL failure x.cu:1 'unhandled @'\n"),
        over_and_over(b"Rank 1 device 1 "),
        over_and_over(b"Rank 1 Pid 1 on  "),
        over_and_over(b"size count type "),
        over_and_over(b"Test failure "),
        over_and_over(b"1 float "),
    ],
    "nccl_log": [
        counted("n:1:1 [0] NCCL WARN x @\n"),
        counted("n:1:1 [0] NCCL INFO Channel @ : 0 -> 1 via SHM\n"),
        counted("NET/OFI Selected Provider is p@ (found @ nics)\n"),
        counted("n@:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks @ nNodes @ localRanks 8\n"),
        over_and_over(b"n:1:1 [0] NCCL nRanks 1 "),
        over_and_over(b"NCCL WARN "),
        over_and_over(b"provider is efa "),
        over_and_over(b"init.cc:1 -> 1 "),
        over_and_over(b"terminate called after throwing "),
    ],
}


def made_of(kind):
    own = [over_and_over(text) for text in texts(kind)]
    one_line = [over_and_over(text.replace(b"\n", b" ")) for text in texts(kind)]
    return [*map(over_and_over, ANY), *own, *one_line, *SHAPES[kind]]


def seconds(kind, data):
    began = time.thread_time()
    reading = reader(kind)(data, {})
    json.dumps(dict(reading.fields))
    return time.thread_time() - began


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_time_grows_with_the_length_and_not_with_its_square(kind):
    for make in made_of(kind):
        short, long = make(LENGTH), make(LENGTH * TIMES)
        once = max(LEAST_S, min(seconds(kind, short) for _ in range(3)))
        allowed = once * len(long) / len(short) * MOST
        # Whatever disturbed the first measurement is gone in one of the next.
        took = min(seconds(kind, long), allowed + 1)
        for _ in range(2):
            if took > allowed:
                took = min(took, seconds(kind, long))
        assert took <= allowed, (short[:100], f"{once:.4f} s and then {took:.4f} s")
