"""Who is waited for while a step takes long: said seldom, and the more seldom the longer it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_FIRST_S = 15.0  # a step that is over by then needs no word
_NAMED = 4


class Patience:
    """Says of one step how much of its time has passed and who has not answered yet.

    After 15 s, 30 s, a minute, two minutes and so on: a step of half an hour has eight lines.
    """

    def __init__(self, say: Callable[[str], None], what: str, *, limit_s: float) -> None:
        self._say = say
        self._what = what
        self._limit_s = limit_s
        self._begun = time.monotonic()
        self._next_s = _FIRST_S

    def __call__(self, missing: Sequence[str]) -> None:
        """Speak if it is time to; `missing` are the names of those that are waited for."""
        took = time.monotonic() - self._begun
        if took < self._next_s:
            return
        while self._next_s <= took:
            self._next_s *= 2
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        self._say(
            f"{took:.0f} of at most {self._limit_s:.0f} s for {self._what}; "
            f"no answer yet from {', '.join(missing[:_NAMED])}{more}"
        )


def silent(missing: Sequence[str]) -> None:
    """Say nothing, whoever is missing."""
