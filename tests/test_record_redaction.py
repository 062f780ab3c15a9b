"""What identifies a machine is gone from its recording, and what the checks judge is still there."""

from __future__ import annotations

import ipaddress
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.redaction import redacted

BOOT = "7d6b3c1e-9a2f-4c58-8e11-2b3c4d5e6f70"
ONE = "00000000-0000-0000-0000-000000000001"


def told(text, **more):
    return redacted({"text": text}, **more)["text"]


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        "10000:e1:00.0",
        "[Mon Nov 30 10:51:41 2026] mlx5_core 0000:3b:00.0: Port module event",
        "2026-11-30T10:51:41.000001+00:00",
        "570.124.06",
        "96.00.5E.00.01",
        "Driver Version: 12.4.1.2",
        "firmware 28.39.10.2",
        "32.0 GT/s PCIe",
        "0x0000000000000044",
        "ffffffff,ffffffff,00000000,0000ffff",
        "sha256:" + "ab" * 32,
        "127.0.0.1 and ::1 and 0.0.0.0 and 255.255.255.0",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "fe80:0000:0000:0000:0000:0000:0000:0000",
        "std::string",
        "asia-northeast1-a",
        "/etc/rc.local and /root/.local/lib and svc.cluster.local",
        "nqn.2014-08.org.nvmexpress.discovery",
        "arn:aws:s3:::bucket",
        "isn: 123456 and sg-table and i-cache",
        "00000000-0000-0000-0000-000000000000",
    ],
)
def test_what_names_nobody_stays(text):
    assert told(text) == text


@pytest.mark.parametrize(
    ("ways", "written"),
    [
        (
            (BOOT, BOOT.replace("-", ""), BOOT.upper(), f"GPU-{BOOT}", f"MIG-{BOOT}/1/0"),
            (ONE, ONE.replace("-", ""), ONE, f"GPU-{ONE}", f"MIG-{ONE}/1/0"),
        ),
        (
            ("0c:42:a1:5d:3e:7f", "0C-42-A1-5D-3E-7F", "enx0c42a15d3e7f"),
            ("02:00:00:00:00:01", "02-00-00-00-00-01", "enx020000000001"),
        ),
        (
            ("10.20.30.40", "ip-10-20-30-40.ec2.internal"),
            ("198.18.0.1", "ip-198-18-0-1.ec2.internal"),
        ),
        (
            ("fe80:0000:0000:0000:0e42:a1ff:fe5d:3e7f", "fe80::e42:a1ff:fe5d:3e7f%eth0"),
            ("fe80:0000:0000:0000:0000:0000:0000:0001", "fe80::1%eth0"),
        ),
        (
            ("0c42:a103:005d:3e7e", "0x0c42a103005d3e7e", "Node GUID: 0x0c42a103005d3e7e"),
            ("0000:0000:0000:0001", "0x0000000000000001", "Node GUID: 0x0000000000000001"),
        ),
        (
            ("vol-0123456789abcdef0", "vol0123456789abcdef0"),
            ("vol-00000000000000001", "vol00000000000000001"),
        ),
    ],
)
def test_one_thing_has_one_placeholder_however_it_is_written(ways, written):
    assert redacted(list(ways)) == list(written)
    assert redacted(list(reversed(ways))) == list(reversed(written))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"GPU-{BOOT}", "GPU-00000000-0000-0000-0000-000000000001"),
        (f"_BOOT_ID={BOOT.replace('-', '')}", "_BOOT_ID=00000000000000000000000000000001"),
        ("link/ether 0c:42:a1:5d:3e:7f", "link/ether 02:00:00:00:00:01"),
        ("enx0c42a15d3e7f: up", "enx020000000001: up"),
        ("10.20.30.40:4791", "198.18.0.1:4791"),
        ("host ip-10-20-30-40", "host ip-198-18-0-1"),
        (
            "fe80:0000:0000:0000:0e42:a1ff:fe5d:3e7f",
            "fe80:0000:0000:0000:0000:0000:0000:0001",
        ),
        (
            "0000:0000:0000:0000:0000:ffff:0a14:1e28",  # RoCE: an IPv4 address as a GID
            "0000:0000:0000:0000:0000:ffff:c612:0001",
        ),
        ("0c42:a103:005d:3e7e", "0000:0000:0000:0001"),
        ("i-0123456789abcdef0", "i-00000000000000001"),
        ("fs-12345678.efs.us-east-1.amazonaws.com:/", "fs-00000001.efs.us-east-1.amazonaws.com:/"),
        ("started as i-1a2b3c4d", "started as i-00000001"),
        ("nvme nvme0: SN: S5XXNG0N123456", "nvme nvme0: SN: 00000000000001"),
        ("S/N=S5XXNG0N123456 end", "S/N=00000000000001 end"),
        (
            "nqn.1994-11.com.samsung:nvme:PM1733:2.5-inch:S4YPNE0R601234",
            "nqn.1994-11.com.samsung:nvme:PM1733:2.5-inch:00000000000001",
        ),
        ("iqn.2004-10.com.ubuntu:01:1a2b3c4d5e6f", "iqn.2004-10.com.ubuntu:01:000000000001"),
        (
            "/dev/disk/by-id/nvme-SAMSUNG_MZQL2_S5XXNG0N123456_1-part2",
            "/dev/disk/by-id/nvme-SAMSUNG_MZQL2_00000000000001_1-part2",
        ),
        ("arn:aws:iam::123456789012:role/x", "arn:aws:iam::000000000001:role/x"),
        ("/home/alice/train.py", "/home/user-1/train.py"),
        ("nfs.acme.internal:/export on /data", "peer-1.example.internal:/export on /data"),
        ("run --token=hf_abcdef --n=1", "run --token=secret-1 --n=1"),
        ("HF_TOKEN=a1B2,c", "HF_TOKEN=secret-1,c"),
        ("key AKIAIOSFODNN7EXAMPLE.", "key secret-1."),
        ("nvme.1d0f-766f6c3031-416d617a-00000001", "nvme.0000-0000000000-00000000-00000001"),
    ],
)
def test_a_placeholder_has_the_shape_of_what_it_stands_for(before, after):
    assert told(before) == after


