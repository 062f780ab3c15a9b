"""Start pytest as a site does, in a process of its own, and read what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeproof import manifest, results
from nodeproof.verdict import Verdict, decide

TESTS = Path(__file__).parent
QUICK = ("-p", "no:cacheprovider", "--nodeproof-device=cpu", "--nodeproof-output=out")
SHIPPED = ("--pyargs", "nodeproof.acceptance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One pytest run that is over."""

    status: int
    text: str
    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    def findings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By check and label of the device."""
        return self._by_check("finding")

    def selftests(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By check and label of the device."""
        return self._by_check("selftest")

    def _by_check(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self.records:
            if record["type"] == kind:
                key = (record["check"], record["device"]["label"])
                assert key not in found, f"two of {key}"
                found[key] = record
        return found

    def verdict(self) -> Verdict:
        """What the shipped manifest makes of it."""
        return decide(results.read(self.folder / "out/results.jsonl"), manifest.shipped())

    def doubts(self, check: str) -> set[str]:
        """Why this check speaks against an accept."""
        told = self.verdict()
        return {r.why.name for r in (*told.failed, *told.undecided) if r.check == check}


def environment(**more: str) -> dict[str, str]:
    """Nothing of the pytest that runs these tests gets into the one that is started."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return {**mine, "PYTHONPATH": f"{TESTS}:.", "PYTHONDONTWRITEBYTECODE": "1", **more}


def run_pytest(folder: Path, *words: str, cwd: Path | None = None, **more: str) -> Ran:
    """Run pytest to its end. Its output folder is `out` in `folder`, its own files are there too."""
    given = [word.replace("=out", f"={folder / 'out'}") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *given],
        cwd=cwd or folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return Ran(
        status=done.returncode,
        text=done.stdout,
        folder=folder,
        records=records_of(folder / "out/results.jsonl"),
    )


def records_of(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a results file; none where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def site(folder: Path, files: Mapping[str, str] | None = None, *, suite: str = "site.py") -> Path:
    """A folder with the checks of one of `suites/`, and what else is given."""
    folder.mkdir(exist_ok=True)
    shutil.copy(TESTS / "suites" / suite, folder / "test_site.py")
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return folder
