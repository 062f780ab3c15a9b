"""An outage leaves nodes undecided: with `quarantine_undecided` it must not empty a fleet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from gate_cluster import NAMES, SETTINGS, condition, keys, put_node
from test_gate_controller import Clock, Site

from tests.apiserver.server import serving
from tests.apiserver.store import Store

FLEET = "abcdefgh"


@pytest.fixture
def site() -> Iterator[Site]:
    clock = Clock()
    store = Store(clock=clock)
    with serving(store) as server:
        made = Site(server, store, clock)
        made.controller.stop()
        made.controller = made.another(
            dataclasses.replace(SETTINGS, quarantine_undecided=True, attempts=1, breaker_share=1.0)
        )
        yield made
        made.controller.stop()


@pytest.mark.parametrize("pods", [True, False], ids=["pods that fail", "no pod at all"])
def test_after_a_row_of_them_the_breaker_spares_the_rest(site: Site, *, pods: bool) -> None:
    for name in FLEET:
        put_node(site.store, name)
        site.settle(name)
    if pods:
        site.kubelet.start()
    for job in site.store.objects("jobs"):
        if pods:
            site.kubelet.finish(job, code=1, message="", log="no route to the registry")
        else:
            site.kubelet.end_job(job, failed=True, reason="DeadlineExceeded")
    after = [site.settle(name) for name in FLEET]
    shut = [n for n in after if NAMES.quarantined in keys(n)]
    assert len(shut) == SETTINGS.breaker_run
    assert all(NAMES.pending in keys(n) for n in after)
    assert {condition(n)["reason"] for n in after if condition(n)} == {"UndecidedTooOften"}  # type: ignore[index]
    assert "undecided" in site.controller.breakers()["p5.48xlarge"]
