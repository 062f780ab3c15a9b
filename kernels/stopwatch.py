"""How long a work has been at it, and what it tells the live view meanwhile."""

from __future__ import annotations

import math
import time

from nodeproof.worker import Context

_TELL_S = 0.5  # from one word to the next, at least


class Stopwatch:
    """Runs from when it is made. `spent` are the seconds when it was last read."""

    def __init__(self, context: Context, seconds: float = 0.0) -> None:
        self._context = context
        self._seconds = seconds  # that the work is to last
        self._begun = time.perf_counter()
        self._told = -math.inf
        self.spent = 0.0

    def read(self) -> float:
        """Return the seconds since the start."""
        self.spent = time.perf_counter() - self._begun
        return self.spent

    @property
    def share(self) -> float:
        """How much of the time was over when last read, from 0 to 1."""
        return min(self.spent / self._seconds, 1.0) if self._seconds else 1.0

    def tell(self, **what: float | str) -> None:
        """Tell the live view, unless it was told just now."""
        now = time.perf_counter()
        if now - self._told >= _TELL_S:
            self._told = now
            self._context.progress(**what)