def test_a_serial_is_known_by_its_field_and_then_wherever_it_stands():
    document = {
        "facts": {"serial": "1650522003820", "vbios": "96.00.5E.00.01"},
        "board": {"serial": 1650522003820},
        "files": {"sys/class/dmi/id/product_serial": "EC2ABC77", "sys/x/serial": "N/A"},
        "text": "serial number: MT2043X01234; GPU 1650522003820 on board EC2ABC77, 16505220038201",
    }
    told = redacted(document)
    serial = told["facts"]["serial"]
    board = told["files"]["sys/class/dmi/id/product_serial"]
    assert (len(serial), len(board)) == (13, 8)
    assert serial.isdecimal()
    assert told["board"]["serial"] == int(serial)
    assert told["files"]["sys/x/serial"] == "N/A"
    assert told["facts"]["vbios"] == "96.00.5E.00.01"
    assert "MT2043X01234" not in told["text"]
    assert told["text"].endswith(f"GPU {serial} on board {board}, 16505220038201")


def test_names_of_hosts_are_those_given_those_in_fields_and_those_before_a_line_of_a_log():
    document = {
        "hostname": "gpu-a7.example.org",
        "log": "Nov 30 10:51:41 worker-12 kernel: NVRM: Xid (PCI:0000:3b:00): 79\n"
        "2026-11-30T10:51:42.1+00:00 worker-12 nvidia-fm[812]: started by gpu-a7 for rack9-n3",
    }
    told = json.dumps(redacted(document, names=["rack9-n3", "localhost"]))
    for name in ("gpu-a7", "worker-12", "rack9-n3"):
        assert name not in told
    assert "kernel: NVRM: Xid (PCI:0000:3b:00): 79" in told
    assert len(set(re.findall(r"node-\d", told))) == 4  # with its domain a name is another


def test_what_was_asked_stays_even_where_a_host_is_called_like_it():
    answer = {
        "call": "nodeproof.probes.host:disks",
        "args": {"device": "cpu", "of": "10.1.2.3"},
        "before": "disks",
        "device": {"kind": "cpu", "id": "cpu0"},
    }
    document = {"schema": 2, "options": {"device": "cpu", "spec": "cpu"}, "answers": [answer]}
    assert redacted(document, names=["disks", "cpu"]) == document
    inner = {"reply": {"options": "rw,addr=10.1.2.3", "args": "of disks", "version": "10.1.2.3"}}
    told = redacted({**document, "answers": [{**answer, **inner}]}, names=["disks"])
    assert told["answers"][0]["reply"] == {
        "options": "rw,addr=198.18.0.1",  # of a mount, and not of a recording
        "args": "of node-1",
        "version": "10.1.2.3",
    }


