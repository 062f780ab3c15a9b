"""The verdict as a document: what `verdict.json` holds."""

from __future__ import annotations

from nodeproof.reports.legible import document
from nodeproof.results import Results
from nodeproof.verdict import Verdict


def render(results: Results, verdict: Verdict) -> str:  # noqa: ARG001  all reports are called alike
    """Return the verdict document as indented ASCII JSON.

    A number too large for a double reads back as infinity, which JSON can't hold: it becomes text.
    """
    return document(verdict.document(), indent=2) + "\n"
