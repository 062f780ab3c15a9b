"""The link to the host under load, judged by the samples of the run."""

from __future__ import annotations

import pytest

from nodeproof.acceptance import test_pcie as pcie
from nodeproof.checks import spec_of
from nodeproof.model import Cause, Outcome
from nodeproof.plugin.selftesting import concluded, planted_in_answer
from nodeproof.plugin.watched import watched
from tests.standin.build import judged

CHECK = pcie.test_generation


def under_load(*samples):
    """What a run saw, by (width, generation, able) of each sample."""
    names = ("pcie_width", "pcie_generation", "pcie_generation_able")
    rows = [dict(zip(names, sample, strict=True)) for sample in samples]
    return {"telemetry": watched(rows, since={}, seconds=20.0, silence_s=0.0)}


@pytest.mark.parametrize(
    ("samples", "limits", "cause"),
    [
        ([(16, 1, 5), (16, 5, 5)], None, None),
        ([(16, 1, 5), (16, 4, 5)], None, Cause.HARDWARE),
        ([(16, 4, 4)], pcie.GenerationLimits(generation=5), Cause.CONFIG),
        ([(8, 5, 5), (16, 5, 5)], pcie.GenerationLimits(width=16), Cause.HARDWARE),
        ([(None, None, None)], None, Cause.ENVIRONMENT),
        ([(16, 1, None)], None, Cause.ENVIRONMENT),
        ([(16, 1, None)], pcie.GenerationLimits(told=False), None),
        ([(16, 5, None)], pcie.GenerationLimits(generation=5), None),
        ([(16, 1, None)], pcie.GenerationLimits(generation=5), Cause.CONFIG),
        ([], None, Cause.ENVIRONMENT),
        ([], pcie.GenerationLimits(told=False), None),
    ],
    ids=[
        "idle at first",
        "short",
        "another slot",
        "narrow once",
        "not told",
        "of nothing to compare",
        "hidden what it could be",
        "as the spec says",
        "less than the spec says",
        "no sample",
        "hidden",
    ],
)
def test_the_best_generation_and_the_least_width_count(samples, limits, cause):
    judgement, _ = judged(CHECK, under_load(*samples), limits)
    assert judgement.outcome is (Outcome.FAIL if cause else Outcome.PASS)
    assert judgement.cause is cause


@pytest.mark.parametrize(
    "limits",
    [None, pcie.GenerationLimits(generation=5, width=16), pcie.GenerationLimits(told=False)],
)
@pytest.mark.parametrize("samples", [[(16, 5, 5)], [(16, 1, None)], []])
def test_each_limit_is_broken_by_one_of_the_planted_faults(samples, limits):
    answer, spec = under_load(*samples), spec_of(CHECK)

    def attempt(result):
        return judged(CHECK, result, limits)[0]

    trials = [planted_in_answer(spec, plant, answer, attempt) for plant in spec.plants]
    test = concluded(spec, None, trials, attempt(answer).bounded)
    assert test.caught, test.summary


def test_it_is_the_load_of_the_burn_in_and_done_once_with_it():
    assert spec_of(CHECK).work.call == "nodeproof.kernels.burn:burn"
    assert spec_of(CHECK).work.load is not None
