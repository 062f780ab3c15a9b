"""Tables as `dcgmi diag` draws them, and the readers of its output asked as a person would."""

from __future__ import annotations

from fake_dcgmi import styled

from nodeproof.parsers import dcgm_json, dcgm_text

HEAD = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | {version}                                          |
| Driver Version Detected   | 570.148.08                                     |
| GPU Device IDs Detected   | 2330, 2330                                     |
"""
FOOT = "+---------------------------+------------------------------------------------+\n"
DEPLOYMENT = "|-----  Deployment  --------+------------------------------------------------|\n"
HARDWARE = "+-----  Hardware  ----------+------------------------------------------------+\n"


def row(name, cell):
    return f"| {name:25} | {cell:46} |\n"


def message(name, text):
    """Broken after every 45 characters, as dcgmi does it."""
    pieces = [text[at : at + 45] for at in range(0, len(text), 45)]
    return "".join(row(name if not at else "", piece) for at, piece in enumerate(pieces))


def table(*parts, version="4.2.3"):
    return HEAD.format(version=version) + "".join(parts) + FOOT


def of_json(document, **context):
    text = document if isinstance(document, str) else styled(document)
    return dcgm_json.read(text.encode(), context)


def of_text(text, **context):
    return dcgm_text.read(text.encode(), context)


def results_of(reading):
    return [(t["name"], t["gpu"], t["status"]) for t in reading.fields["tests"]]


THREE = table(
    DEPLOYMENT,
    row("Denylist", "Pass"),
    row("Persistence Mode", "Pass"),
    HARDWARE,
    row("GPU Memory", "Pass - All"),
    version="3.3.9",
)
