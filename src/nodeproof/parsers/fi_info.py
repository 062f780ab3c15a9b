"""What `fi_info` prints: the providers of libfabric, and the EFA devices among them.

libfabric, util/info.c: a short block of lines for each endpoint (`provider:` and what belongs to it
indented below), a long one with -v (`fi_info:`, after a line of dashes), or with -l a heading
for each provider that was built in, which says nothing of devices. One device has two to four
endpoints by version, so devices are counted by their domains, never by their blocks. A refusal is
one line with the negative error number of fi_getinfo(3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeproof.parsers.reading import Context, Grade, Reading, text_of

_NO_DATA, _NO_DEVICE, _NO_SUCH = 61, 19, 2  # what the kernel's and libfabric's numbers share
_ABSENT = frozenset({_NO_DATA, _NO_DEVICE, _NO_SUCH})
_MESSAGES = {  # of fi_strerror(3), for a line without its number
    "no such file or directory": _NO_SUCH,
    "cannot allocate memory": 12,
    "permission denied": 13,
    "no such device": _NO_DEVICE,
    "invalid argument": 22,
    "function not implemented": 38,
    "no data available": _NO_DATA,
}
_RDMA = frozenset({"verbs", "ucx", "mlx", "psm3"})  # providers that run over InfiniBand
_SUFFIX = re.compile(r"-(?:rdm|dgrm)$")
_NUMBER = re.compile(r"(?:[:=]|\bwith|\breturned|\berror|\s)\s*(-?\d{1,6})\s*(?:\(|$)")
_SHOWN = frozenset({"fabric", "domain", "version", "type", "protocol"})
_LONGEST = 400  # characters of a line; a longer one is none of ours


@dataclass(slots=True, kw_only=True)
class _Entry:
    """One endpoint. `None` is what was not printed."""

    provider: str
    device: bool = True  # false in a list of what was built in
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """A layered provider names the one that has the device, then the one on top of it."""
        return [part.strip().lower() for part in self.provider.split(";")]

    @property
    def domain(self) -> str:
        """Name of the RDMA device where the provider is EFA's, `""` without one."""
        name = self.fields.get("domain", "")
        return "" if name in {"", "(null)"} else _SUFFIX.sub("", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    entries: list[_Entry]
    errno: int | None
    cut: bool  # the last block has less than those before it

    @property
    def efa(self) -> list[_Entry]:
        return [e for e in self.entries if "efa" in e.parts and e.device and e.domain]

    @property
    def devices(self) -> list[str]:
        return sorted({e.domain for e in self.efa})

    @property
    def providers(self) -> list[str]:
        return sorted({e.parts[0] for e in self.entries})

    @property
    def unreliable(self) -> list[str]:
        """Devices that show datagrams only, over which neither NCCL nor MPI runs."""
        told = {e.domain for e in self.efa if e.fields.get("type", "FI_EP_RDM") != "FI_EP_DGRAM"}
        return [name for name in self.devices if name not in told]


def read(data: bytes, context: Context) -> Reading:
    """Read the output of `fi_info`, with or without -v or -l, and what a console put around it.

    `facts`: `entries` (blocks), `efa_devices` (sorted), `providers` (sorted, lower case, the first
    name of layered ones), `errno` (positive, or `None`). Of `context` it uses `efa_expected`,
    `efa_nics_expected`, `ib_expected`, `exit_status` and `where`. Never raises.
    """
    listing = _listing(text_of(data))
    grade, why = _judged(listing, context)
    facts = {
        "entries": len(listing.entries),
        "efa_devices": listing.devices,
        "providers": listing.providers,
        "errno": listing.errno,
    }
    return Reading(grade=grade, why=why, fields={"facts": facts})


def _judged(listing: _Listing, context: Context) -> tuple[Grade, str]:
    status = context.get("exit_status")
    ours = {0, listing.errno, None}
    if not listing.entries and listing.errno is None:
        return Grade.ERROR, (
            "nothing here is the output of fi_info: run `fi_info -p efa` and keep what it prints, "
            "errors too"
        )
    if isinstance(status, int) and status not in ours:
        return Grade.ERROR, (
            f"fi_info ended with status {status}, so what it printed may not be all: run it again"
        )
    count = context.get("efa_nics_expected")
    wanted = count if isinstance(count, int) and not isinstance(count, bool) else None
    expected = context.get("efa_expected")
    if expected or wanted:
        return _held(listing, wanted, elsewhere=context.get("where") == "container")
    if context.get("ib_expected") is True and not _RDMA & set(listing.providers):
        return Grade.FAIL, (
            f"InfiniBand is expected, and no provider here uses it ({_named(listing)}): look at "
            "ibstat and at the driver of the adapters"
        )
    if expected is None and wanted is None:
        return _unasked(listing)
    if listing.devices:
        return Grade.WARN, (
            f"no EFA is expected, and there is {', '.join(listing.devices)}: correct what is "
            "expected of this node"
        )
    if not listing.entries and listing.errno not in _ABSENT:
        return Grade.ERROR, _refused(listing)
    return Grade.PASS, f"no EFA is expected and there is none; providers: {_named(listing)}"


def _held(listing: _Listing, wanted: int | None, *, elsewhere: bool) -> tuple[Grade, str]:
    """EFA is expected: `wanted` devices, or at least one."""
    found = listing.devices
    enough = len(found) >= (wanted or 1)
    if not enough or (listing.cut and wanted is None):
        if listing.cut:
            return Grade.ERROR, (
                f"the text ends within a block, after {len(found)} EFA devices: run fi_info again"
            )
        if not listing.entries and listing.errno not in _ABSENT:
            return Grade.ERROR, _refused(listing)
        if not any(e.device for e in listing.entries) and "efa" in listing.providers:
            return Grade.ERROR, (
                "a list of what was built in says nothing of devices: run `fi_info -p efa`"
            )
        said = (
            f"{len(found)} EFA devices ({', '.join(found) or 'none'}) of {wanted or 'at least 1'}"
        )
        if elsewhere:
            return Grade.ERROR, (
                f"{said} in this container: give it all of them (vpc.amazonaws.com/efa), or look "
                "on the host"
            )
        return Grade.FAIL, (
            f"{said} can be used; providers: {_named(listing)}: look for the efa driver and for "
            "EFA devices on the PCI bus; without them NCCL falls back to TCP"
        )
    if wanted is not None and len(found) > wanted:
        return Grade.WARN, (
            f"{len(found)} EFA devices where {wanted} are expected: correct what is expected, or "
            "this is another kind of node"
        )
    if listing.unreliable:
        return Grade.WARN, (
            f"{', '.join(listing.unreliable)}: only FI_EP_DGRAM is shown, and NCCL needs FI_EP_RDM: "
            "run fi_info without -t"
        )
    return Grade.PASS, f"{len(found)} EFA devices: {', '.join(found)}"


def _unasked(listing: _Listing) -> tuple[Grade, str]:
    if not listing.entries:
        return Grade.ERROR, (
            f"fi_info was refused with error {listing.errno}, and it is not known whether this node "
            "should have EFA: say so (efa_expected)"
        )
    if listing.cut:
        return Grade.ERROR, "the text ends within a block: run fi_info again"
    return Grade.PASS, f"providers: {_named(listing)}; nothing is known of what there should be"


def _refused(listing: _Listing) -> str:
    return (
        f"fi_info was refused with error {listing.errno}, which is not that of a missing device: "
        "look at memory, permissions and the version of libfabric, then run it again"
    )


def _named(listing: _Listing) -> str:
    return ", ".join(listing.providers) or f"none (error {listing.errno})"


# --- the text -------------------------------------------------------------------------------


def _listing(text: str) -> _Listing:
    entries: list[_Entry] = []
    errno: int | None = None
    for kind, name, value in _lines(text):
        if kind == "error":
            errno = int(value)
        elif kind == "entry":
            entries.append(_Entry(provider=value))
        elif kind == "built in":
            entries.append(_Entry(provider=value, device=False))
        elif entries and name not in entries[-1].fields:
            entries[-1].fields[name] = value
        if kind == "field" and entries and name == "provider":
            entries[-1].provider = value
    named = [e for e in entries if e.provider]
    cut = named[-1:] != entries[-1:] or _cut(named)
    if cut and named and next(reversed(named[-1].fields), "") == "domain":
        del named[-1].fields["domain"]  # which may be half a name
    return _Listing(entries=named, errno=errno, cut=cut)


def _cut(entries: list[_Entry]) -> bool:
    """Whether the last block is shorter than the others, which a filter may have shortened all."""
    if not entries or not entries[-1].device:
        return False
    *others, last = entries
    usual = set(others[0].fields) - {"fabric"} if others else {"protocol"}
    return not usual <= set(last.fields)


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """What each line says: `entry`, `built in`, `field` or `error`, a name, and a value."""
    section, heading = "", ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or len(line) > _LONGEST:
            continue
        if (number := _error(line)) is not None:
            yield "error", "", str(number)
            continue
        name, colon, rest = line.partition(":")
        value = rest.strip() if colon and " " not in name else "?"
        if (name == "provider" and value not in {"", "?"}) or line == "fi_info:":
            section, heading = name, ""
            yield "entry", "", value
        elif section.startswith("fi_"):
            section = name if name.startswith("fi_") and not value else section
            yield from _long(section, name, value)
        elif heading and name == "version":
            yield "built in", "", heading
            heading = ""
        else:
            heading = "" if raw[:1] in {" ", "\t"} or value else name
            if name in _SHOWN and value:
                yield "field", name, value


def _long(section: str, name: str, value: str) -> Iterator[tuple[str, str, str]]:
    """A line of a long block: the names of fabric and domain are told apart by their section."""
    known = {
        ("fi_fabric_attr", "prov_name"): "provider",
        ("fi_fabric_attr", "prov_version"): "version",
        ("fi_domain_attr", "name"): "domain",
        ("fi_ep_attr", "type"): "type",
        ("fi_ep_attr", "protocol"): "protocol",
    }.get((section, name))
    if known:
        yield "field", known, value


def _error(line: str) -> int | None:
    """The positive number of a refusal; the library's own log mentions others and is no refusal."""
    if "fi_getinfo" not in line or line.startswith("libfabric:"):
        return None
    if "$ " in line or line.startswith(("#", "$")):
        return None  # a prompt
    rest = line[line.index("fi_getinfo") :]
    if numbers := _NUMBER.findall(rest):
        return abs(int(numbers[-1])) or None
    said = rest.lower()
    return next((number for message, number in _MESSAGES.items() if message in said), None)
