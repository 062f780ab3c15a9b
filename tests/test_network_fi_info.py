"""What `fi_info` prints, read whole, cut, refused, and in the forms of other versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.parsers import fi_info
from nodeproof.parsers.reading import Grade


def entry(
    domain, *, provider="efa", kind="FI_EP_RDM", fabric="efa", version="203.10", protocol="EFA"
):
    return (
        f"provider: {provider}\n    fabric: {fabric}\n    domain: {domain}\n"
        f"    version: {version}\n    type: {kind}\n    protocol: FI_PROTO_{protocol}\n"
    )


def card(name, *, direct=True):
    """The entries of one device, as a version with efa-direct lists them, or an older one."""
    first = entry(f"{name}-rdm", fabric="efa-direct") if direct else ""
    return first + entry(f"{name}-rdm") + entry(f"{name}-dgrm", kind="FI_EP_DGRAM")


LONG = """---
fi_info:
    caps: [ FI_MSG, FI_RMA ]
    mode: [  ]
    addr_format: FI_ADDR_EFA
    fi_tx_attr:
        caps: [ FI_MSG ]
        size: 4096
    fi_ep_attr:
        type: FI_EP_RDM
        protocol: FI_PROTO_EFA
    fi_domain_attr:
        domain: 0x0
        name: rdmap70s0-rdm
        threading: FI_THREAD_SAFE
    fi_fabric_attr:
        name: efa
        prov_name: efa
        prov_version: 200.0
    nic:
        fi_device_attr:
            name: rdmap70s0
            device_id: 0xefa1
