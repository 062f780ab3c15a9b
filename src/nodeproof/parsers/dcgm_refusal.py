"""Why a DCGM command did nothing: its messages and exit statuses.

Texts: DCGM, dcgmlib/src/dcgm_errors.c and dcgmi/Command.cpp. The status is the code in eight bits,
so that -39 is 217 (dcgmlib/dcgm_structs.h, dcgmReturn_t).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What became of a command."""

    ABSENT = "absent"  # no such command
    UNREACHABLE = "unreachable"  # no host engine behind it
    BUSY = "busy"  # somebody else's diagnostic is running
    UNWATCHED = "no watches"  # nobody told the host engine what to watch
    REFUSED = "refused"  # it answered, and did not do it
    TIMED_OUT = "timed out"
    RAN = "ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A state and what to do about it."""

    state: State
    advice: str


_REACH = Refusal(
    state=State.UNREACHABLE,
    advice="the DCGM host engine does not answer: start it (systemctl start nvidia-dcgm), and test again",
)
_BUSY = Refusal(
    state=State.BUSY,
    advice="another diagnostic is running: wait for it, or stop who started it, and test again",
)
_PAUSED = Refusal(
    state=State.BUSY, advice="the DCGM host engine is paused: resume it, and test again"
)
_TIMEOUT = Refusal(
    state=State.TIMED_OUT,
    advice="DCGM gave up waiting: read the kernel log for what holds the driver, and test again",
)
_ROOT = Refusal(
    state=State.REFUSED, advice="no permission: run the DCGM host engine as root, and test again"
)
_INSTALL = Refusal(
    state=State.REFUSED,
    advice="a part of DCGM is missing: install the packages for this driver's CUDA version",
)
_WATCHES = Refusal(
    state=State.UNWATCHED,
    advice="no health watches are set: set them (dcgmi health -s a), wait, and ask again",
)
_NOTHING = Refusal(
    state=State.REFUSED, advice="DCGM sees no GPU or no test for it: see dcgmi discovery -l"
)

_PHRASES = (
    (_BUSY, "already running"),
    (_PAUSED, "while DCGM is paused|modules are paused"),
    (
        _REACH,
        "unable to establish a connection|unable to connect to host engine|invalid/disconnected",
    ),
    (_TIMEOUT, "Return: \\(-11\\)|driver timeout|: Timeout\\b"),
    (_WATCHES, "Health watches not enabled"),
    (_ROOT, "non-root|no permission"),
    (
        _INSTALL,
        "binary was not found|library could not be found|unable to initialize DCGM|not currently loaded",
    ),
    (_NOTHING, "group is empty|tests were not found|not supported by DCGM"),
)
_KNOWN = tuple((refusal, re.compile(phrase, re.IGNORECASE)) for refusal, phrase in _PHRASES)
_STATUSES = {217: _BUSY, 235: _REACH, 202: _PAUSED, 245: _TIMEOUT, 227: _ROOT, 239: _ROOT}
# A command that ends early says so in a line of its own, whatever stands before it.
_STOPPED = re.compile(r"\s*+(?:Error:|Aborting the iterative)", re.IGNORECASE)
_LONGEST = 20_000  # characters; a refusal is a line or two


def refusal(text: str, exit_status: int | None = None) -> Refusal | None:
    """Return why the command did nothing, as far as its words or its status say so."""
    for known, phrase in _KNOWN:
        if phrase.search(text[:_LONGEST]):
            return known
    return _STATUSES.get(exit_status) if exit_status is not None else None


def stopped(lines: str) -> str:
    """Return the first line by which a command says that it did not do its work, or nothing.

    The lines are those beside its results: a run that passed says nothing of one that did not.
    """
    for line in lines.splitlines():
        if _STOPPED.match(line):
            return line.strip()
        # Whatever writes that in front; a host engine that "is already running" is no refusal.
        known = refusal(line)
        if known is not None and known.state is State.UNREACHABLE:
            return line.strip()
    return ""


def first_words(text: str) -> str:
    """Return the first line that says something, for a message."""
    lines = (line.strip() for line in text[:_LONGEST].splitlines())
    return next((line[:200] for line in lines if line), "")
