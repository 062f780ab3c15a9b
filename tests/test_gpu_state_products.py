"""Sound GPUs of each kind pass every check of their state, and every check sees its plants there."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_gpu_memory as memory
from nodeproof.acceptance import test_gpu_state as state
from nodeproof.acceptance import test_nvlink as nvlink
from nodeproof.checks import spec_of
from nodeproof.child import Raised
from nodeproof.model import Outcome
from tests.standin.node import standing

CHECKS = (
    memory.test_ecc_mode,
    memory.test_ecc_errors,
    memory.test_remap,
    state.test_recovery_action,
    state.test_compute_mode,
    state.test_mig,
    state.test_heat,
    state.test_throttle,
    state.test_pcie_link,
    nvlink.test_links,
    nvlink.test_fabric,
)
PRODUCTS = ("hgx-h100", "gb200", "l40s", "t4")
OF_A_SPEC = {
    memory.test_ecc_mode: memory.EccLimits(on=True),
    memory.test_ecc_errors: memory.ErrorLimits(sram_uncorrected_ever=4),
    memory.test_remap: memory.RepairLimits(told=False),
    state.test_recovery_action: state.RecoveryLimits(told=False),
    state.test_compute_mode: state.ModeLimits(persistence=True),
    state.test_throttle: state.ClockLimits(power_limit_w=700.0, sm_mhz_max=1980),
    state.test_pcie_link: state.LinkLimits(width=16, told=False),
    nvlink.test_links: nvlink.LinkLimits(active=18, speed_mbs=26562),
    nvlink.test_fabric: nvlink.FabricLimits(expected=True),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


def name(check):
    return spec_of(check).id


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("check", CHECKS, ids=name)
def test_a_sound_gpu_passes_and_the_plants_are_seen_on_it(node, product, check):
    node.says(product)
    judgement, broken = node.judged(check)
    assert judgement.outcome is Outcome.PASS, broken
    test = node.selftest(check)
    assert test.caught, test.summary


@pytest.mark.parametrize("check", OF_A_SPEC, ids=name)
def test_a_sound_gpu_is_what_its_spec_says_and_the_plants_are_seen_against_it(node, check):
    node.says("hgx-h100")
    limits = OF_A_SPEC[check]
    judgement, broken = node.judged(check, limits=limits)
    assert judgement.outcome is Outcome.PASS, broken
    test = node.selftest(check, limits=limits)
    assert test.caught, test.summary


@pytest.mark.parametrize("code", [4, 10, 15, 16, 999])
@pytest.mark.parametrize("check", CHECKS, ids=name)
def test_a_gpu_that_refuses_is_unjudged_and_named(node, check, code):
    node.says("hgx-h100", also=f"nvmlDeviceGetHandleByUUID@0=error:{code}")
    reply = node.reply(spec_of(check).work.call)
    assert isinstance(reply, Raised)
    assert reply.cause == "environment"
    assert node.uuids[0] in reply.message
    assert f"NVML error {code}" in reply.message
