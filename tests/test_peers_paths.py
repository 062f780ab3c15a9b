"""What the driver allows between two GPUs, held against their links, each other and the spec."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_peers as peers
from nodeproof.child import Raised
from nodeproof.model import Cause, Device, DeviceKind, Outcome
from tests.standin.build import judged
from tests.standin.node import standing

PATHS = "nodeproof.probes.peers:paths"
P2P = "nvmlDeviceGetP2PStatus"
ALL = peers.PathLimits(reads=True, nvlink=True)
BRIDGED = ("l40s", "bridged")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


def names(broken):
    return list(broken)


def test_a_row_for_each_other_gpu_in_words(node):
    node.says("hgx-h100", also=f"{P2P}@0/3/3=1\n{P2P}@0/3/4=99")
    answer = node.answer(PATHS)
    assert [row["uuid"] for row in answer["paths"]] == node.uuids[1:]
    assert answer["paths"][2] == {
        "uuid": node.uuids[3],
        "pci": "0000:5d:00.0",
        "read": "ok",
        "write": "ok",
        "nvlink": "ok",
        "atomics": "chipset not supported",
        "pcie": "status 99",
        "ancestor": "the link between sockets",
        "direct": 0,
    }
    assert (answer["switched"], answer["elsewhere"], answer["silent"]) == (18, [], 0)


@pytest.mark.parametrize(
    ("scenarios", "limits"),
    [
        (("hgx-h100",), None),
        (("hgx-h100",), ALL),
        (("gb200",), ALL),
        (("l40s",), None),
        (("l40s",), peers.PathLimits(reads=True)),
        (("t4",), peers.PathLimits(nvlink=False)),
        (BRIDGED, None),
    ],
)
def test_a_sound_node_passes_and_its_plants_are_caught(node, scenarios, limits):
    node.says(*scenarios)
    judgement, broken = node.judged(peers.test_paths, limits=limits)
    assert (judgement.outcome, names(broken)) == (Outcome.PASS, [])
    assert node.selftest(peers.test_paths, limits=limits).caught


def test_a_lone_gpu_has_no_peers_and_its_plants_are_caught(node):
    node.says("hgx-h100")
    lines = node.told.read_text().replace(" ".join(node.uuids), node.uuids[0])
    node.told.write_text(lines)
    judgement, _ = node.judged(peers.test_paths)
    assert judgement.outcome is Outcome.PASS
    assert node.selftest(peers.test_paths).caught
    assert node.selftest(peers.test_paths, limits=peers.PathLimits(told=False)).caught


@pytest.mark.parametrize("code", [3, 13, 2])
def test_a_driver_that_does_not_tell_is_no_driver_that_allows(node, code):
    node.says("hgx-h100", also=f"{P2P}=error:{code}")
    judgement, broken = node.judged(peers.test_paths)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert names(broken) == ["paths told", "peers out of reach", "peers not over NVLink"]
    hidden = peers.PathLimits(told=False)
    assert node.judged(peers.test_paths, limits=hidden)[0].outcome is Outcome.PASS
    assert node.selftest(peers.test_paths, limits=hidden).caught


@pytest.mark.parametrize(
    ("scenarios", "said", "limits", "breaks"),
    [
        (("hgx-h100",), f"{P2P}@0/5/2=5\n{P2P}@5/0/2=5", None, ["peers not over NVLink"]),
        (("hgx-h100",), f"{P2P}@0/5/0=4\n{P2P}@5/0/0=4", None, ["peers out of reach"]),
        (("hgx-h100",), f"{P2P}@0/5/1=6\n{P2P}@5/0/1=6", None, ["peers out of reach"]),
        (("hgx-h100",), f"{P2P}@0/5/1=17\n{P2P}@5/0/1=17", None, ["peers out of reach"]),
        (("hgx-h100",), f"{P2P}@0/5/2=5", None, ["peers not over NVLink", "otherwise"]),
        (("hgx-h100",), f"{P2P}@5/0/0=5", None, ["otherwise"]),
        (("hgx-h100",), "nvmlDeviceGetTopologyCommonAncestor@3/0=20", None, ["otherwise"]),
        (("l40s",), f"{P2P}=3", None, []),
        (("l40s",), f"{P2P}=3", peers.PathLimits(reads=True), ["peers out of reach"]),
        (("l40s",), "", ALL, ["peers not over NVLink"]),
        (BRIDGED, f"{P2P}@0/1/2=5\n{P2P}@1/0/2=5", None, ["peers not over NVLink"]),
        (BRIDGED, f"{P2P}@0/1/2=5\n{P2P}@1/0/2=5", peers.PathLimits(nvlink=False), []),
        (BRIDGED, f"{P2P}@0/2/2=5\n{P2P}@2/0/2=5", None, []),
    ],
    ids=[
        "NVLink between two",
        "reads",
        "writes",
        "a status of a newer driver",
        "one way of NVLink",
        "one way of reads",
        "another place on the bus from there",
        "PCIe cards of two sockets",
        "the same where the spec asks for it",
        "a spec of another product",
        "a bridge that does not carry",
        "a bridge that the spec does without",
        "no bridge between these",
    ],
)
def test_paths_are_held_against_what_the_links_lead_to(node, scenarios, said, limits, breaks):
    node.says(*scenarios, also=said)
    judgement, broken = node.judged(peers.test_paths, limits=limits)
    assert [
        name.replace("paths told otherwise by the other end", "otherwise") for name in broken
    ] == breaks
    assert judgement.cause is (Cause.ENVIRONMENT if breaks else None)


def test_what_is_short_is_named_by_uuid_address_and_way(node):
    node.says("hgx-h100", also=f"{P2P}@0/5/2=4\n{P2P}@5/0/2=4")
    _, broken = node.judged(peers.test_paths)
    said = broken["peers not over NVLink"].detail
    assert f"{node.uuids[5]} at 0000:ab:00.0 (nvlink: disabled by a registry key" in said


def test_a_gpu_whose_links_are_all_down_expects_nothing_and_its_links_are_missed_elsewhere(node):
    down = "\n".join(f"nvmlDeviceGetNvLinkState@0/{link}=0" for link in range(18))
    node.says("hgx-h100", also=f"{down}\n{P2P}@0=5")
    _, broken = node.judged(peers.test_paths)
    assert names(broken) == ["paths told otherwise by the other end"]
    _, broken = node.judged(peers.test_paths, limits=ALL)
    assert "peers not over NVLink" in broken


def test_a_neighbour_that_does_not_say_who_it_is_leaves_a_path_unknown(node):
    node.says("hgx-h100", also="nvmlDeviceGetHandleByIndex_v2@7=error:15")
    result = node.answer(PATHS)
    assert (len(result["paths"]), result["silent"]) == (6, 1)
    own = Device(kind=DeviceKind.GPU, id=node.uuids[0], label="gpu0")
    judgement, broken = judged(peers.test_paths, result, device=own)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert names(broken) == ["GPUs that do not say who they are"]


@pytest.mark.parametrize("code", [15, 10, 999])
def test_a_pair_that_refuses_is_unjudged_and_both_are_named(node, code):
    node.says("hgx-h100", also=f"{P2P}@0/4/0=error:{code}")
    reply = node.reply(PATHS)
    assert isinstance(reply, Raised)
    assert node.uuids[0] in reply.message
    assert node.uuids[4] in reply.message


def test_an_end_that_nobody_lists_is_shown(node):
    node.says(*BRIDGED, also="nvmlDeviceGetNvLinkRemotePciInfo_v2@0/1=00000000:99:00.0")
    answer = node.answer(PATHS)
    assert answer["elsewhere"] == ["0000:99:00.0"]
    assert answer["paths"][0]["direct"] == 1


def test_with_mig_on_nobody_is_reached(node):
    node.says("hgx-h100", "mig")
    judgement, _ = node.judged(peers.test_paths)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
