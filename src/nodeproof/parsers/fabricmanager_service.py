"""Whether the fabric manager's service runs, as systemd and its own start script tell it.

The forms are those of systemctl(1) and of systemd's messages to the journal. The manager ends by
itself where the driver's version is not its own (NVIDIA, Fabric Manager user guide).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from nodeproof.parsers.reading import Context, Grade


class State(StrEnum):
    """What the text last says of the service."""

    RUNNING = "runs"
    STARTING = "is starting"
    STOPPED = "is stopped"
    FAILED = "has failed"
    ABSENT = "is not installed"


_NAME = r"(?:nvidia[- ]?)?fabric[- ]?manager"
_UNIT_FILE = r"\S{0,40}fabric-?manager(?:\.service)?"
# The heading of `systemctl status`: what stands below it is about that unit.
_HEADING = re.compile(
    r"(?:[●○\u00d7↻*] )?(?P<unit>[\w@:.\\-]{1,120})\.(?:service|path|target|timer|socket)(?: - .*)?"
)
_ACTIVE = re.compile(r"(?:Active: |ActiveState=)(?P<state>[a-z-]+)(?: \((?P<sub>[a-z-]+)\))?")
_LOADED = re.compile(r"(?:Loaded: |LoadState=)(?:not-found|masked|bad-setting|error)\b")
# `systemctl list-units`: loaded, active and sub state in columns.
_LISTED = re.compile(
    rf"{_UNIT_FILE} +(?P<load>loaded|not-found|masked|error) +(?P<state>[a-z]+) +(?P<sub>[a-z-]+)\b"
)
_SAID = (
    (
        State.ABSENT,
        (
            rf"\bUnit (?:file )?{_UNIT_FILE} (?:could not be found|(?:is )?not (?:found|loaded)|is masked"
            rf"|does not exist)|{_NAME}: unrecognized service"
        ),
    ),
    (
        State.FAILED,
        (
            rf"Failed to start\b.{{0,60}}\b{_NAME}|\bJob for {_UNIT_FILE} failed"
            rf"|Dependency failed for .{{0,60}}{_NAME}|nv-fabricmanager\b.{{0,120}} failed! Exit code"
            r"|nvidia-fabricmanager\.service: (?:Failed with result|Start request repeated|start operation timed out"
            r"|(?:Main|Control) process exited, (?!.*status=0/))"
            r"|driver interface version .{0,60}\b(?:don't|doesn't|do(?:es)? not) match"
        ),
    ),
    (
        State.STOPPED,
        (
            rf"\bStopp(?:ed|ing) .{{0,60}}{_NAME}|{_NAME}\b.{{0,60}} (?:was|being) skipped"
            r"|nvidia-fabricmanager\.service: (?:Deactivated successfully|Succeeded|Main process exited)"
        ),
    ),
    (State.RUNNING, rf"\bStarted .{{0,60}}{_NAME}|Successfully configured all the available"),
    (
        State.STARTING,
        rf"\bStarting .{{0,60}}{_NAME}|nvidia-fabricmanager\.service: Scheduled restart",
    ),
)
_KNOWN = tuple((state, re.compile(words, re.IGNORECASE)) for state, words in _SAID)
_CONCERNED = re.compile(
    r"fabric[- ]?manager|Successfully configured|driver interface version", re.IGNORECASE
)
_FABRIC = re.compile(r"fabric-?manager", re.IGNORECASE)
_DOWN = {State.STOPPED, State.FAILED, State.ABSENT}


@dataclass(slots=True)
class Service:
    """Reads line by line; `state` is the last one told, None where none is.

    What `systemctl status` says under "Active" is of now, and the lines below it are older.
    """

    state: State | None = None
    _ours: bool = True  # what stands below is about the manager's unit
    _now: bool = False  # the state is that of "Active"

    def take(self, text: str) -> State | None:
        """Return what a line says of the service, None where it says nothing."""
        if heading := _HEADING.fullmatch(text):
            self._ours = bool(_FABRIC.search(heading["unit"]))
            return None
        said = self._present(text)
        if said is not None:
            self.state, self._now = said, True
            return said
        if not _CONCERNED.search(text):
            return None
        said = next((state for state, words in _KNOWN if words.search(text)), None)
        if said is None:
            return None
        older = self._now and (self.state is not State.RUNNING or said not in _DOWN)
        if not older:
            self.state, self._now = said, False
        return said

    def _present(self, text: str) -> State | None:
        if listed := _LISTED.search(text):
            if listed["load"] != "loaded":
                return State.ABSENT
            return _of_words(listed["state"], listed["sub"])
        if not self._ours:
            return None
        if _LOADED.match(text):
            return State.ABSENT
        active = _ACTIVE.match(text)
        if active is None or (self._now and self.state is State.ABSENT):
            return None
        return _of_words(active["state"], active["sub"])

    def judge(self, context: Context) -> tuple[Grade, str] | None:
        """Grade a service that is known not to run; None where it runs or nobody tells.

        A journal that only tells of an end leaves that to its event, unless there has to be one.
        """
        if self.state in {None, State.RUNNING}:
            return None
        told = f"the fabric manager {self.state}"
        expected = {context.get("fabric_expected"), context.get("fabric_manager_expected")}
        if True in expected and self.state in _DOWN:
            return Grade.FAIL, f"{told}, and this node has to have one: start it, and test again"
        if False in expected and True not in expected:
            return Grade.WARN, f"{told}, and this node is said to need none"
        if self.state is State.FAILED and not self._now:
            return None
        return Grade.ERROR, f"{told}, so that nothing is known of the fabric: start it, test again"


def _of_words(state: str, sub: str | None) -> State:
    match state:
        case "active" | "reloading":
            return State.STOPPED if sub in {"exited", "dead"} else State.RUNNING
        case "failed":
            return State.FAILED
        case "activating":
            return State.STARTING
    return State.STOPPED
