"""`nodeproof list` and `nodeproof explain CHECK`: neither pytest nor torch is needed."""

from __future__ import annotations

import argparse
import difflib
import sys

from nodeproof import spec, spec_choice
from nodeproof.manifest import Entry, shipped
from nodeproof.model import Profile


def main(args: argparse.Namespace) -> int:
    """List the checks or the specs, or explain a check."""
    if args.specs:
        print("\n".join(_specs()))
        return 0
    entries = shipped().entries
    if args.check is None:
        width = max(map(len, entries))
        for entry in entries.values():
            trial = " (trial)" if entry.trial else ""
            print(f"{entry.id:{width}}  {'|'.join(entry.kinds):8}  {entry.about.title}{trial}")
        return 0
    if args.check not in entries:
        near = difflib.get_close_matches(args.check, entries, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see `nodeproof list`"
        print(f"nodeproof: there is no check {args.check!r}{hint}", file=sys.stderr)
        return 2
    print("\n".join(_explained(entries[args.check])))
    return 0


def _specs() -> list[str]:
    """One line for each spec that `--spec` takes by name: how many of which GPU."""
    rows = {spec.REHEARSAL: "CPU devices of a rehearsal"}
    for kind in spec_choice.shipped():
        some = f"{kind.gpus} x " if kind.gpus else ""
        spoken = [machine for machine in kind.machines if any(map(str.isalpha, machine))]
        where = f" ({', '.join(spoken)})" if spoken else ""  # Azure's is a number
        rows[kind.name] = f"{some}{' or '.join(kind.products)}{where}"
    width = max(map(len, rows))
    return [f"{name:{width}}  {what}" for name, what in sorted(rows.items())]


def _explained(entry: Entry) -> list[str]:
    lines = [entry.id, "", entry.about.title]
    if entry.about.why:
        lines += ["", entry.about.why]
    lines += [
        "",
        f"about        {', '.join(entry.kinds)}{' (trial: reported, never counts)' if entry.trial else ''}",
        f"when short   blames {entry.cause}; remedy {entry.about.remedy}",
        f"profiles     {', '.join(p for p in Profile if p in entry.profiles)}",
    ]
    if entry.capability:
        least = "{}.{}".format(*entry.capability)
        lines.append(f"GPUs         from compute capability {least}; older ones are not asked")
    if entry.load:
        load = ", ".join(f"{p} {s:g} s" for p, s in entry.load.items() if p in entry.profiles)
        lines.append(f"load         {load}")
    for name, default in entry.limits.items():
        lines.append(f"limit        {name} = {'no bound' if default is None else default}")
    lines.append(f"declared in  {entry.suite}")
    return lines
