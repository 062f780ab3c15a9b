"""NVLinks and fabric, judged: what is normal on one product is a fault on another."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_nvlink as nvlink
from nodeproof.model import Cause, Outcome, Remedy
from tests.standin.build import judged, put_gpu
from tests.standin.node import standing

LINKS = "nodeproof.probes.nvlink:links"
FABRIC = "nodeproof.probes.nvlink:fabric"
HOPPER = nvlink.LinkLimits(active=18, speed_mbs=26562)
NOT_ONE = "\n".join(f"nvmlDeviceGetNvLinkState/{link}=0" for link in range(18))
TWELVE = "\n".join(f"nvmlDeviceGetNvLinkState/{link}=0" for link in range(12, 18))
BRIDGES = "\nnvmlDeviceGetNvLinkRemoteDeviceType=0"
CARDS = "\nnvmlDeviceGetName=NVIDIA H100 PCIe"
OF_A_SITE = "\nnvmlDeviceGetName=NVIDIA Z900-SXM9-1TB"
SAID = "nvmlDeviceGetGpuFabricInfoV@0"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


@pytest.mark.parametrize(
    ("product", "count", "speed", "end"),
    [("hgx-h100", 18, 26562, "switch"), ("gb200", 18, 53125, "switch"), ("l40s", 0, None, None)],
)
def test_links_are_those_that_the_gpu_has_not_those_that_nvml_can_number(
    node, product, count, speed, end
):
    node.says(product)
    rows = node.answer(LINKS)["links"]
    wanted = {"active": True, "speed_mbs": speed, "end": end}
    assert rows == [{"link": n, **wanted} for n in range(count)]


def test_a_link_that_is_down_is_not_asked_for_its_speed(node):
    node.says("hgx-h100", also="nvmlDeviceGetNvLinkState@0/4=0")
    answer = node.answer(LINKS)
    assert answer["active"] == 17
    assert answer["links"][4] == {"link": 4, "active": False, "speed_mbs": None, "end": None}


def test_a_gpu_that_tells_one_speed_for_all_its_links_is_taken_at_that(node):
    said = "nvmlDeviceGetFieldValues/164=error:3\nnvmlDeviceGetFieldValues/90=25781"
    node.says("hgx-h100", also=said)
    assert {row["speed_mbs"] for row in node.answer(LINKS)["links"]} == {25781}


@pytest.mark.parametrize(
    ("said", "limits", "cause"),
    [
        ("nvmlDeviceGetNvLinkState@0/4=0", HOPPER, Cause.HARDWARE),
        ("nvmlDeviceGetNvLinkState@0/4=0", None, Cause.ENVIRONMENT),
        ("nvmlDeviceGetNvLinkState/4=0", HOPPER, Cause.ENVIRONMENT),
        (
            "nvmlDeviceGetNvLinkState@0/4=0\nnvmlDeviceGetNvLinkState@3/4=0",
            HOPPER,
            Cause.ENVIRONMENT,
        ),
        (NOT_ONE, HOPPER, Cause.ENVIRONMENT),
        (NOT_ONE, None, Cause.ENVIRONMENT),
        (NOT_ONE + OF_A_SITE, None, Cause.ENVIRONMENT),
        (NOT_ONE + CARDS, None, None),
        (NOT_ONE, nvlink.LinkLimits(active=0), None),
        (TWELVE, None, Cause.ENVIRONMENT),
        (TWELVE + BRIDGES, None, None),
        ("", nvlink.LinkLimits(active=24), Cause.ENVIRONMENT),
        ("", nvlink.LinkLimits(active=12), None),
    ],
    ids=[
        "one GPU short",
        "no spec",
        "all short alike",
        "two ends short",
        "none at all",
        "no spec and none at all",
        "no spec, none at all and a board that nobody knows",
        "cards without a bridge",
        "a spec of none",
        "no spec and all short behind switches",
        "no spec and all alike without switches",
        "spec of another product",
        "more than expected",
    ],
)
def test_a_missing_link_blames_a_gpu_only_with_a_witness(node, said, limits, cause):
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(nvlink.test_links, limits=limits)
    assert judgement.outcome is (Outcome.FAIL if cause else Outcome.PASS)
    assert judgement.cause is cause
    if cause:
        assert "links missing" in broken


@pytest.mark.parametrize(("bus", "told"), [(["switch"], 18), (["other"], 0), ([], None)])
def test_switches_on_the_bus_ask_for_links_also_of_a_card(node, tmp_path, bus, told):
    """By the bus of a machine of files: the driver's own answers say of no switch."""
    for kind in bus:
        made = {"switch": "0x068000", "other": "0x020000"}[kind]
        put_gpu(tmp_path, "0000:c1:00.0", kind=made)
    node.says("hgx-h100", also=NOT_ONE + CARDS)
    answer = node.answer(LINKS, host_root=tmp_path)
    assert answer["switches"] == {None: None, 18: 1, 0: 0}[told]
    judgement, broken = judged(nvlink.test_links, answer)
    assert judgement.cause is (Cause.ENVIRONMENT if told else None)
    assert (broken["links missing"].value if told else 0) == (told or 0)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("NVIDIA Z900", Outcome.ERROR),
        ("NVIDIA RTX A2000", Outcome.ERROR),
        ("", Outcome.ERROR),
        ("NVIDIA GeForce RTX 3090", Outcome.PASS),
        ("NVIDIA GB300", Outcome.FAIL),
    ],
)
def test_links_all_down_are_judged_by_what_is_known_of_the_product(node, name, outcome):
    node.says("hgx-h100", also=f"{NOT_ONE}\nnvmlDeviceGetName={name}")
    judgement, _ = node.judged(nvlink.test_links)
    assert judgement.outcome is outcome
    if outcome is Outcome.ERROR:
        assert judgement.cause is Cause.ENVIRONMENT
        assert '["gpu.nvlink.links"] active = 18, or 0' in judgement.summary
    for limits in (None, HOPPER, nvlink.LinkLimits(active=0)):
        told = node.selftest(nvlink.test_links, limits=limits)
        assert told.caught, told.summary
    bridgeless = node.judged(nvlink.test_links, limits=nvlink.LinkLimits(active=0))[0]
    assert bridgeless.outcome is Outcome.PASS


