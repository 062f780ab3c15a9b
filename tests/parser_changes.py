"""What cuts, copies, consoles and faults make of a text that a parser reads.

`changed(kind, number)` is the same text for the same number, so that one that breaks a reader can
be made again alone. Nothing here knows how the readers work.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from parser_texts import CONTEXTS, KINDS, texts

NUMBERS = [
    *(b"0", b"-1", b"-0", b"007", b"65536", b"4294967296", b"18446744073709551616", b"9" * 400),
    *(b"1e999", b"-1e999", b"1e-400", b"NaN", b"Infinity", b"0x10", b"1_000", b"1.5.2", b"+-3"),
    *("\u0663\u0664".encode(), "\u00b2".encode(), "\U0001d7d8".encode(), b"9" * 5000),
]
ODDITIES = [
    *(b"\0", b"\0" * 9, b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b"\r", b"\t", b"\x1b[31m", b"\x0b", b"\x0c", b"\x1c", b"\x85", "\u2028\u0085\u00a0".encode()),
    *(b"\\", b'"', b"'", b"|", b"\\ud800", b"\\u0000", b"null", b"true", b"{}", b"[]", b'""', b","),
    *(b"\n\n", b"\r\n", b"...", b" - ", b"->", b": ", b"$ ", b"# "),
]
WORDS = [
    *(
        b"Pass",
        b"Fail",
        b"Fail - All",
        b"Fail - GPUs: 0, 1",
        b"Skip",
        b"Warn",
        b"Not Run",
        b"Error",
    ),
    *(b"Healthy", b"Warning", b"Failure", b"OK", b"FAILED", b"N/A", b"kernel", b"syslog", b"fatal"),
]
WORD = re.compile(rb"\b(?:" + b"|".join(sorted(WORDS, key=len, reverse=True)) + rb")\b")
NUMBER = re.compile(rb"\d+(?:\.\d+)?")
NESTS = [b"[", b"{", b'{"a":', b'[{"tests":', b'{"results":[', b"(", b"| "]
DEPTHS = [*[1, 2, 3, 9] * 8, 70, 1100]


@cache
def pieces(kind: str) -> list[bytes]:
    """The words, numbers and marks that the texts of a kind are made of."""
    found = {p for t in texts(kind) for p in re.findall(rb"[A-Za-z_]+|\d+|[^A-Za-z_\d]+", t)}
    return sorted(found)


@dataclass(slots=True)
class Draft:
    """A text that is being changed."""

    kind: str
    draw: random.Random
    data: bytearray

    def place(self) -> int:
        return self.draw.randrange(len(self.data) + 1)

    def insert(self, what: bytes) -> None:
        at = self.place()
        self.data[at:at] = what

    def byte(self) -> None:
        at = self.place()
        self.data[at : at + 1] = bytes([self.draw.randrange(256)])

    def gap(self) -> None:
        at = self.place()
        del self.data[at : at + self.draw.randrange(1, 60)]

    def end_early(self) -> None:
        del self.data[self.place() :]

    def begin_late(self) -> None:
        del self.data[: self.place()]

    def foreign(self) -> None:
        other = self.draw.choice(texts(self.draw.choice(KINDS)))
        at = self.draw.randrange(len(other))
        self.insert(other[at : at + 300])

    def other(self, pattern: re.Pattern[bytes], by: list[bytes]) -> None:
        """Put something else for a match behind a random place, or for the first of all."""
        data = bytes(self.data)
        if found := pattern.search(data, self.place()) or pattern.search(data):
            self.data[found.start() : found.end()] = self.draw.choice(by)

    def everywhere(self, what: bytes, by: bytes) -> None:
        self.data = self.data.replace(what, by)

    def lines(self, change: Callable[[list[bytearray], random.Random], None]) -> None:
        lines = self.data.split(b"\n")
        change(lines, self.draw)
        self.data = bytearray(b"\n".join(lines))


def exchange(lines: list[bytearray], draw: random.Random) -> None:
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def lose(lines: list[bytearray], draw: random.Random) -> None:
    del lines[draw.randrange(len(lines))]


def repeat(lines: list[bytearray], draw: random.Random) -> None:
    line, at = draw.choice(lines), draw.randrange(len(lines) + 1)
    lines[at:at] = [line] * draw.choice([1, 1, 1, 2, 2, 30])


def join(lines: list[bytearray], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    lines[at : at + 2] = [bytearray(draw.choice([b"", b" ", b"\r"]).join(lines[at : at + 2]))]


def stretch(lines: list[bytearray], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    lines[at] = lines[at] * draw.choice([2, 3, 4, 50]) if len(lines[at]) < 200 else lines[at] * 2


def part(lines: list[bytearray], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    cut = draw.randrange(len(lines[at]) + 1)
    lines[at : at + 1] = [lines[at][:cut], lines[at][cut:]]


CHANGES: list[Callable[[Draft], None]] = [
    Draft.byte,
    Draft.gap,
    Draft.end_early,
    Draft.begin_late,
    Draft.foreign,
    lambda d: d.insert(d.draw.choice(pieces(d.kind))),
    lambda d: d.insert(d.draw.choice(pieces(d.kind)) * d.draw.choice([2, 3, 20, 200])),
    lambda d: d.insert(d.draw.choice(NUMBERS)),
    lambda d: d.insert(d.draw.choice(ODDITIES)),
    lambda d: d.insert(d.draw.choice(NESTS) * d.draw.choice(DEPTHS)),
    lambda d: d.other(NUMBER, NUMBERS),
    lambda d: d.other(WORD, WORDS),
    lambda d: d.everywhere(b"\n", b"\r\n"),
    lambda d: d.everywhere(b"  ", b"\t"),
    lambda d: d.lines(exchange),
    lambda d: d.lines(lose),
    lambda d: d.lines(repeat),
    lambda d: d.lines(join),
    lambda d: d.lines(stretch),
    lambda d: d.lines(part),
]


def changed(kind: str, number: int) -> tuple[bytes, dict[str, object]]:
    """A text of a kind with one to five changes, and what is said to be known beside it."""
    draw = random.Random(number)
    draft = Draft(kind, draw, bytearray(draw.choice(texts(kind))))
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        draw.choice(CHANGES)(draft)
    return bytes(draft.data), draw.choice(CONTEXTS[kind])