"""
TCP = entry("ens5", provider="tcp", kind="FI_EP_MSG", protocol="SOCK_TCP", fabric="192.0.2.0/24")
BUILT_IN = "efa:\n    version: 120.0\ntcp;ofi_rxm:\n    version: 120.0\nshm:\n    version: 120.0\n"
EFA = {"efa_expected": True}


def told(text, **context):
    reading = fi_info.read(text.encode(), context)
    assert reading.why
    return reading.grade, reading.fields["facts"], reading.why


@pytest.mark.parametrize(
    ("text", "context", "grade"),
    [
        ("", EFA, Grade.ERROR),
        ("bash: fi_info: command not found\n", EFA, Grade.ERROR),
        ("fi_info: error while loading shared libraries: libfabric.so.1\n", {}, Grade.ERROR),
        ("Segmentation fault (core dumped)\n", {"efa_expected": False}, Grade.ERROR),
        ("fi_getinfo: -61\n", EFA, Grade.FAIL),
        ("fi_getinfo: -61 (No data available)\n", EFA, Grade.FAIL),
        ("fi_getinfo: -61\n", {"efa_expected": False}, Grade.PASS),
        ("fi_getinfo: -61\n", {}, Grade.ERROR),  # nobody said whether there should be any
        ("fi_getinfo: -12 (Cannot allocate memory)\n", EFA, Grade.ERROR),
        ("fi_getinfo: -61\n", {**EFA, "where": "container"}, Grade.ERROR),
        ("fi_getinfo: -61\n", {**EFA, "exit_status": 61}, Grade.FAIL),
        (card("a"), {**EFA, "exit_status": 137}, Grade.ERROR),
        (TCP, EFA, Grade.FAIL),  # the silent way to TCP
        (TCP, {"ib_expected": True}, Grade.FAIL),
        (TCP, {}, Grade.PASS),
        (card("a"), {"efa_expected": False}, Grade.WARN),
        (card("a") + card("b"), {"efa_nics_expected": 2}, Grade.PASS),
        (card("a") + card("b"), {"efa_nics_expected": 3}, Grade.FAIL),
        (card("a") + card("b"), {"efa_nics_expected": 1}, Grade.WARN),
        (entry("a-dgrm", kind="FI_EP_DGRAM"), EFA, Grade.WARN),  # NCCL has no use for it
        (BUILT_IN, EFA, Grade.ERROR),  # what was built in is not what is there
    ],
)
def test_what_a_gate_makes_of_it(text, context, grade):
    assert told(text, **context)[0] is grade


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("fi_getinfo: -61\n", 61),
        ("fi_getinfo: -61 (No data available)\r\n", 61),
        ("fi_getinfo(): util/pingpong.c:1472, ret=-61 (No data available)\n", 61),
        ("fi_getinfo: No data available\n", 61),
        ("fi_getinfo: -38 (Function not implemented)\n", 38),
        ("libfabric:47889:core:core:fi_getinfo_():964<info> fi_getinfo: shm returned -61\n", None),
        ("user@gpu-node-1:~$ fi_info # fi_getinfo: -61 means none\n", None),
    ],
)
def test_a_refusal_is_known_by_its_number_in_every_form(text, number):
    assert told(text)[1]["errno"] == number


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("count", [1, 4, 32])
def test_devices_are_counted_by_their_domains_and_never_by_their_blocks(direct, count):
    text = "".join(card(f"rdmap{16 * n}s27", direct=direct) for n in range(count))
    grade, facts, _ = told(text, efa_nics_expected=count)
    assert grade is Grade.PASS
    assert facts["entries"] == count * (3 if direct else 2)
    assert len(facts["efa_devices"]) == count


def test_providers_are_the_lower_part_of_layered_ones_in_small_letters():
    text = entry("efa_0-dgrm", provider="efa;ofi_rxd") + entry("bond0", provider="UDP")
    grade, facts, _ = told(text, **EFA)
    assert facts["providers"] == ["efa", "udp"]
    assert facts["efa_devices"] == ["efa_0"]
    assert grade is Grade.PASS


def test_the_long_form_says_the_same():
    _, facts, _ = told(LONG + LONG.replace("rdmap70s0", "rdmap71s0"), efa_nics_expected=2)
    assert facts == {
        "entries": 2,
        "efa_devices": ["rdmap70s0", "rdmap71s0"],
        "providers": ["efa"],
        "errno": None,
    }


@pytest.mark.parametrize("keep", range(20, 480, 23))
def test_a_text_that_ends_early_condemns_nothing_and_passes_nothing(keep):
    whole = card("rdmap16s27") + card("rdmap32s27") + card("rdmap48s27")
    grade, facts, _ = told(whole[:keep], efa_nics_expected=3)
    cut = whole[:keep].count("    protocol: F") < facts["entries"]
    assert grade in ({Grade.ERROR} if cut else {Grade.FAIL, Grade.ERROR})
    assert set(facts["efa_devices"]) <= {"rdmap16s27", "rdmap32s27", "rdmap48s27"}


def test_a_filter_that_left_two_lines_of_every_block_cut_nothing():
    lines = [line for line in (card("a") + card("b")).splitlines() if "pro" in line or "do" in line]
    kept = "\n".join(line for line in lines if "protocol" not in line)
    assert told(kept, efa_nics_expected=2)[0] is Grade.PASS


def test_a_console_around_it_adds_no_device():
    text = f"root@node:/# fi_info -p efa | grep -c domain: rdmap99s0\n{card('a')}root@node:/# ls\n"
    _, facts, _ = told(text, **EFA)
    assert facts["efa_devices"] == ["a"]


@given(st.binary(max_size=400))
@settings(max_examples=80, deadline=None)
def test_no_bytes_raise_and_none_pass_where_efa_is_expected(data):
    assert fi_info.read(data, EFA).grade is not Grade.PASS


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_damaged_text_never_raises_and_never_shows_more_devices_than_blocks(data):
    text = bytearray((card("rdmap16s27") + LONG + BUILT_IN + "fi_getinfo: -61\n").encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=5))
    facts = fi_info.read(bytes(text), {}).fields["facts"]
    assert len(facts["efa_devices"]) <= facts["entries"]
