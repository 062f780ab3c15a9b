"""The verdict's way out of the test pod: a short message, and the whole results in its log.

The kubelet keeps at most 4,096 bytes of a termination message, so it carries the verdict and the
digest of the results; the log carries the results themselves, packed. Whoever judges takes the
results only if their digest is the one in the message, and then judges them again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LIMIT = 4096  # bytes; Kubernetes cuts a termination message there
LARGEST = 16 << 20  # bytes of results; a log that unpacks to more is no log of ours
_LINES = 100_000  # of results; each costs time to judge
_LONGEST = 2 << 20  # bytes of one line; a plan of eight GPUs has a tenth of that
_VALUES = 2_000_000  # beginnings of values in JSON; each costs whoever reads it some hundred bytes
_ROOM = 10 << 20  # bytes of results that are sent; a kubelet starts a new log file at 10 MiB packed
_WIDTH = 3000  # characters a line: below the 16 KiB at which container runtimes split lines
_BEGIN = re.compile(r"^nodeproof-results begin (sha256:[0-9a-f]{64})$")
_END = "nodeproof-results end"
_HEAD = re.compile(rb'^\{"type":"(?P<kind>[a-z]+)","seq":(?P<seq>[0-9]{1,9})(?=[,}])')
_DEVICE = re.compile(rb'"device":"([^"]*)"')


def digest(results: bytes) -> str:
    """`sha256:` and the hexadecimal digest of a results file."""
    return "sha256:" + hashlib.sha256(results).hexdigest()


def digest_of_devices(ids: Iterable[str]) -> str:
    """One digest over a set of GPUs, by UUID."""
    # A node may write half a character; two such sets are no less different for that.
    return digest("\n".join(sorted(ids)).encode(errors="surrogatepass"))


def packed(results: bytes) -> Iterator[str]:
    """Yield the lines that carry a results file through a container's log."""
    yield f"nodeproof-results begin {digest(results)}"
    text = base64.b64encode(zlib.compress(results, 9)).decode()
    for start in range(0, len(text), _WIDTH):
        yield text[start : start + _WIDTH]
    yield _END


def thinned(results: bytes) -> bytes:
    """The results as they are sent: with fewer samples of telemetry where they are too large.

    Nothing is judged by telemetry, and hours of it fill a log that the kubelet rotates. Every
    device loses the same share, and lines are numbered anew. A file that is not whole stays as it
    is: what is wrong with it has to show.
    """
    if len(results) <= _ROOM:
        return results
    lines = results.split(b"\n")[:-1]
    heads = [_HEAD.match(line) for line in lines]
    numbered = [h for n, h in enumerate(heads) if h and int(h["seq"]) == n]
    if len(numbered) < len(lines) or not results.endswith(b"\n"):
        return results
    samples = sum(len(h.string) for h in numbered if h["kind"] == b"telemetry")
    room = _ROOM - (len(results) - samples)
    every = -(-samples // room) if room > 0 else len(lines)
    seen: Counter[bytes] = Counter()
    kept: list[bytes] = []
    for head in numbered:
        line = head.string
        if head["kind"] == b"telemetry":
            found = _DEVICE.search(line)
            device = found[1] if found else b""
            seen[device] += 1
            if seen[device] % every != 1 % every:
                continue
        start, end = head.span("seq")
        kept.append(line[:start] + b"%d" % len(kept) + line[end:])
    return b"\n".join(kept) + b"\n"


def unpacked(log: str, wanted: str) -> bytes | None:
    """The results file of this digest in a log; `None` where the log does not hold it whole."""
    lines = log.splitlines()
    for number, line in enumerate(lines):
        found = _BEGIN.match(line.strip())
        if not found or found[1] != wanted:
            continue
        body: list[str] = []
        for more in lines[number + 1 :]:
            if more.strip() == _END:
                return _opened("".join(body), wanted)
            body.append(more.strip())
        return None  # nor does any later beginning have an end: looking on is quadratic
    return None


def _opened(text: str, wanted: str) -> bytes | None:
    try:
        data = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj()
        results = unpacker.decompress(data, LARGEST)
    except (binascii.Error, ValueError, zlib.error):
        return None
    whole = unpacker.eof and not unpacker.unused_data and not _too_much(results)
    return results if whole and digest(results) == wanted else None


def _too_much(results: bytes) -> bool:
    """Whether reading them would cost more than any run's results do: a node may have made them up."""
    values = sum(results.count(mark) for mark in (b"[", b"{", b","))
    if values > _VALUES or results.count(b"\n") > _LINES:
        return True
    return any(len(line) > _LONGEST for line in results.split(b"\n"))


def message(document: Mapping[str, Any], results: bytes) -> str:
    """The termination message of a verdict document: JSON, at most `LIMIT` bytes of UTF-8.

    What failed comes with as much text as there is room for; the verdict and what binds it are
    never cut.
    """
    node = document.get("node") or {}
    told: dict[str, Any] = {
        "nodeproof": document.get("schema"),
        "verdict": document["verdict"],
        "rehearsal": document["rehearsal"],
        "nonce": document["nonce"],
        "node_uid": str(node.get("uid", "")),
        "boot_id": str(node.get("boot_id", "")),
        "profile": document["profile"],
        "digests": document["digests"],
        "results": digest(results),
        "counts": document["counts"],
        "remedy": document["remedy"],
        "short": [],
        "more": 0,
    }
    rows = [*document["failed"], *document["undecided"]]
    told["more"] = len(rows)
    for row in rows:
        short = {name: str(row[name])[:200] for name in ("check", "label", "device", "text")}
        told["short"].append(short)
        told["more"] -= 1
        if len(_json(told)) > LIMIT:
            told["short"].pop()
            told["more"] += 1
            break
    return _json(told).decode()


def read(text: str) -> Mapping[str, Any] | None:
    """A termination message as a mapping; `None` for what is no message of ours."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    keys = ("verdict", "nonce", "node_uid", "boot_id", "results")
    if not isinstance(told, dict) or not all(isinstance(told.get(k), str) for k in keys):
        return None
    return told if isinstance(told.get("rehearsal"), bool) else None


def _json(told: Mapping[str, Any]) -> bytes:
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace")  # half a character out of a log must not cost the verdict
