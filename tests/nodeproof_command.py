"""Give one command line to nodeproof, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rehearsal import NODEPROOF


def nodeproof(
    *words: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a variable given as "" is not set at all."""
    both = {**os.environ, "COLUMNS": "200", **environment}
    return subprocess.run(
        [*NODEPROOF, *map(str, words)],
        cwd=cwd,
        env={k: v for k, v in both.items() if v},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
