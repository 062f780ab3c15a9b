"""Thresholds that no device can reach, and those that every device passes, are slips."""

from __future__ import annotations

import math

import pytest

from nodeproof import physics
from nodeproof.physics import LEAST, LIMITS, Quantity, by_name, refusal, slips

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"

# MB/s of memory, as a table of thresholds in the field has them (DCGM, diag-skus.yaml).
SLIPS = {
    "H200, GB/s in a field for MB/s": (H200, 2_333),
    "A100 40GB, a digit short": ("NVIDIA A100-SXM4-40GB", 137_500),
    "L40, a digit short": ("NVIDIA L40", 49_050),
    "H100 64GB, a digit short": ("NVIDIA H100 64GB HBM2", 122_250),
}
NEIGHBOURS = {
    "T4": ("Tesla T4", 183_000),
    "V100": ("Tesla V100-SXM2-32GB", 607_500),
    "A10G": ("NVIDIA A10G", 362_700),
    "A30": ("NVIDIA A30", 585_000),
    "A40": ("NVIDIA A40", 423_675),
    "A100 PCIe 40GB": ("NVIDIA A100-PCIE-40GB", 969_750),
    "A100 PCIe 80GB": ("NVIDIA A100 80GB PCIe", 1_121_250),
    "A100 SXM 80GB": ("NVIDIA A100-SXM4-80GB", 1_173_000),
    "L4": ("NVIDIA L4", 198_500),
    "L40S": ("NVIDIA L40S", 525_000),
    "H100 SXM": (H100, 1_905_000),
    "H100 NVL": ("NVIDIA H100 NVL", 2_043_000),
    "H200 NVL": ("NVIDIA H200 NVL", 2_212_500),
    "B200": ("NVIDIA B200", 4_072_500),
    "B300": ("NVIDIA B300 SXM6 AC", 4_623_360),
    "GB200": ("NVIDIA GB200", 2_602_500),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_threshold_that_every_device_passes_is_refused(name):
    product, mbs = SLIPS[name]
    why = refusal(Quantity.MEMORY, mbs / 1000, by_name()[product])
    assert product in why
    assert "unit and digits" in why


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_its_sound_neighbours_are_not(name):
    product, mbs = NEIGHBOURS[name]
    assert refusal(Quantity.MEMORY, mbs / 1000, by_name()[product]) == ""


@pytest.mark.parametrize("product", physics.shipped(), ids=lambda product: product.key)
@pytest.mark.parametrize("quantity", list(Quantity))
def test_the_bounds_of_every_peak_hold(product, quantity):
    peak = product.peak(quantity)
    if peak is None:
        assert refusal(quantity, 1e-9, product) == ""
        return
    assert refusal(quantity, peak, product) == ""
    assert "more than" in refusal(quantity, peak * 1.001, product)
    assert "next to nothing" in refusal(quantity, peak * LEAST * 0.49, product)
    assert refusal(quantity, math.nan, product)
    assert refusal(quantity, -peak, product)


def test_a_switch_that_adds_up_allows_more_than_the_wire():
    """482 GB/s of all-reduce over links of 450 were measured on H200; a copy can't do that."""
    assert refusal(Quantity.REDUCTION, 482, by_name()[H200]) == ""
    assert "more than" in refusal(Quantity.NVLINK, 482, by_name()[H200])
    assert "more than" in refusal(Quantity.REDUCTION, 301, by_name()["NVIDIA A100-SXM4-80GB"])


def test_every_limit_with_a_ceiling_is_held_against_it():
    for (check, limit), quantity in LIMITS.items():
        peak = by_name()[H100].peak(quantity)
        assert peak is not None
        (why,) = slips({check: {limit: peak * 1.01}}, [H100])
        assert why.startswith(f"{check}: {limit}: ")
        assert slips({check: {limit: peak * 0.7}}, [H100]) == []
        assert slips({check: {limit: 0}}, [H100]) == []


def test_one_product_of_several_is_enough_to_refuse():
    limits = {"node.transfers.pairs": {"pair_gbs": 400.0}}
    assert slips(limits, [H100]) == []
    assert len(slips(limits, [H100, "NVIDIA A100-SXM4-80GB"])) == 1


def test_a_product_that_nobody_knows_is_no_ceiling_and_no_pass():
    with pytest.raises(KeyError):
        slips({}, ["NVIDIA H101"])


BAD = {
    "no name": 'memory_gbs = 1\nsource = "a"\ndate = 2026-01-01',
    "no source": 'names = ["A"]\nmemory_gbs = 1\ndate = 2026-01-01',
    "no date": 'names = ["A"]\nmemory_gbs = 1\nsource = "a"',
    "no peak": 'names = ["A"]\nsource = "a"\ndate = 2026-01-01',
    "ECC by hearsay": 'names = ["A"]\nmemory_gbs = 1\nsource = "a"\ndate = 2026-01-01\necc = true',
    "ECC perhaps": 'names = ["A"]\nmemory_gbs = 1\nsource = "a"\ndate = 2026-01-01\necc = "yes"\necc_source = "a"',
    "a peak of 0": 'names = ["A"]\nmemory_gbs = 0\nsource = "a"\ndate = 2026-01-01',
}


@pytest.mark.parametrize("name", BAD)
def test_a_product_is_whole_or_refused(name):
    with pytest.raises(ValueError, match="product x"):
        physics.read(f"[x]\n{BAD[name]}\n")


def test_of_every_product_it_is_known_whether_it_has_ecc():
    assert {product.key for product in physics.shipped() if product.ecc is not True} == set()


# Chips that stand here on a board for NVLink alone: without a number, all links of it may be down.
BOARDS = {0x1DB1, 0x20B0, 0x20B2, 0x20B3, 0x2324, 0x2329, 0x2330, 0x2335, 0x2337, 0x2339}
BOARDS |= {0x2342, 0x2348, 0x2901, 0x2941, 0x3182, 0x31C2}


def test_a_board_that_is_made_for_nvlink_says_how_many_links_it_has():
    found = {p.key: p.nvlinks for p in physics.shipped() if p.pci_ids & BOARDS}
    assert len(found) == len(BOARDS)
    assert {key for key, links in found.items() if not links} == set()
    silent = [p for p in physics.shipped() if p.nvlinks is None]
    assert [p.key for p in silent if "SXM" in str(p.names) or "sxm" in p.key] == []


def test_links_and_their_bandwidth_are_known_together_and_fit():
    """One direction of a link is 25 GB/s from NVLink 2 to 4, and 50 of NVLink 5."""
    for product in physics.shipped():
        wire = product.peak(Quantity.NVLINK)
        assert (wire is None) == (product.nvlinks is None), product.key
        if wire is not None and product.nvlinks is not None:
            assert wire / product.nvlinks in (25, 50), product.key


def test_what_is_made_for_players_is_told_by_its_name():
    told = {"NVIDIA GeForce RTX 4090": True, "TITAN RTX": True, "NVIDIA Titan V": True}
    told |= {"NVIDIA H200": False, "NVIDIA RTX A6000": False, "": False, "Tesla T4": False}
    assert {name: physics.for_players(name) for name in told} == told


def test_no_two_products_share_a_name_or_a_device():
    names = [name for product in physics.shipped() for name in product.names]
    ids = [each for product in physics.shipped() for each in product.pci_ids]
    assert len(names) == len(set(names))
    assert len(ids) == len(set(ids))
