"""JSON as it is found in captures: words around it, raw line feeds in strings, cut anywhere.

Whatever was read before a document breaks off is kept, and that it broke off is said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_DEEPEST = 64  # containers inside one another; a diagnostic has eight
_LONGEST = 18  # digits of a number; a longer one is no count of anything

# Where a document may begin: words around it hold brackets and braces of their own.
_START = re.compile(r'\{\s*+(?=["}]|\Z)|\[\s*+(?=[\[{\]"]|\Z)')
# What stands outside of every document and was a part of one: a bracket that closes, a key.
_STRAY = re.compile(r'^[ \t]*+[}\]]|"[^"\n]*+"[ \t]*+:', re.MULTILINE)
_TOKEN = re.compile(
    r'\s*+(?:(?P<mark>[{}\[\],:])|"(?P<text>(?:[^"\\]++|\\.)*+)"|(?P<word>[^\s{}\[\],:"]++))',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """All values in a text, in order.

    `closed`: there is a document, and each has both its ends. `sound`: none breaks the rules of
    JSON, and none says the same key twice, which readers understand in different ways. `outside` is
    what stands before, between and behind them.
    """

    values: tuple[Any, ...]
    closed: bool
    sound: bool
    outside: str = ""


def documents(text: str) -> Documents:
    """Read every object and list of a text. Raises nothing; takes time linear in its length."""
    values: list[Any] = []
    closed, sound, at, rest = True, True, 0, []
    while found := _START.search(text, at):
        rest.append(text[at : found.start()])
        one = _Document(text, found.start())
        one.read()
        values.append(one.value)
        closed, sound, at = closed and one.closed, sound and one.sound, one.at
    rest.append(text[at:])
    stray = any(_STRAY.search(between) for between in rest)
    return Documents(
        values=tuple(values),
        closed=closed and bool(values) and not stray,
        sound=sound,
        outside="\n".join(rest),
    )


def printable(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON can hold and UTF-8 can't."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class _Document:
    """One value, from its opening bracket to the matching one, or to where it breaks off."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.value: Any = None
        self.closed = False
        self.sound = True
        self._stack: list[dict[str, Any] | list[Any]] = []
        self._key: str | None = None
        self._wants = "value"  # value, key, colon, or comma

    def read(self) -> None:
        while token := _TOKEN.match(self.text, self.at):
            kind = token.lastgroup
            if kind == "word" and token.end() == len(self.text):
                break  # a number that ends with the text may have gone on
            if not self._take(kind, token):
                self.sound = False
                self.at = max(self.at, token.start() + 1)
                return
            self.at = token.end()
            if not self._stack:
                self.closed = True
                return
        self.at = len(self.text)

    def _take(self, kind: str | None, token: re.Match[str]) -> bool:
        mark = token["mark"]
        if mark in {"{", "["}:
            return self._open({} if mark == "{" else [])
        if mark in {"}", "]"}:
            return self._close(dict if mark == "}" else list)
        if mark == ",":
            return self._next("comma", "key" if isinstance(self._stack[-1], dict) else "value")
        if mark == ":":
            return self._next("colon", "value")
        if kind == "text" and self._wants == "key":
            self._key = _unescaped(token["text"])
            self.sound = self.sound and self._key not in self._stack[-1]
            self._wants = "colon"
            return True
        return self._put(_unescaped(token["text"]) if kind == "text" else _plain(token["word"]))

    def _next(self, wanted: str, then: str) -> bool:
        if self._wants != wanted:
            return False
        self._wants = then
        return True

    def _open(self, container: dict[str, Any] | list[Any]) -> bool:
        if len(self._stack) >= _DEEPEST or not self._put(container):
            return False
        self._stack.append(container)
        self._wants = "key" if isinstance(container, dict) else "value"
        return True

    def _close(self, kind: type) -> bool:
        if not isinstance(self._stack[-1], kind) or self._wants == "colon":
            return False
        if self._key is not None and self._wants == "value":
            return False
        self._stack.pop()
        self._key, self._wants = None, "comma"
        return True

    def _put(self, value: Any) -> bool:
        if self._wants != "value":
            return False
        if not self._stack:
            self.value = value
        elif isinstance(holder := self._stack[-1], dict):
            holder[self._key or ""] = value
            self._key = None
        else:
            holder.append(value)
        self._wants = "comma"
        return True


def _unescaped(body: str) -> str:
    if "\\" not in body:
        return body
    try:
        return printable(str(json.loads(f'"{body}"', strict=False)))
    except ValueError:
        return printable(body)


def _plain(word: str) -> int | float | bool | None:
    match word:
        case "true" | "false":
            return word == "true"
        case _ if len(word) <= _LONGEST and re.fullmatch(r"-?[0-9]+", word):
            return int(word)
        case _ if len(word) <= _LONGEST and re.fullmatch(r"-?[0-9]+\.[0-9]+", word):
            return float(word)
    return None
