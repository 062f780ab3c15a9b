"""Killed at any request, refused, cut off, or two at once: the gate comes to the same end."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest
from gate_cluster import NAMES, keys
from gate_life import SCENES, Life, living, outcome

from tests.apiserver.server import Cut
from tests.apiserver.store import Status

CODES = (409, 410, 422, 429, 500)


@functools.cache
def undisturbed(name: str) -> tuple[dict[str, Any], int]:
    """How a scene ends when nothing goes wrong, and how many writes it takes."""
    with living() as life:
        SCENES[name](life)
        return outcome(life), len(life.server.wrote)


def killed(name: str, number: int, moment: str) -> dict[str, Any]:
    """A scene whose controller dies at one write, before or after the server has done it."""
    with living() as life:
        count = {"before": 0, "after": 0}

        def interfere(_verb: str, _path: str, when: str) -> None:
            if life.kill:
                raise Cut  # the dead send nothing more
            count[when] += 1
            if when == moment and count[when] == number + 1:
                life.kill = life.disturbed = True
                raise Cut

        life.server.interfere = interfere
        SCENES[name](life)
        assert count[moment] > number, "the scene never came to this write"
        return outcome(life)


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_ends_as_it_has_to(name):
    end, writes = undisturbed(name)
    rejected = name == "asked for, then rejected"
    assert ((NAMES.pending, "NoSchedule") in end["taints"]) == rejected
    assert end["said"][0] == ("False" if rejected else "True")
    assert 6 <= writes <= 30
    assert bool(end["warnings"]) == ("rejected" in name or name == "suspected")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["accepted", "asked for, then rejected"])
def test_killed_at_any_write_it_comes_to_the_same_end(name, moment):
    end, writes = undisturbed(name)
    for number in range(writes):
        assert killed(name, number, moment) == end, f"killed {moment} write {number}"


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["rejected, then asked for", "rebooted", "suspected"])
def test_killed_at_any_write_of_a_longer_scene_it_comes_to_the_same_end(name, moment):
    end, writes = undisturbed(name)
    for number in range(writes):
        assert killed(name, number, moment) == end, f"killed {moment} write {number}"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["rejected, then asked for"])
def test_refused_once_at_every_write_it_comes_to_the_same_end(name, code):
    end, _ = undisturbed(name)
    with living() as life:
        _refuse_each_once(life, code)
        SCENES[name](life)
        # An event that the server will not have is lost: it keeps nobody waiting.
        assert {**outcome(life), "warnings": end["warnings"]} == end


def _refuse_each_once(life: Life, code: int) -> None:
    """Refuse every other try of each write; 409 to a POST would say that it was done before."""
    refused: set[tuple[str, str]] = set()

    def interfere(verb: str, path: str, when: str) -> None:
        if when == "after" or (verb == "POST" and code == 409):
            return
        if (verb, path) in refused:
            refused.remove((verb, path))
            return
        refused.add((verb, path))
        life.disturbed = True
        raise Status(code, "not now")

    life.server.interfere = interfere


@pytest.mark.parametrize("name", ["accepted", "asked for, then rejected"])
def test_two_controllers_in_turn_do_no_harm(name):
    end, _ = undisturbed(name)
    with living() as life:
        pair = life.controller(), life.controller()
        settle = life.settle
        life.settle = lambda: settle(*pair)  # type: ignore[method-assign]  # both, one after the other
        SCENES[name](life)
        assert outcome(life) == end


@pytest.mark.parametrize("name", SCENES)
def test_controllers_that_see_nothing_new_undo_nothing(name):
    """One for each moment of a scene, which looks again when all is over."""
    end, _ = undisturbed(name)
    with living() as life:
        settle, blind = life.settle, []

        def settled() -> None:
            blind.append(life.controller())
            blind[-1].stop()
            settle(main)
            blind.append(life.controller())
            blind[-1].stop()

        main = life.controller()
        life.settle = settled  # type: ignore[method-assign]
        SCENES[name](life)
        for controller in blind * 2:
            controller.look(life.node()["metadata"]["uid"])
        settle(main)
        assert outcome(life) == end


def _wait(life: Life, what: Any) -> None:
    """Wait for the cluster to come to a state, woken by each change of it."""
    deadline = time.monotonic() + 60
    with life.store.changed:
        while not what():
            assert time.monotonic() < deadline, outcome(life)
            life.store.changed.wait(0.2)


def _lifted(life: Life) -> bool:
    return NAMES.pending not in keys(life.node())


def _started(life: Life) -> bool:
    return bool(life.store.objects("jobs"))


def _through_threads(life: Life, controllers: int) -> None:
    """The first scene with controllers that run by themselves."""
    threads = []
    for _ in range(controllers):
        made = life.controller()
        threads.append(threading.Thread(target=made.run, daemon=True))
        threads[-1].start()
    life.arrive()
    _wait(life, lambda: _started(life))
    life.run("accept")
    _wait(life, lambda: _lifted(life) and life.store.objects("events"))
    for controller in life.controllers:
        controller.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_two_controllers_at_the_same_time_do_no_harm():
    end, _ = undisturbed("accepted")
    with living() as life:
        _through_threads(life, controllers=2)
        assert outcome(life) == end


@pytest.mark.parametrize("trouble", ["dropped", "compacted", "slow", "bookmarks"])
def test_watches_that_end_hang_or_say_nothing_new_lose_nothing(trouble):
    end, _ = undisturbed("accepted")
    with living() as life:
        pause = threading.Event()

        def interfere(_verb: str, _path: str, _when: str) -> None:
            match trouble:
                case "dropped":
                    life.server.drop()
                case "compacted":
                    life.store.compact()
                    life.server.drop()
                case "slow":
                    pause.wait(0.05)

        life.server.bookmarks = trouble == "bookmarks"
        life.server.interfere = interfere
        _through_threads(life, controllers=1)
        if trouble == "bookmarks":
            pause.wait(0.3)  # for one to be due
        assert outcome(life) == end


@pytest.mark.parametrize("gone", ["events", "configmaps"])
def test_what_only_people_and_the_breaker_need_keeps_no_node_waiting(gone):
    end, _ = undisturbed("asked for, then rejected")
    with living() as life:

        def interfere(verb: str, path: str, when: str) -> None:
            if gone == "events" and path.endswith("/events") and when == "before":
                raise Status(403, "no right to that")

        life.server.interfere = interfere
        life.controller()
        if gone == "configmaps":
            life.store.delete(f"/api/v1/namespaces/{NAMES.namespace}/configmaps/nodeproof-state")
        SCENES["asked for, then rejected"](life)
        kept = {k: v for k, v in outcome(life).items() if k != "warnings"}
        assert kept == {k: v for k, v in end.items() if k != "warnings"}
