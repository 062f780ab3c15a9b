"""Killed at any write, or two at once: a group of two comes to the same end.

And at no moment of it is a node free that did not pass what lifted it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from gate_cluster import NAMES
from gate_group_life import Life, living, outcome

from tests.apiserver.server import Cut
from tests.apiserver.store import NODES
from tests.test_fabric_verdict import bad


def both_pass(life: Life) -> None:
    life.waiting("a", "b")
    life.measure()
    life.settle()


def one_is_bad(life: Life) -> None:
    life.waiting("a", "b")
    life.measure(change=lambda run: bad(run, next(d for d in run.plan.devices if d.id == "b")))
    life.settle()


def lost_once(life: Life) -> None:
    life.waiting("a", "b")
    life.measure(but="ab")
    life.settle()
    life.later(100)
    life.measure()
    life.settle()


def rebooted(life: Life) -> None:
    life.waiting("a", "b")
    life.kubelet.start()
    life.reboot("b")
    life.settle()
    life.measure()
    life.settle()
    life.test("b")
    life.settle()


def rejected_when_repaired(life: Life) -> None:
    one_is_bad(life)
    ask = {NAMES.requalify: "repaired"}
    life.store.change(f"{NODES}/b", lambda n: n["metadata"]["annotations"].update(ask))
    life.settle()
    life.test("b")
    life.settle()
    life.waiting("c")
    life.measure()
    life.settle()


SCENES = {"both pass": both_pass, "one is bad": one_is_bad}
LONGER = {"lost once": lost_once, "rebooted": rebooted, "repaired": rejected_when_repaired}
FREE = {"both pass": "ab", "one is bad": "a", "lost once": "ab", "rebooted": "a", "repaired": "abc"}
Wrong = list[list[str]]


def watch(life: Life, also: Callable[[str], None] = lambda _when: None) -> Wrong:
    """Look after every write whether a node is free that should not be; `also` may raise `Cut`."""
    wrong: Wrong = []

    def interfere(_verb: str, _path: str, when: str) -> None:
        if when == "after" and (found := life.unproved()):
            wrong.append(found)
        also(when)

    life.server.interfere = interfere
    return wrong


@functools.cache
def undisturbed(name: str) -> tuple[dict[str, Any], int]:
    """How a scene ends when nothing goes wrong, and how many writes it takes."""
    with living(group_most=2) as life:
        wrong = watch(life)
        {**SCENES, **LONGER}[name](life)
        assert not wrong
        return outcome(life), len(life.server.wrote)


def killed(name: str, number: int, moment: str) -> dict[str, Any]:
    """A scene whose controller dies at one write, before or after the server has done it."""
    with living(group_most=2) as life:
        count = {"before": 0, "after": 0}

        def kill(when: str) -> None:
            if life.kill:
                raise Cut  # the dead send nothing more
            count[when] += 1
            if when == moment and count[when] == number + 1:
                life.kill = life.disturbed = True
                raise Cut

        wrong = watch(life, kill)
        SCENES[name](life)
        assert count[moment] > number, "the scene never came to this write"
        assert not wrong
        assert len(life.groups()) == 1
        return outcome(life)


@pytest.mark.parametrize("name", [*SCENES, *LONGER])
def test_a_scene_ends_as_it_has_to(name):
    end, writes = undisturbed(name)
    free = [n for n, told in end["nodes"].items() if told["taints"] == ["nvidia.com/gpu"]]
    assert "".join(free) == FREE[name]
    assert 16 <= writes <= 60


@pytest.mark.parametrize("name", [*SCENES, *LONGER])
def test_controllers_that_remember_nothing_come_to_the_same_end(name):
    end, _ = undisturbed(name)
    with living(group_most=2) as life:
        life.anew = True  # another one for each round of looks
        wrong = watch(life)
        {**SCENES, **LONGER}[name](life)
        assert outcome(life) == end
        assert not wrong


def test_a_lift_that_nothing_proves_would_be_seen():
    with living(group_most=2) as life:
        wrong = watch(life)
        both_pass(life)
        assert not wrong
        life.passed = {(node, job) for node, job in life.passed if not job.startswith("npg-")}
        assert life.unproved() == ["a", "b"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("name", "every"), [("both pass", 6), ("one is bad", 4)])
def test_killed_at_the_writes_of_a_group_it_comes_to_the_same_end(name, every, moment):
    """Those from the first word of waiting on; what comes before is as for a node alone."""
    end, writes = undisturbed(name)
    for number in range(writes // 2, writes, every):
        assert killed(name, number, moment) == end, f"killed {moment} write {number}"


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", SCENES)
def test_killed_at_any_write_it_comes_to_the_same_end(name, moment):
    end, writes = undisturbed(name)
    for number in range(writes):
        assert killed(name, number, moment) == end, f"killed {moment} write {number}"


@pytest.mark.parametrize("name", SCENES)
def test_controllers_that_see_nothing_new_undo_nothing(name):
    """One for each moment of a scene, which looks again when all is over."""
    end, _ = undisturbed(name)
    with living(group_most=2) as life:
        wrong = watch(life)
        settle, blind = life.settle, []

        def settled() -> None:
            for then in (lambda: settle(main), lambda: None):
                blind.append(life.controller())
                blind[-1].stop()
                then()

        main = life.controller()
        life.settle = settled  # type: ignore[method-assign]
        SCENES[name](life)
        for controller in blind * 2:
            for node in life.store.objects("nodes"):
                controller.look(node["metadata"]["uid"])
        settle(main)
        assert outcome(life) == end
        assert not wrong


@pytest.mark.parametrize("name", SCENES)
def test_two_controllers_in_turn_do_no_harm(name):
    end, _ = undisturbed(name)
    with living(group_most=2) as life:
        wrong = watch(life)
        pair = life.controller(), life.controller()
        settle = life.settle
        life.settle = lambda: settle(*pair)  # type: ignore[method-assign]  # both, one after the other
        SCENES[name](life)
        assert outcome(life) == end
        assert not wrong


def _until(life: Life, what: Callable[[], Any]) -> Any:
    """Wait for the cluster to come to a state, woken by each change of it."""
    deadline = time.monotonic() + 120
    while not (found := what()):
        assert time.monotonic() < deadline, outcome(life)
        with life.store.changed:
            life.store.changed.wait(0.2)
    return found


def test_two_controllers_at_the_same_time_do_no_harm():
    end, _ = undisturbed("both pass")
    with living(group_most=2) as life:
        wrong = watch(life)
        threads = [threading.Thread(target=life.controller().run, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        life.arrive("a", "b")
        _until(life, lambda: len(life.alone()) == 2)
        for name in "ab":
            life.test(name)
        _until(life, life.groups)
        life.measure()
        _until(life, lambda: life.free() == "ab")
        life.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(life.groups()) == 1
        assert outcome(life) == end
        assert not wrong
