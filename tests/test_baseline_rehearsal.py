"""`nodeproof baseline` of a real rehearsal, and a real rehearsal held against what it printed."""

from __future__ import annotations

import json
import tomllib

import pytest
from nodeproof_command import nodeproof
from rehearsal import SMALL, Rehearsal

PAIRS = "node.transfers.pairs"


@pytest.mark.long
def test_a_rehearsal_teaches_what_a_slower_one_is_short_of(tmp_path):
    """The samples are made ten times faster afterwards, since no machine slows down on demand."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first = Rehearsal(tmp_path / "first", "--deadline=900")  # with others at work beside it
    status, said = first.finish(within_s=1000)
    assert status == 0, said
    words = ["baseline", "--least", 1, "--spec", tmp_path / "first/small.toml"]

    made = nodeproof(*words, first.output / "results.jsonl")
    assert made.returncode == 0, made.stderr
    told = tomllib.loads(made.stdout)
    node = first.verdict()["node"]["name"]
    slowest = first.findings()[PAIRS, node]
    (gbs,) = [m["value"] for m in slowest["measurements"] if m["name"] == "slowest pair"]
    assert told[PAIRS]["pair_gbs"] == pytest.approx(0.9 * gbs, rel=0.01)
    assert told["provenance"][PAIRS]["pair_gbs"]["n"] == 1
    assert told["device.memory.pattern"] == tomllib.loads(SMALL)["device.memory.pattern"]
    assert "a rehearsal without a GPU" in told["description"]

    faster = tmp_path / "faster.jsonl"
    records = first.records()
    for record in records:
        for m in record.get("measurements", []):
            if m["name"] in {"slowest pair", "median of the pairs"}:
                m["value"] *= 10
    faster.write_text("".join(json.dumps(record) + "\n" for record in records))
    made = nodeproof(*words, faster)
    assert made.returncode == 0, made.stderr
    second = Rehearsal(tmp_path / "second", spec_text=made.stdout, only="test_pairs")
    _, said = second.finish()
    found = second.findings()[PAIRS, node]
    assert found["outcome"] == "fail", said
    assert "slowest pair" in found["summary"]
