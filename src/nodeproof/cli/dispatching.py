"""Bring a run's verdict out of its pod: a message for the kubelet, the results into the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nodeproof.gate import dispatch
from nodeproof.results import FILE


def send(output: Path, to: Path, show: Callable[[str], None]) -> str:
    """Show the packed results and write the message about them to `to`.

    Returns why that could not be done, `""` if it was. The message comes last: without it nothing
    that was shown counts.
    """
    try:
        results = dispatch.thinned((output / FILE).read_bytes())
        document = json.loads((output / "verdict.json").read_text())
        for line in dispatch.packed(results):
            show(line)
        to.write_text(dispatch.message(document, results))
    except OSError as error:
        return f"the verdict could not be sent to {to}: {error.strerror}"
    return ""