def test_no_placeholder_is_an_identifier_of_the_same_recording():
    taken = [f"00000000-0000-0000-0000-{n:012x}" for n in (1, 2, 3)]
    found = redacted([BOOT, *taken, "198.18.0.1", "10.1.1.1"])
    assert not set(found) & {BOOT, *taken, "198.18.0.1", "10.1.1.1"}
    assert len(set(found)) == len(found)


OCTETS = st.integers(0, 255)
HEX = st.integers(1, (1 << 64) - 2)
FORMS = {
    "uuid": st.uuids(version=4).map(str),
    "gpu": st.uuids(version=4).map(lambda u: f"GPU-{u}"),
    "bare": st.uuids(version=4).map(lambda u: u.hex),
    "mac": st.integers(1, (1 << 48) - 2).map(lambda n: n.to_bytes(6, "big").hex(":")),
    "ipv4": st.tuples(st.sampled_from([1, 10, 172, 192, 198]), OCTETS, OCTETS, OCTETS).map(
        lambda t: ".".join(map(str, t))
    ),
    "ipv6": st.tuples(st.sampled_from(["fe80::", "2001:db8::", "fd00:1:2:3::"]), HEX).map(
        lambda t: str(ipaddress.IPv6Address(t[0]) + t[1])
    ),
    "gid": HEX.map(lambda n: (ipaddress.IPv6Address("fe80::") + n).exploded),
    "guid": HEX.map(lambda n: n.to_bytes(8, "big").hex(":", 2)),
    "cloud": st.integers(1, (1 << 68) - 1).map(lambda n: f"i-{n:017x}"),
}
WORDS = ["", "link", "at", "PCI:0000:3b:00", "GPU has fallen off the bus", "570.124.06", "0x44"]
# What stands before and after an identifier; a digit or a letter would make it another.
BEFORE, AFTER = (
    st.sampled_from(["", " ", "=", "(", "/", '"', "[", "x:"]),
    st.sampled_from(["", " ", ",", ")", "/", '"', "]", "\n", ". "]),
)


@st.composite
def recordings(draw):
    """A document, the identifiers in it and where they stand alone."""
    found = draw(
        st.lists(st.sampled_from(sorted(FORMS)).flatmap(FORMS.__getitem__), min_size=1, max_size=8)
    )
    serials = draw(st.lists(st.from_regex(r"[1-9][0-9]{7,12}", fullmatch=True), max_size=2))
    leaves = [
        draw(st.sampled_from(WORDS)) + " " + draw(BEFORE) + each + draw(AFTER) + "end"
        if draw(st.booleans())
        else each
        for each in draw(st.permutations(found + found))
    ]
    leaves = [leaf.replace("end", " end") for leaf in leaves]
    document = {
        "facts": [{"serial": s} for s in serials],
        "leaves": [leaves[:3], {"more": leaves[3:]}],
        "keys": {each: {"pci": "0000:3b:00.0"} for each in found},
        "said": [f"board {s} failed" for s in serials],
    }
    return document, found + serials


def standing(identifier, text):
    alone = rf"(?<![0-9a-z:.]){re.escape(identifier.lower())}(?![0-9a-z:]|\.[0-9])"
    return re.search(alone, text.lower())


@settings(max_examples=50, deadline=None)
@given(recordings())
def test_no_identifier_survives_and_equal_stays_equal(recorded):
    document, found = recorded
    told = redacted(document)
    text = json.dumps(told)
    for identifier in found:
        assert not standing(identifier, text), identifier
    before, after = list(flat(document)), list(flat(told))
    assert len(before) == len(after)
    assert len(set(before)) == len(set(after))
    one_to_one = set(zip(before, after, strict=True))
    assert len(one_to_one) == len(set(before))
    assert [leaf for leaf in after if leaf == "0000:3b:00.0"] == ["0000:3b:00.0"] * len(
        document["keys"]
    )
    assert list(told) == list(document)


def flat(value):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from flat(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from flat(inner)
    else:
        yield value


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.floats(allow_nan=False) | st.none(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=20,
    )
)
def test_any_document_is_taken_and_keeps_its_form(document):
    told = redacted(document)
    assert len(list(flat(told))) == len(list(flat(document)))


def test_a_long_text_takes_time_in_step_with_its_length():
    """Each of these makes a pattern that tries again from every place take for ever."""
    for part in ("0123456789abcdef", "ab:", "1.", "serial ", "-", "ip-1-", "0000:", "a" * 16):
        text = part * (50_000 // len(part))
        assert isinstance(told(text), str)
