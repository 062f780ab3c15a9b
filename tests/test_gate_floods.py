"""Results that a node made up to keep the gate busy: they are refused before they cost anything."""

from __future__ import annotations

import json
import time

import pytest
from gate_attempt import Attempt

from nodeproof.gate import dispatch
from nodeproof.gate.proof import Ruling


def _more(a: Attempt, kind: str, count: int) -> None:
    """Leave results in which there is more of one kind than in any run."""
    plan, *lines = [json.loads(line) for line in a.results().splitlines()]
    device = plan["devices"][0]
    waiver = {"check": "c", "device": "x", "reason": "r", "expires": "2099-01-01"}
    row = next((r for r in lines if r["type"] == kind), None)
    if kind == "devices":
        plan["devices"] += [{**device, "id": f"GPU-{n}", "label": f"gpu{n}"} for n in range(count)]
    elif kind == "waivers":
        plan["waivers"] = [{**waiver, "check": f"c{n}"} for n in range(count)]
    elif kind == "checks":
        plan["checks"] += [plan["checks"][0]] * count
    else:
        lines[1:1] = [row] * count
    numbered = [{**r, "seq": n} for n, r in enumerate([plan, *lines])]
    data = b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in numbered)
    a.log = "\n".join(dispatch.packed(data))
    a.say(json.dumps({**json.loads(a.message), "results": dispatch.digest(data)}))


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [
        ("devices", 4000, "devices"),
        ("waivers", 4000, "4000 waivers"),
        ("checks", 5000, "planned checks"),
        ("finding", 5000, "findings"),
        ("selftest", 5000, "self-tests"),
    ],
)
def test_results_with_more_than_any_run_has_are_not_judged(kind, count, said):
    attempt = Attempt()
    _more(attempt, kind, count)
    started = time.process_time()
    judged = attempt.judged()
    assert (judged.ruling, said in judged.text) == (Ruling.INVALID, True), judged.text
    assert time.process_time() - started < 3
