"""Which node is to be looked at next, and when."""

from __future__ import annotations

import heapq
import math
import threading
import time


class Due:
    """Nodes by uid and the time at which each falls due, monotonic; safe between threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._wanted: dict[str, float] = {}  # when each is due; rows of the heap may be stale
        self._moved = threading.Condition()
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether nobody is to look any more."""
        return self._stopped

    def stop(self) -> None:
        """End every wait."""
        with self._moved:
            self._stopped = True
            self._moved.notify_all()

    def wake(self, uid: str, after_s: float) -> None:
        """Have a node looked at after a while, or before that, if that is so already."""
        due = time.monotonic() + after_s
        with self._moved:
            if self._wanted.get(uid, math.inf) <= due:
                return  # it is looked at before that, and then says anew when to look again
            self._wanted[uid] = due
            heapq.heappush(self._heap, (due, uid))
            self._moved.notify()

    def next(self, latest: float) -> str | None:
        """Wait for the next node that is due; `""` at the time `latest`, `None` at the end."""
        with self._moved:
            while not self._stopped:
                now = time.monotonic()
                if self._heap and self._heap[0][0] <= now:
                    due, uid = heapq.heappop(self._heap)
                    if self._wanted.get(uid) != due:
                        continue
                    del self._wanted[uid]
                    return uid
                if now >= latest:
                    return ""
                until = min([latest, *(d[0] for d in self._heap[:1])])
                self._moved.wait(max(0.0, until - now))
        return None