def test_a_gpu_that_nobody_knows_and_that_is_alone_is_no_pass_with_all_links_down(node):
    node.says("hgx-h100", also=NOT_ONE + OF_A_SITE)
    assert judged(nvlink.test_links, node.answer(LINKS))[0].outcome is Outcome.ERROR


def test_a_gpu_that_was_given_out_alone_is_not_asked_for_links(node):
    node.says("hgx-h100", also=NOT_ONE)
    assert judged(nvlink.test_links, node.answer(LINKS))[0].outcome is Outcome.PASS


def test_one_link_of_unknown_speed_beside_known_ones_is_no_pass(node):
    node.says(
        "hgx-h100",
        also="nvmlDeviceGetFieldValues@0/164/7=error:3\nnvmlDeviceGetFieldValues/90=error:3",
    )
    for limits in (None, HOPPER):
        judgement, broken = node.judged(nvlink.test_links, limits=limits)
        assert (judgement.cause, list(broken)) == (Cause.ENVIRONMENT, ["links of unknown speed"])
        assert node.judged(nvlink.test_links, gpu=1, limits=limits)[0].outcome is Outcome.PASS


@pytest.mark.parametrize("limits", [None, HOPPER, nvlink.LinkLimits(active=0)])
@pytest.mark.parametrize("product", ["hgx-h100", "gb200", "l40s", "t4"])
def test_each_limit_of_the_links_is_broken_by_a_planted_fault(node, product, limits):
    node.says(product)
    told = node.selftest(nvlink.test_links, limits=limits)
    assert told.caught, told.summary


