"""The binary files of systemd's journal: entries that have one field in common, newest first.

After the format's description (https://systemd.io/JOURNAL_FILE_FORMAT): a file is a header and
objects that refer to each other by offset, all little-endian. Nothing in a file is believed: every
chain has a direction, so that none is followed for ever, and every size an end.
"""

from __future__ import annotations

import lzma
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_SIGNATURE = b"LPKSHHRH"
_HEADER = struct.Struct("<8sII B7x 16s16s16s16s QQ QQQQ QQQ QQQ")  # up to entry_array_offset
_COMPACT = 1 << 4
_KNOWN = 0b11111  # compressed by XZ, LZ4, ZSTD; keyed hash; compact
_OBJECT = struct.Struct("<BB6xQ")
_DATA, _FIELD, _ENTRY, _ENTRY_ARRAY = 1, 2, 3, 6
_XZ, _LZ4, _ZSTD = 1, 2, 4  # flags of a data object
_FIELD_HEAD = struct.Struct("<QQQ")  # hash, next of the same hash, head of its data
_DATA_HEAD = struct.Struct("<QQQQQQ")  # hash, next of it, next of the field, entry, array, entries
_ENTRY_HEAD = struct.Struct("<QQQ16sQ")  # sequence number, real time, monotonic time, boot, hash
_LONGEST = 1 << 20  # bytes of one field that is read; a record of the kernel has 8 KiB
_LARGEST = 1 << 16  # items of one entry; the kernel's have about twenty


class Damaged(Exception):  # noqa: N818  a state of a file, not an error of ours
    """The file, or a part of it, is not what the format says. Says where."""


class Compressed(Damaged):
    """A field that only a library outside Python's own can decompress. Says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record. `monotonic` are seconds since boot as journald saw them; `items` are offsets."""

    number: tuple[bytes, int]  # of all journals: the same twice is one record in two files
    monotonic: float
    boot: bytes
    items: tuple[int, ...]


