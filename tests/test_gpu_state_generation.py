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


BARE, GUEST = False, True
SPEC = pcie.GenerationLimits


def under_load(*samples, virtual=BARE, lanes=16):
    """What a run saw, by (width, generation, able to) of each sample, and how busy the GPU was."""
    names = ("pcie_width", "pcie_generation", "pcie_generation_able", "utilisation")
    rows = [{**dict(zip(names, s, strict=False)), "pcie_width_able": lanes} for s in samples]
    for row in rows:
        row["virtual"] = virtual
    return {"telemetry": watched(rows, since={}, seconds=20.0, silence_s=0.0)}


@pytest.mark.parametrize(
    ("samples", "virtual", "limits", "cause"),
    [
        ([(16, 1, 5), (16, 5, 5)], BARE, None, None),
        ([(16, 1, 5), (16, 4, 5)], BARE, None, Cause.HARDWARE),
        ([(16, 4, 5)], GUEST, None, Cause.CONFIG),
        ([(16, 4, 5)], None, None, Cause.CONFIG),
        ([(16, 4, 5)], BARE, SPEC(generation=5), Cause.HARDWARE),
        ([(16, 4, 5)], GUEST, SPEC(generation=5), Cause.CONFIG),
        ([(16, 4, 5)], GUEST, SPEC(generation=4), None),
        ([(16, 4, 5)], BARE, SPEC(generation=4), None),
        ([(16, 4, 4)], BARE, SPEC(generation=5), Cause.CONFIG),
        ([(8, 5, 5), (16, 5, 5)], BARE, None, Cause.HARDWARE),
        ([(8, 5, 5), (16, 5, 5)], BARE, SPEC(width=16), Cause.HARDWARE),
        ([(8, 5, 5)], GUEST, None, Cause.CONFIG),
        ([(8, 5, 5)], GUEST, SPEC(width=16), Cause.CONFIG),
        ([(8, 5, 5)], None, SPEC(width=16), Cause.CONFIG),
        ([(8, 5, 5)], GUEST, SPEC(width=8), None),
        ([(8, 5, 5)], BARE, SPEC(width=8), None),
        ([(8, 1, 5, 0.0), (16, 5, 5, 0.4)], BARE, None, None),
        ([(16, 5, 5, 0.4), (8, 5, 5, 0.01)], BARE, None, Cause.HARDWARE),
        ([(8, 5, 5, 0.0)], BARE, None, Cause.HARDWARE),
        ([(8, 5, 5, None)], BARE, None, Cause.HARDWARE),
        ([(None, None, None)], BARE, None, Cause.ENVIRONMENT),
        ([(None, 5, 5)], BARE, None, Cause.ENVIRONMENT),
        ([(None, 5, 5)], BARE, SPEC(told=False), None),
        ([(16, 1, None)], BARE, None, Cause.ENVIRONMENT),
        ([(16, 1, None)], BARE, SPEC(told=False), None),
        ([(16, 5, None)], BARE, SPEC(generation=5), None),
        ([(16, 1, None)], BARE, SPEC(generation=5), Cause.CONFIG),
        ([], BARE, None, Cause.ENVIRONMENT),
        ([], BARE, SPEC(told=False), None),
    ],
    ids=[
        "idle at first",
        "short",
        "short in a virtual machine",
        "short where nobody says what the machine is",
        "short of the spec",
        "short of the spec in a virtual machine",
        "as the spec says in a virtual machine",
        "as the spec says, though both ends could do more",
        "another slot",
        "narrow once",
        "narrower than the spec says",
        "narrow in a virtual machine",
        "narrower than the spec says in a virtual machine",
        "narrower than the spec says where nobody says what the machine is",
        "as wide as the spec says in a virtual machine",
        "as wide as the spec says",
        "narrow while idle",
        "narrow at work",
        "narrow and never at work",
        "narrow and nobody says whether at work",
        "not told",
        "width not told",
        "width hidden",
        "of nothing to compare",
        "hidden what it could be",
        "generation as the spec says",
        "less than the spec says",
        "no sample",
        "hidden",
    ],
)
def test_the_best_generation_and_the_least_width_count(samples, virtual, limits, cause):
    judgement, _ = judged(CHECK, under_load(*samples, virtual=virtual), limits)
    assert judgement.outcome is (Outcome.FAIL if cause else Outcome.PASS)
    assert judgement.cause is cause


def test_a_link_as_wide_as_its_slot_is_no_fault():
    assert judged(CHECK, under_load((8, 5, 5), lanes=8))[0].outcome is Outcome.PASS
    wanted = judged(CHECK, under_load((8, 5, 5), lanes=8), SPEC(width=16))[0]
    assert wanted.cause is Cause.CONFIG
    unsaid = judged(CHECK, under_load((8, 5, 5), lanes=None), SPEC(width=16))[0]
    assert unsaid.cause is Cause.CONFIG


@pytest.mark.parametrize(
    "limits",
    [None, SPEC(generation=5, width=16), SPEC(told=False)],
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
