"""Read the node's files under the place where they are mounted, and remember what was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


class Unreadable(Exception):  # noqa: N818  a state of the node, not an error of ours
    """A reading that could not be taken. Says which file or call, and what to do."""

    cause = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The node's files as they stand under `root` (`--host-root`).

    `seen` keeps every text that was read by its path, for a recorded node.
    """

    root: Path
    seen: dict[str, str] = field(default_factory=dict)

    def text(self, path: str, *, keep: bool = True, may_be_empty: bool = False) -> str:
        """Content of a file without the white space around it.

        `path` is relative to the root. With `keep=False` it is not remembered: for what identifies
        a machine to others. An empty file says nothing, which is no answer, but where it
        `may_be_empty` by its nature. Raises `Unreadable`.
        """
        try:
            content = (self.root / path).read_text("utf-8", "backslashreplace").strip()
        except OSError as error:
            raise Unreadable(f"{self._shown(path)}: {error.strerror or error}") from None
        if not content and not may_be_empty:
            raise Unreadable(f"{self._shown(path)} is empty: is it the node's own file?")
        if keep:
            self.seen[path] = content
        return content

    def value(self, path: str, read: Callable[[str], Value]) -> Value:
        """Content of a file as `read` understands it. Raises `Unreadable`, also for nonsense."""
        content = self.text(path)
        try:
            return read(content)
        except (ValueError, IndexError):
            raise Unreadable(f"{self._shown(path)} says {content[:80]!r}") from None

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted. Raises `Unreadable`."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError as error:
            raise Unreadable(f"{self._shown(path)}: {error.strerror or error}") from None

    def _shown(self, path: str) -> str:
        return str(self.root / path)


def whole(text: str) -> int:
    """Read a decimal number that cannot be negative. Raises `ValueError`."""
    if not text.isascii() or not text.isdecimal():
        raise ValueError(text)
    return int(text)
