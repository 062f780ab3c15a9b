"""`nodeproof record -o FILE`: what the checks are told of this node, for reports and tests."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import sys
import tempfile
from pathlib import Path

from nodeproof import lifeline
from nodeproof.cli import options, run, view
from nodeproof.redaction import redacted

_DEADLINE_S = 600.0  # a ceiling; every reading has its own deadline below it
_NAMES = ("proc/sys/kernel/hostname", "etc/hostname")


def main(args: argparse.Namespace) -> int:
    """Run the checks that read, and keep what they read; return 0 if the file is whole."""
    args.deadline = _DEADLINE_S
    try:
        told = options.read(args)
        # Now, and not after minutes; and an earlier recording must not be taken for this one.
        args.output.write_bytes(b"")
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"nodeproof: {args.output}: {error.strerror}", file=sys.stderr)
        return 2
    args.run_id = told.run_id
    lifeline.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        said, text = _recorded(args, Path(scratch))
    try:
        if text:
            args.output.write_text(text, "utf-8")
        elif args.output.is_file():
            args.output.unlink()  # made above, and empty
    except OSError as error:
        said = f"{args.output}: {error.strerror}"
    if said:
        print(f"nodeproof: {said}", file=sys.stderr)
    return 11 if said else 0


def _recorded(args: argparse.Namespace, scratch: Path) -> tuple[str, str]:
    """Return what went wrong, `""` if nothing, and the recording as far as there is one."""
    output = scratch / "results"
    output.mkdir()
    args.record = scratch / "node.json"
    ended = run.supervise(
        run.command(args, output, scratch),
        output,
        deadline_s=_DEADLINE_S,
        shown=view.Log(io.StringIO()),
    )
    lifeline.end_children()
    doubt = ended.doubt or ended.usage
    try:
        text = args.record.read_text("utf-8")
        document = json.loads(text)
    except (OSError, ValueError):
        return f"the node could not be read: {doubt or 'nothing was recorded'}", ""
    if document["interrupted"]:
        doubt = doubt or document["interrupted"]
    if args.redact:
        text = json.dumps(redacted(document, names=_names(args.host_root)), indent=1) + "\n"
    return f"not all of the node was read: {doubt}" if doubt else "", text


def _names(host_root: Path) -> list[str]:
    """What this node is called, by itself and by where this process runs."""
    found = [platform.node()]
    for path in _NAMES:
        with contextlib.suppress(OSError):
            found.append((host_root / path).read_text("utf-8", "replace").strip())
    return found