def test_no_nvlink_where_the_spec_expects_it_is_no_pass(node):
    node.says("l40s")
    judgement, broken = node.judged(nvlink.test_links, limits=HOPPER)
    assert (judgement.outcome, judgement.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
    assert broken["links missing"].value == 18


@pytest.mark.parametrize(
    ("said", "limits", "cause"),
    [
        ("nvmlDeviceGetFieldValues@0/164/7=19920", None, Cause.HARDWARE),
        ("nvmlDeviceGetFieldValues@0/164=19920", None, Cause.HARDWARE),
        ("nvmlDeviceGetFieldValues/164/7=19920", None, Cause.ENVIRONMENT),
        ("nvmlDeviceGetFieldValues/164=26500", HOPPER, None),
        ("nvmlDeviceGetFieldValues/164=19920", HOPPER, Cause.ENVIRONMENT),
        ("nvmlDeviceGetFieldValues/164=error:3", None, None),
        ("nvmlDeviceGetFieldValues/164=error:3", HOPPER, Cause.ENVIRONMENT),
    ],
    ids=[
        "one link",
        "all of one GPU",
        "of every GPU",
        "rounded",
        "not as the spec says",
        "not told and not asked for",
        "not told",
    ],
)
def test_a_slow_link_is_held_against_the_others_or_the_spec(node, said, limits, cause):
    node.says("hgx-h100", also=said)
    judgement, broken = node.judged(nvlink.test_links, limits=limits)
    assert judgement.cause is cause
    assert list(broken) == (["slowest link"] if cause else [])


EXPECTED, NONE = nvlink.FabricLimits(expected=True), nvlink.FabricLimits(expected=False)


@pytest.mark.parametrize(
    ("product", "said", "limits", "breaks"),
    [
        ("gb200", "", EXPECTED, []),
        ("l40s", "", None, []),
        ("l40s", "", NONE, []),
        ("l40s", "", EXPECTED, ["fabric not registered"]),
        ("t4", "", None, []),
        ("t4", "", EXPECTED, ["fabric not registered"]),
        ("hgx-h100", f"{SAID}=1 0", None, ["fabric not registered"]),
        ("hgx-h100", f"{SAID}=2 0", None, ["fabric not registered"]),
        ("hgx-h100", f"{SAID}=2 0", NONE, []),
        ("hgx-h100", f"{SAID}=9 0", NONE, ["fabric not registered"]),
        ("hgx-h100", f"{SAID}=3 23", None, ["registration status"]),
        ("hgx-h100", f"{SAID}=3 999", None, ["registration status"]),
        ("hgx-h100", f"{SAID}=3 0 0 0x1A6", None, ["recoveries under way"]),
        ("hgx-h100", f"{SAID}=3 0 0 0x16A", None, ["recoveries under way"]),
        ("hgx-h100", f"{SAID}=3 0 0 0x5AA", None, ["wrong configuration"]),
        ("hgx-h100", f"{SAID}=3 0 0 0xFAA", None, ["wrong configuration"]),
        ("hgx-h100", f"{SAID}=3 0 0 0x1AA 2", None, ["health other than sound"]),
        ("hgx-h100", f"{SAID}=3 0 0 0x1AA 3", None, ["health other than sound"]),
        ("hgx-h100", f"{SAID}=3 0 0 0 0", EXPECTED, []),
    ],
)
def test_a_fabric_is_judged_by_product_and_by_every_part_of_its_mask(
    node, product, said, limits, breaks
):
    node.says(product, also=said)
    judgement, broken = node.judged(nvlink.test_fabric, limits=limits)
    assert list(broken) == breaks
    assert judgement.cause is (Cause.ENVIRONMENT if breaks else None)


@pytest.mark.parametrize("mask", ["0x1A9", "0x19A"], ids=["bandwidth", "route"])
def test_a_bad_route_is_the_nodes_own_fault_where_the_fabric_is(node, mask):
    node.says("hgx-h100", also=f"{SAID}=3 0 0 {mask} 0 0")
    judgement, broken = node.judged(nvlink.test_fabric)
    assert (judgement.cause, judgement.remedy) == (Cause.HARDWARE, Remedy.REBOOT)
    assert list(broken) == ["unhealthy routes"]
    node.says("gb200", also=f"{SAID}=3 0 32766 {mask} 0 0x9C")
    judgement, broken = node.judged(nvlink.test_fabric)
    assert judgement.cause is Cause.ENVIRONMENT
    assert list(broken) == ["unhealthy routes"]


def test_what_the_mask_does_not_tell_is_none(node):
    node.says("gb200")
    answer = node.answer(FABRIC)
    assert set(answer["health"].values()) == {None}
    assert (answer["summary"], answer["configuration"]) == (None, None)
    assert (answer["clique"], answer["cluster"]) == (32766, "9c" * 16)
    assert answer["status_says"] == "success"


@pytest.mark.parametrize(
    ("said", "summary", "degraded"),
    [
        ("nvmlDeviceGetGpuFabricInfoV/3000028=error:25", None, False),
        ("nvmlDeviceGetGpuFabricInfoV=error:25", None, None),
        ("nvmlDeviceGetGpuFabricInfoV=error:13", None, None),
    ],
    ids=["version 2", "version 1", "no versions"],
)
def test_an_older_driver_is_asked_in_its_own_version(node, said, summary, degraded):
    node.says("hgx-h100", also=said)
    answer = node.answer(FABRIC)
    assert answer["state"] == "completed"
    assert answer["summary"] is summary
    assert answer["health"]["degraded_bandwidth"] is degraded
