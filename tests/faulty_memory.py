"""Memory with the faults that memory has: it stands between torch and the cells.

Each operation of torch that writes some of the watched words is done, and then the faults have
their way. What one operation writes is written at once, as on a GPU, where no order can be relied
on: a fault between two words shows only if they are not written by the same operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Written:
    """The watched words before and after one operation, and which of them it wrote."""

    before: object  # numpy, unsigned
    now: object  # the same, and may be changed
    words: set[int]

    def bit(self, word, bit):
        return int(self.now[word]) >> bit & 1

    def was(self, word, bit):
        return int(self.before[word]) >> bit & 1

    def set(self, word, bit, value):
        mask = 1 << bit
        self.now[word] = int(self.now[word]) & ~mask | (mask if value else 0)

    def rose(self, word, bit, *, to):
        return word in self.words and (self.was(word, bit), self.bit(word, bit)) == (1 - to, to)


@dataclass
class StuckAt:
    word: int
    bit: int
    value: int

    def settle(self, w):
        w.set(self.word, self.bit, self.value)


@dataclass
class Transition:
    """A cell that cannot change to `value`."""

    word: int
    bit: int
    value: int

    def settle(self, w):
        if w.rose(self.word, self.bit, to=self.value):
            w.set(self.word, self.bit, 1 - self.value)


@dataclass
class Coupling:
    """A victim that changes when an aggressor changes `to`: is inverted, or forced to a value."""

    word: int
    bit: int
    aggressor: int
    other_bit: int
    to: int
    forced: int | None = None

    def settle(self, w):
        apart = self.aggressor == self.word or self.word not in w.words
        if apart and w.rose(self.aggressor, self.other_bit, to=self.to):
            held = w.bit(self.word, self.bit)
            w.set(self.word, self.bit, 1 - held if self.forced is None else self.forced)


@dataclass
class State:
    """A victim that cannot be other than `forced` while the aggressor is `when`."""

    word: int
    bit: int
    aggressor: int
    other_bit: int
    when: int
    forced: int

    def settle(self, w):
        if w.bit(self.aggressor, self.other_bit) == self.when:
            w.set(self.word, self.bit, self.forced)


@dataclass
class Alias:
    """Two addresses that reach one cell."""

    word: int
    other: int

    def settle(self, w):
        if self.other in w.words:
            w.now[self.word] = w.now[self.other]
        elif self.word in w.words:
            w.now[self.other] = w.now[self.word]


@dataclass
class Neighbourhood:
    """A victim of this value that gives way when all around were written twice with the opposite."""

    word: int
    bit: int
    value: int
    around: tuple[int, ...]
    count: int = field(default=0)

    def settle(self, w):
        if self.word in w.words:
            self.count = 0
        held = w.bit(self.word, self.bit)
        if held == self.value and all(w.bit(n, self.bit) != held for n in self.around):
            self.count += bool(w.words & set(self.around))
        else:
            self.count = 0
        if self.count >= 2:
            w.set(self.word, self.bit, 1 - held)
            self.count = 0


class FaultyMemory(TorchDispatchMode):
    """Within it, the words of `cells` have these faults."""

    def __init__(self, cells, faults):
        super().__init__()
        self._store = cells.untyped_storage().data_ptr()
        self._now = cells.numpy().view("uint64")
        self._numbers = torch.arange(cells.numel())
        self._faults = faults

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = set()
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                written |= self._words(given)
        if not written:
            return func(*args, **kwargs)
        before = self._now.copy()
        result = func(*args, **kwargs)
        what = Written(before=before, now=self._now, words=written)
        for fault in self._faults:
            fault.settle(what)
        return result

    def _words(self, given):
        if given is None or given.untyped_storage().data_ptr() != self._store:
            return set()
        place = (given.size(), given.stride(), given.storage_offset())
        return set(self._numbers.as_strided(*place).flatten().tolist())
