"""Write what is generated from the suites: the manifest and docs/checks.md.

python docs/generate.py            # write
python docs/generate.py --check    # exit 1 if what is committed is not current
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from nodeproof.checks import CheckSpec
from nodeproof.cli.options import suites
from nodeproof.manifest import SCHEMA
from nodeproof.model import Profile
from nodeproof.results import plain

ROOT = Path(__file__).parent.parent


def manifest(declared: dict[str, CheckSpec], files: dict[str, str]) -> str:
    """The checks as data."""
    checks = {
        d.id: {
            "title": d.title,
            "why": d.why,
            "kinds": [k.value for k in d.kinds],
            "profiles": [p.value for p in Profile if p in d.profiles],
            "capability": plain(d.capability),
            "trial": d.trial,
            "cause": d.cause.value,
            "remedy": d.remedy.value,
            "load": plain(d.work.load) if d.work.load else {},
            "limits": {f.name: plain(f.default) for f in dataclasses.fields(d.limits)},
            "suite": files[d.id],
        }
        for d in sorted(declared.values(), key=lambda d: d.id)
    }
    return json.dumps({"schema": SCHEMA, "checks": checks}, indent=1) + "\n"


def page(declared: dict[str, CheckSpec], files: dict[str, str]) -> str:
    """The checks for people."""
    lines = [
        "# The checks",
        "",
        "Generated from the suites by `make manifest`; the words are the docstrings.",
        "",
    ]
    for d in sorted(declared.values(), key=lambda d: d.id):
        limits = ", ".join(
            f"`{f.name}` = {'no bound' if f.default is None else f.default}"
            for f in dataclasses.fields(d.limits)
        )
        load = d.work.load
        seconds = (
            "; load " + ", ".join(f"{p} {load.seconds(p):g} s" for p in Profile if p in d.profiles)
            if load
            else ""
        )
        since = "; GPUs from compute capability {}.{}".format(*d.capability) if d.capability else ""
        within = ""
        if d.profiles != frozenset(Profile):
            within = ", profiles " + ", ".join(p for p in Profile if p in d.profiles)
        trial = "; trial: reported, never counts" if d.trial else ""
        lines += [
            f"## `{d.id}`",
            "",
            f"**{d.title}**",
            "",
            *([d.why, ""] if d.why else []),
            f"On {', '.join(d.kinds)}{within}{since}; when short blames {d.cause}, remedy {d.remedy}{seconds}{trial}.",
            f"Limits: {limits or 'none to set'}. Declared in `{files[d.id]}`.",
            "",
        ]
    return "\n".join(lines)


def main() -> int:
    """Write or check."""
    declared = suites()
    files = {
        name: f"acceptance/{path.name}"
        for path in sorted((ROOT / "acceptance").glob("test_*.py"))
        for name in declared
        if f'"{name}"' in path.read_text()
    }
    stale = 0
    for path, text in (
        (ROOT / "src/nodeproof/catalog/manifest.json", manifest(declared, files)),
        (ROOT / "docs/checks.md", page(declared, files)),
    ):
        if "--check" in sys.argv:
            current = path.read_text() if path.exists() else ""
            if current != text:
                print(f"{path.relative_to(ROOT)} is not current: make manifest", file=sys.stderr)
                stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