@dataclass(slots=True)
class Journal:
    """One open file. Raises `Damaged` where its header is none."""

    descriptor: int
    size: int = field(init=False)
    compact: bool = field(init=False)
    cut: bool = field(init=False)  # shorter than its own header says
    damage: str = field(init=False, default="")  # what kept `entries_with` from finding all
    _numbers: bytes = field(init=False)
    _begin: int = field(init=False)  # of the objects
    _fields: tuple[int, int] = field(init=False)  # the table of fields: offset, bytes

    def __post_init__(self) -> None:
        self.size = os.fstat(self.descriptor).st_size
        head = _HEADER.unpack(self._bytes(0, _HEADER.size))
        signature, flags, numbers = head[0], head[2], head[7]
        if signature != _SIGNATURE:
            raise Damaged("it does not begin as a journal does")
        if flags & ~_KNOWN:
            raise Damaged(f"it has features that are not known here (flags {flags:#x})")
        self.compact = bool(flags & _COMPACT)
        self.size = os.fstat(self.descriptor).st_size  # which grows before the header says so
        self.cut = head[8] + head[9] > self.size
        self._numbers = numbers
        self._begin = head[8]
        self._fields = (head[12], head[13])

    def entries_with(self, name: bytes, value: bytes) -> list[int]:
        """Offsets of the entries that have this field, in the order they were written.

        Where the lists are damaged, those that can be found, and `damage` says where.
        """
        try:
            offset = self._data_of(name, value)
        except Damaged as damage:
            self.damage = str(damage)
            offset = self._scanned(name + b"=" + value)
        found: list[int] = []
        try:
            if offset:
                self._list(offset, found)
        except Damaged as damage:
            self.damage = str(damage)
        # A file that is being written may have room for entries that are not there yet.
        return [each for each in found if each]

    def _list(self, offset: int, found: list[int]) -> None:
        """Add the entries of a data object to `found`, as far as they go."""
        _, _, _, first, array, count = _DATA_HEAD.unpack(
            self._bytes(offset + _OBJECT.size, _DATA_HEAD.size)
        )
        if first:
            found.append(first)
        width, code = (4, "I") if self.compact else (8, "Q")
        last = 0
        while array and len(found) < count:
            if array < last:
                raise Damaged(f"its lists of entries go back at {array:#x}")
            _, size = self._object(array, _ENTRY_ARRAY)
            body = self._bytes(array + _OBJECT.size, size - _OBJECT.size)
            items = (len(body) - 8) // width
            found += struct.unpack_from(f"<{items}{code}", body, 8)[: count - len(found)]
            last, array = array + size, struct.unpack_from("<Q", body)[0]

    def entry(self, offset: int) -> Entry:
        """Read one entry. Raises `Damaged`."""
        _, size = self._object(offset, _ENTRY)
        number, _, monotonic, boot, _ = _ENTRY_HEAD.unpack(
            self._bytes(offset + _OBJECT.size, _ENTRY_HEAD.size)
        )
        start, width = _OBJECT.size + _ENTRY_HEAD.size, 4 if self.compact else 16
        count = (size - start) // width
        if count > _LARGEST:
            raise Damaged(f"an entry of {count} items at {offset:#x}")
        body = self._bytes(offset + start, count * width)
        if self.compact:
            items = struct.unpack(f"<{count}I", body)
        else:
            items = struct.unpack(f"<{2 * count}Q", body)[::2]  # each with its hash
        return Entry(
            number=(self._numbers, number), monotonic=monotonic / 1e6, boot=boot, items=items
        )

    def data(self, offset: int) -> bytes:
        """Return `NAME=value` of a data object. Raises `Damaged`, `Compressed`."""
        flags, size = self._object(offset, _DATA)
        start = _OBJECT.size + _DATA_HEAD.size + (8 if self.compact else 0)
        if size - start > _LONGEST:
            raise Damaged(f"a field of {size} bytes at {offset:#x}")
        payload = self._bytes(offset + start, size - start)
        if flags & _XZ:
            return _decompressed(payload, offset)
        if flags & (_LZ4 | _ZSTD):
            raise Compressed("LZ4" if flags & _LZ4 else "ZSTD")
        return payload

    def _data_of(self, name: bytes, value: bytes) -> int:
        """Offset of a data object, 0 if there is none.

        It is looked for from the table of fields, which is small, so that no hash is to be computed:
        there are two kinds of it, and one depends on the file.
        """
        for offset in self._field_objects():
            _, size = self._object(offset, _FIELD)
            _, _, head = _FIELD_HEAD.unpack(self._bytes(offset + _OBJECT.size, _FIELD_HEAD.size))
            start = _OBJECT.size + _FIELD_HEAD.size
            if size - start != len(name) or self._bytes(offset + start, len(name)) != name:
                continue
            last = self.size
            while head:
                if head >= last:  # each new one is put in front of the others
                    raise Damaged(f"its values of {name.decode()} go forth at {head:#x}")
                if self.data(head) == name + b"=" + value:
                    return int(head)
                last = head
                body = self._bytes(head + _OBJECT.size, _DATA_HEAD.size)
                head = int(_DATA_HEAD.unpack(body)[2])
            return 0
        return 0

    def _scanned(self, content: bytes) -> int:
        """Offset of a data object, looked for from object to object: slow, and needs no list."""
        start = _OBJECT.size + _DATA_HEAD.size + (8 if self.compact else 0)
        offset = self._begin
        while offset + _OBJECT.size <= self.size:
            kind, _, size = _OBJECT.unpack(self._bytes(offset, _OBJECT.size))
            if kind == _DATA and size == start + len(content) and self.data(offset) == content:
                return offset
            if size < _OBJECT.size:
                return 0
            offset += (size + 7) // 8 * 8
        return 0

    def _field_objects(self) -> Iterator[int]:
        table, size = self._fields
        if size > self.size:
            raise Damaged("its table of fields is larger than the file")
        heads = struct.unpack(f"<{size // 8}Q", self._bytes(table, size // 8 * 8))[::2]
        for head in heads:
            offset, last = head, 0
            while offset:
                if offset <= last:
                    raise Damaged(f"its fields go back at {offset:#x}")
                yield offset
                last = offset
                offset = _FIELD_HEAD.unpack(self._bytes(offset + _OBJECT.size, _FIELD_HEAD.size))[1]

    def _object(self, offset: int, kind: int) -> tuple[int, int]:
        """Flags and size of an object, which has to be of this kind and end within the file."""
        found, flags, size = _OBJECT.unpack(self._bytes(offset, _OBJECT.size))
        least = _OBJECT.size + 8
        if found != kind or size < least or offset + size > self.size or offset % 8:
            raise Damaged(f"at {offset:#x} is not what is referred to there")
        return flags, size

    def _bytes(self, offset: int, size: int) -> bytes:
        # A read, and no map of the file: whoever shortens a mapped file kills its readers.
        if offset + size > self.size:  # unless it has grown meanwhile
            self.size = os.fstat(self.descriptor).st_size
        if size < 0 or offset < 0 or offset + size > self.size:
            raise Damaged(f"it ends before {offset + max(size, 0):#x}")
        found = os.pread(self.descriptor, size, offset)
        if len(found) != size:
            raise Damaged(f"it ends before {offset + size:#x}")
        return found


def _decompressed(payload: bytes, offset: int) -> bytes:
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=1 << 26)
    try:
        found = reader.decompress(payload, max_length=_LONGEST)
    except lzma.LZMAError as error:
        raise Damaged(f"a compressed field at {offset:#x}: {error}") from None
    if not reader.eof:
        raise Damaged(f"a compressed field at {offset:#x} has no end")
    return found
