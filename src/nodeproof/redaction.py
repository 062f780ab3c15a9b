"""Put placeholders for what identifies a machine, so that its recording can be shown to others.

Pure. The same thing gets the same placeholder wherever it stands and however it is written (a boot
id with and without its dashes, a GUID with colons and as one number), and keeps its shape, so that
the checks read it as they read the original. PCI addresses stay: they say where in the machine, and
are alike in all machines of a kind.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_HEX = "[0-9a-f]"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_GROUPS = f"{_HEX}{{1,4}}(?::{_HEX}{{1,4}})"
_OF_EC2 = "(?:i|vol|eni|vpc|subnet|ami|snap|sg|cr|fs|lt)"
_SECRET = "|".join(
    f"(?<={word}=)" for word in ("token", "password", "secret", "api_key", "api-key")
)
# Tried in this order at each place, each between two characters that are no letter and no digit.
_PATTERNS = {
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}|{_HEX}{{32}}",
    # Six octets of Ethernet, eight of an EUI-64, twenty of IP over InfiniBand.
    "mac": f"(?:{_HEX}{{2}}:){{5,}}{_HEX}{{2}}|(?:{_HEX}{{2}}-){{5,}}{_HEX}{{2}}",
    "ipv6": f"{_GROUPS}{{7}}|{_GROUPS}{{0,6}}::(?:{_GROUPS}{{0,6}})?|::{_GROUPS}{{0,6}}",
    "guid": f"(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "dns": f"ip-{_OCTET}(?:-{_OCTET}){{3}}",  # how EC2 names a host
    # Interfaces that systemd names by their address, resources of EC2, disks by what they are.
    "enx": f"(?<=enx){_HEX}{{12}}",
    "cloud": f"{_OF_EC2}-?{_HEX}{{17}}|{_OF_EC2}-{_HEX}{{8}}",
    "disk": rf"(?:eui\.|naa\.|wwn-0x){_HEX}{{16,32}}|nvme\.{_HEX}{{4}}(?:-{_HEX}+){{3}}",
    "user": r"(?<=/home/)[0-9a-z_.-]+",
    # Domains that are nobody's in public; one behind "ip-10-0-0-1." belongs to that.
    "peer": r"(?<!\.)[0-9a-z][0-9a-z-]{0,62}(?:\.[0-9a-z-]{1,63}){0,6}\.(?:internal|corp|lan|intranet)",
    # By the form that its issuer gives it, or by the word before it.
    "secret": r"(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abprs]-)[0-9a-z_-]{6,}|A[KS]IA[0-9a-z]{16}"
    rf"|(?:{_SECRET})[^\s\"'&;,]+",
}
_PREFIX = re.compile(rf"{_OF_EC2}-?|eui\.|naa\.|wwn-0x|nvme\.")
_START = "(?:(?<![0-9a-z])|(?<=enx))"
_END = r"(?![0-9a-z])"
# An address may end a sentence; a version of more than four parts is none.
_ENDS = {
    "ipv4": r"(?![0-9a-z]|\.[0-9])",
    "ipv6": r"(?![0-9a-z:]|\.[0-9])",
    "guid": r"(?![0-9a-z:])",
}
_FIND = (
    _START
    + "(?:"
    + "|".join(
        f"(?P<{kind}>(?:{pattern}){_ENDS.get(kind, _END)})" for kind, pattern in _PATTERNS.items()
    )
    + ")"
)
_KNOWN = re.compile(_FIND, re.IGNORECASE)

# What is only known by the words beside it.
_SERIAL = re.compile(
    r"\b(?:serial(?:[ _]?(?:number|no\.?))?|s/?n)\s*[:=]\s*\"?(?P<found>[0-9a-z][0-9a-z._-]{4,})",
    re.IGNORECASE,
)
# The last part of an NVMe or iSCSI name, of a disk's link, and the account in a name of AWS'.
_WITHIN = re.compile(
    r"\b(?:iqn|nqn)\.\d{4}-\d\d\.[^\s\"',;]{1,200}:(?P<named>[^\s\"',;:]{6,64})"
    r"|by-id/[a-z]+-[^\s/\"]{1,120}_(?P<disk>[0-9a-z]{8,40})(?![0-9a-z])"
    r"|\barn:aws[a-z-]*:[a-z0-9-]*:[a-z0-9-]*:(?P<account>\d{12}):",
    re.IGNORECASE,
)
_GUID = re.compile(rf"guid\w*\s*[:=]?\s*(?:0x)?(?P<found>{_HEX}{{16}}){_END}", re.IGNORECASE)
_LOGGING = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ 0-3]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (?P<found>[\w.-]+) "
    r"(?:kernel|systemd|[\w-]+\[\d+\]):",
    re.MULTILINE,
)
_VERSION = re.compile(r"(?:version|release|driver|firmware|fw|vbios)\W{0,4}$", re.IGNORECASE)
_SERIAL_FIELD = re.compile(
    r"(?:^|_)(?:serial|serial_?no|serial_?number|asset_tag|wwid|wwn|nguid|eui)(?:_|$)",
    re.IGNORECASE,
)
_NAME_FIELD = re.compile(r"_?(?:hostname|node_?name|host_name)", re.IGNORECASE)
_GUID_FIELD = re.compile(r"guid", re.IGNORECASE)
_NOBODY = frozenset({"localhost", "localdomain", "node", "host", "kernel", "linux", "replayed"})
# What stays whatever it says: the head of a recording, what an answer was asked, kinds of things.
_HEAD = frozenset({"schema", "version", "recorded", "options"})
_ASKED = frozenset({"call", "args", "before"})
_INNER = frozenset({"kind"})
_SURE = 6  # characters of a serial that is looked for in other texts too

Identity = tuple[str, str]  # kind and the same text for every way to write one thing


def redacted(document: Any, *, names: Iterable[str] = ()) -> Any:
    """Return a recording (plain JSON values) without what identifies its machine.

    Replaced: UUIDs (of GPUs, MIG devices, boots, file systems), serials and asset tags, MAC, IPv4
    and IPv6 addresses, GIDs and GUIDs, ids of EC2's resources, accounts and disks, host names (those
    in `names`, in a field of that meaning, before a line of a log, and in a private domain), users
    in paths of /home, and secrets that their form or the word before them gives away. What was asked (calls and
    their arguments) stays, and so do loopback, broadcast and empty addresses. Names of one or two
    letters are not looked for in other texts, and no name in that of a field. No placeholder is an identifier of the document.
    """
    book = _Book()
    for name in names:
        book.note_name(name)
    for key, text in _texts(document, "", _HEAD):
        book.note(key, text)
    book.assign()
    return _replaced(document, "", _HEAD, book)


def _texts(value: Any, key: str, kept: frozenset[str]) -> Iterator[tuple[str, str | int]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in kept:
                yield "", name
                yield from _texts(inner, _last(name), _within(kept, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key, kept)
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield key, value


def _replaced(value: Any, key: str, kept: frozenset[str], book: _Book) -> Any:
    if isinstance(value, Mapping):
        return {
            book.in_key(name): _replaced(inner, _last(name), _within(kept, name), book)
            if name not in kept
            else inner
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_replaced(inner, key, kept, book) for inner in value]
    if isinstance(value, str):
        return book.in_text(key, value)
    if isinstance(value, int) and not isinstance(value, bool) and _SERIAL_FIELD.search(key):
        return book.in_number(value)
    return value


def _within(kept: frozenset[str], name: str) -> frozenset[str]:
    """Return what stays inside a field of this name."""
    return _ASKED if kept is _HEAD and name == "answers" else _INNER


def _last(name: str) -> str:
    """Return the name of a field; for a path that of its file."""
    return name.rpartition("/")[2]


@dataclass(slots=True)
class _Book:
    """Who is who: each identity that was met, and its number."""

    met: dict[Identity, int] = field(default_factory=dict)  # in order of appearance
    literals: dict[str, Identity] = field(default_factory=dict)  # lower case
    anywhere: re.Pattern[str] = _KNOWN

    def note(self, key: str, text: str | int) -> None:
        """Take in one text, and what its field says about it."""
        if isinstance(text, int):
            if _SERIAL_FIELD.search(key):
                self._meet(("serial", str(text)))
            return
        for match in _KNOWN.finditer(text):
            if (identity := _identity(match, key)) is not None:
                self._meet(identity)
        self._note_by_field(key, text)
        for match in _SERIAL.finditer(text):
            self._note_serial(match["found"])
        for match in _WITHIN.finditer(text):
            self._note_serial(match[str(match.lastgroup)])
        for match in _GUID.finditer(text):
            self._note_guid(match["found"])
        for match in _LOGGING.finditer(text):
            self.note_name(match["found"])

    def _note_by_field(self, key: str, text: str) -> None:
        if _SERIAL_FIELD.search(key):
            self._note_serial(text)
        if _NAME_FIELD.fullmatch(key):
            self.note_name(text)
        if _GUID_FIELD.search(key) and (bare := _bare_guid(text)):
            self._note_guid(bare)

    def note_name(self, name: str) -> None:
        """Take in the name of a host, in full and without its domain."""
        for one in dict.fromkeys((name.strip().lower(), name.strip().lower().partition(".")[0])):
            known = _KNOWN.fullmatch(one)
            if len(one) > 2 and one not in _NOBODY and not known and not one.isdecimal():
                self.literals.setdefault(one, ("name", one))
                self._meet(("name", one))

    def _note_serial(self, text: str) -> None:
        if not any(c.isdigit() and c != "0" for c in text) or _KNOWN.fullmatch(text):
            return  # "N/A", "None", nothing but zeros; or known by its form
        identity = ("serial", text.lower())
        self._meet(identity)
        if len(text) >= _SURE:
            self.literals.setdefault(text.lower(), identity)

    def _note_guid(self, digits: str) -> None:
        if int(digits, 16):
            self._meet(("guid", digits.lower()))

    def _meet(self, identity: Identity) -> None:
        self.met.setdefault(identity, 0)

    def assign(self) -> None:
        """Number what was met; no placeholder is the name of something else that was met."""
        last: dict[str, int] = {}
        for kind, own in self.met:
            number = last.get(kind, 0) + 1
            while (kind, _placeholder(kind, own, number)) in self.met:
                number += 1
            self.met[kind, own] = last[kind] = number
        for kind, own in self.met:
            if kind == "guid":  # as one number too
                self.literals.setdefault(own, (kind, own))
        if self.literals:
            longest = sorted(self.literals, key=len, reverse=True)
            words = "|".join(re.escape(word) for word in longest)
            literal = f"(?:(?<![0-9a-z])|(?<=0x))(?P<literal>{words}){_END}"
            self.anywhere = re.compile(f"{literal}|{_FIND}", re.IGNORECASE)

    def in_text(self, key: str, text: str) -> str:
        """Return a text with its placeholders."""
        own = ("serial", text.lower())
        if _SERIAL_FIELD.search(key) and own in self.met:
            return self._written(own, text)
        return self.anywhere.sub(lambda match: self._put(match, key), text)

    def in_key(self, name: str) -> str:
        """Return the name of a field, which may be that of a device or of a path."""
        return _KNOWN.sub(lambda match: self._put(match, ""), name)

    def in_number(self, value: int) -> int:
        """Return a serial that is a number."""
        return self.met.get(("serial", str(value)), value)

    def _put(self, match: re.Match[str], key: str) -> str:
        if match.lastgroup == "literal":
            return self._written(self.literals[match[0].lower()], match[0])
        identity = _identity(match, key)
        return match[0] if identity not in self.met else self._written(identity, match[0])

    def _written(self, identity: Identity, text: str) -> str:
        """Write the placeholder of an identity in the way in which `text` is written."""
        kind, own = identity
        new = _placeholder(kind, own, self.met[identity])
        match kind:
            case "ipv4":
                return "ip-" + new.replace(".", "-") if text.lower().startswith("ip-") else new
            case "ipv6":
                whole = len(text) == 39  # as in sysfs: eight groups of four digits
                return ipaddress.IPv6Address(new).exploded if whole else new
            case "name" | "serial" | "user" | "peer" | "secret":
                return new
        prefix = found[0] if (found := _PREFIX.match(text.lower())) and kind == "id" else ""
        digits = iter(new)
        return text[: len(prefix)] + re.sub(
            "[0-9a-fA-F]", lambda _: next(digits), text[len(prefix) :]
        )


def _identity(match: re.Match[str], key: str) -> Identity | None:
    """Say what was found, in one form for all ways to write it; `None` for what names nobody."""
    kind, text = str(match.lastgroup), match[0].lower()
    if kind in {"ipv4", "dns"}:
        return _ipv4(match, key, text.removeprefix("ip-").replace("-", "."))
    if kind == "ipv6":
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return None
        nobody = address.is_unspecified or address.is_loopback or address.is_multicast
        bare = int(address) & ((1 << 64) - 1) == 0  # a prefix without a host
        return None if nobody or bare else ("ipv6", str(address))
    if kind in {"user", "peer", "secret"}:
        return kind, text
    if kind in {"cloud", "disk"}:
        digits = re.sub("[^0-9a-f]", "", _PREFIX.sub("", text, count=1))
        return "id", digits
    digits = re.sub("[^0-9a-f]", "", text)
    if set(digits) <= {"0"} or set(digits) <= {"f"}:
        return None
    return "mac" if kind == "enx" else kind, digits


def _ipv4(match: re.Match[str], key: str, text: str) -> Identity | None:
    address = ipaddress.IPv4Address(text)
    before = match.string[max(0, match.start() - 16) : match.start()]
    if "version" in key.lower() or _VERSION.search(before):
        return None
    if address.is_unspecified or address.is_loopback or text.startswith("255."):
        return None
    return "ipv4", text


def _placeholder(kind: str, own: str, number: int) -> str:
    match kind:
        case "name":
            return f"node-{number}"
        case "user" | "secret":
            return f"{kind}-{number}"
        case "peer":
            return f"peer-{number}.example.internal"
        case "serial":
            return f"{number:0{len(own)}d}"
        case "ipv4":
            return str(ipaddress.IPv4Address("198.18.0.0") + number)  # of benchmarks: RFC 2544
        case "ipv6":
            given = ipaddress.IPv6Address(own)
            if given.ipv4_mapped:
                return str(ipaddress.IPv6Address(int(given) >> 32 << 32) + 0xC6120000 + number)
            base = "fe80::" if given.is_link_local else "2001:db8::"
            return str(ipaddress.IPv6Address(base) + number)
        case "mac":
            return "02" + f"{number:0{len(own) - 2}x}"  # locally administered
    return f"{number:0{len(own)}x}"


def _bare_guid(text: str) -> str:
    """Return the digits of a GUID that is written as one number, `""` for anything else."""
    digits = text.lower().removeprefix("0x")
    return digits if re.fullmatch(f"{_HEX}{{16}}", digits) else ""
