"""What the catalogue knows of a product decides where its driver says nothing, and only there."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_gpu_memory as memory
from nodeproof.acceptance import test_nvlink as nvlink
from nodeproof.model import Cause, Outcome
from tests.standin.node import standing

SILENT = "nvmlDeviceGetEccMode=error:3\nnvmlDeviceGetDefaultEccMode=error:3"
OFF = "nvmlDeviceGetEccMode=0 0"
ON = "nvmlDeviceGetEccMode=1 1"
DEFAULT = "nvmlDeviceGetDefaultEccMode="
DOWN = "\n".join(f"nvmlDeviceGetNvLinkState/{link}=0" for link in range(18))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


@pytest.mark.parametrize(
    ("scenario", "name", "said", "outcome"),
    [
        ("l40s", "NVIDIA L40S", OFF, Outcome.FAIL),
        ("l40s", "NVIDIA L40S", f"{OFF}\n{DEFAULT}error:3", Outcome.FAIL),
        ("l40s", "NVIDIA L40S", ON, Outcome.PASS),
        ("t4", "Tesla T4", SILENT, Outcome.FAIL),
        ("t4", "Tesla T4", OFF, Outcome.FAIL),
        ("l40s", "NVIDIA A10", SILENT, Outcome.FAIL),
        ("l40s", "NVIDIA RTX PRO 6000 Blackwell Server Edition", SILENT, Outcome.FAIL),
        # A card for workstations is delivered with ECC off, and its driver says so.
        ("l40s", "NVIDIA RTX A6000", f"{OFF}\n{DEFAULT}0", Outcome.PASS),
        ("l40s", "NVIDIA RTX A6000", f"{OFF}\n{DEFAULT}error:3", Outcome.FAIL),
        ("l40s", "NVIDIA RTX A6000", SILENT, Outcome.FAIL),
        # A name that only begins like one that is known is not known.
        ("l40s", "NVIDIA RTX A6000-48Q", SILENT, Outcome.ERROR),
        ("l40s", "NVIDIA A10-24Q", SILENT, Outcome.ERROR),
    ],
)
def test_ecc_that_is_off_or_unsaid_passes_only_where_it_is_delivered_off(
    node, scenario, name, said, outcome
):
    node.says(scenario, also=f"{said}\nnvmlDeviceGetName={name}")
    judgement, _ = node.judged(memory.test_ecc_mode)
    assert judgement.outcome is outcome
    assert judgement.cause is (None if outcome is Outcome.PASS else Cause.ENVIRONMENT)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("NVIDIA H20", Outcome.FAIL),
        ("NVIDIA H800", Outcome.FAIL),
        ("NVIDIA H100", Outcome.FAIL),
        ("NVIDIA H100 64GB HBM2", Outcome.FAIL),
        ("NVIDIA GH200 480GB", Outcome.FAIL),
        ("NVIDIA GH200 144G HBM3e", Outcome.FAIL),
        ("NVIDIA A100-SXM-64GB", Outcome.FAIL),
        ("NVIDIA A800-SXM4-80GB", Outcome.FAIL),
        ("NVIDIA H20-3e", Outcome.ERROR),
        ("NVIDIA RTX A6000", Outcome.PASS),
        ("NVIDIA H100 NVL", Outcome.PASS),
    ],
)
def test_links_all_down_are_right_for_a_card_alone(node, name, outcome):
    """A card may lack its bridge; a board that is made for NVLink has links up, or is not judged."""
    node.says("hgx-h100", also=f"{DOWN}\nnvmlDeviceGetName={name}")
    judgement, broken = node.judged(nvlink.test_links)
    assert judgement.outcome is outcome
    assert judgement.cause is (None if outcome is Outcome.PASS else Cause.ENVIRONMENT)
    assert ("links missing" in broken) == (outcome is Outcome.FAIL)
