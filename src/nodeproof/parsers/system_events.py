"""The kernel itself: tasks that hang, processors that are stuck, memory that ran out.

Texts: torvalds/linux kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, mm/oom_kill.c,
old and new. A task's name may hold colons and brackets, so its number is what stands last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.log_lines import Line
from nodeproof.parsers.reports import Report

_HUNG = re.compile(
    r"INFO: task .{1,80}:\d+ (?:is )?blocked\b.{0,80}? for (?:more than \d+ seconds|m[a-z]{0,3}(?: t[a-z]{0,3})?(?: \d{1,9}(?: s[a-z]{0,6})?)?\Z)"
)
_LOCKUP = re.compile(
    r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#\d+ stuck for"
    r"|(?:NMI )?[Ww]atchdog(?:: Watchdog)? detected hard LOCKUP|watchdog: CPU\d+: .{0,80}?hard LOCKUP"
)
_STALL = re.compile(
    r"(?:rcu: )?INFO: rcu\w* (?:self-)?detected.{0,80}? stall|BUG: workqueue lockup - pool"
)
_PANIC = re.compile(r"Kernel panic - not syncing")
_OOM_KILL = re.compile(r"oom-kill:constraint=(?P<scope>\w+)")
_OOM_HEAD = re.compile(
    r"(?:(?P<group>Memory cgroup out of memory)|(?P<node>Out of memory))(?: \([\w ]{1,40}\))?: "
    r"Kill(?:ed)? process \d+(?:, UID \d+,)?(?: \((?P<task>.{0,64}?)\))?(?: |,|$)"
)
_OOM_VICTIM = re.compile(r"Killed process \d+(?:, UID \d+,)? \((?P<task>.{0,64}?)\)")
_OOM_REAPED = re.compile(r"oom_reaper: reaped process \d+ \((?P<task>.{0,64}?)\)")
_TASK = re.compile(r"[,=]task=(?P<task>[^,]*)")
_NEAR = 100_000  # bytes of tables that may stand between the parts of one kill


@dataclass(slots=True, kw_only=True)
class _Kill:
    line: Line
    scope: str | None = None  # "group", "node"
    named: bool = False  # its last line is there


@dataclass(slots=True)
class System:
    """Reads line by line."""

    done: list[Report] = field(default_factory=list)
    kills: list[_Kill] = field(default_factory=list)
    victims: set[str] = field(default_factory=set)

    def read(self, line: Line) -> bool:
        """Take the line if it tells of a task, a processor, or a kill for memory."""
        for pattern, source, kind in (
            (_HUNG, "hung_task", "hung_task"),
            (_LOCKUP, "soft_lockup", "soft_lockup"),
            (_STALL, "soft_lockup", "stall"),
            (_PANIC, "kernel", "kernel.panic"),
        ):
            if pattern.match(line.text):
                self.done.append(Report(source=source, kind=kind, line=line))
                return True
        return self._memory(line)

    def _memory(self, line: Line) -> bool:
        if found := _OOM_HEAD.match(line.text):
            scope = "group" if found["group"] else "node"
            kill = self._under_way(line, scope)
            kill.scope = scope
            kill.named = True
            self._victim(found["task"])
        elif found := _OOM_KILL.match(line.text):
            scope = "group" if found["scope"] == "CONSTRAINT_MEMCG" else "node"
            kill = self._under_way(line, scope)
            kill.scope = scope
            task = _TASK.search(line.text)
            self._victim(task["task"] if task else None)
        elif found := _OOM_VICTIM.match(line.text):
            # The older kernel's second line: of the kill before it, and maybe of another task. Where
            # the first is not there, somebody was killed all the same.
            if not self.kills or line.place - self.kills[-1].line.place > _NEAR:
                self.kills.append(_Kill(line=line, named=True))
            self._victim(found["task"])
        elif found := _OOM_REAPED.match(line.text):
            self._victim(found["task"])
        else:
            return False
        return True

    def _under_way(self, line: Line, scope: str) -> _Kill:
        if self.kills:
            last = self.kills[-1]
            near = line.place - last.line.place <= _NEAR
            if near and not last.named and last.scope in {None, scope}:
                return last
        self.kills.append(_Kill(line=line))
        return self.kills[-1]

    def _victim(self, task: str | None) -> None:
        if task:
            self.victims.add(task)

    def reports(self) -> Iterator[Report]:
        """Every report. A kill that does not say whose memory ran out counts as the node's."""
        yield from self.done
        for kill in self.kills:
            yield Report(source="oom", kind=f"oom.{kill.scope or 'node'}", line=kill.line)
