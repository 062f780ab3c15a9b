"""Hold a check's plants against an answer, as the self-test of a run does."""

from __future__ import annotations

import copy

from nodeproof.checks import spec_of
from nodeproof.model import Outcome
from tests.standin.build import judged


def everything_broken(check, result, limits=None):
    """Each plant fails as it says, and leaves no bound of this answer whole."""
    left = set(judged(check, result, limits)[0].bounded)
    assert left
    for plant in spec_of(check).plants:
        altered = plant.alter(copy.deepcopy(result))
        if altered is None:
            continue  # this fault can't be had here
        judgement, broken = judged(check, altered, limits)
        assert judgement.outcome is Outcome.FAIL
        assert set(plant.breaks) <= set(broken)
        left -= set(broken)
    assert left == set()
