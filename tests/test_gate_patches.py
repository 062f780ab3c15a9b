"""The writes that decide, among others who write the same lists: nobody's taint is lost."""

from __future__ import annotations

import pytest
from gate_cluster import NAMES, put_node
from gate_world import foreign
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproof.gate.node import Node, node_of
from nodeproof.gate.patches import Patch, add_taint, annotate, lift
from tests.apiserver.store import NODES, Status, Store

EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
KEYS = [
    NAMES.pending,
    NAMES.quarantined,
    "dedicated",
    "nvidia.com/gpu",
    "a~b/c",
    f"{NAMES.pending}s",
]
TAINT = st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS), "effect": st.sampled_from(EFFECTS)},
    optional={
        "value": st.sampled_from(["", "true", "run1"]),
        "timeAdded": st.just("2026-01-01T00:00:00Z"),
    },
)
TAINTS = st.one_of(
    st.none(), st.lists(TAINT, max_size=6, unique_by=lambda t: (t["key"], t["effect"]))
)
NOTES = st.sampled_from([None, {}, {"other.example.com/x": "1"}, {NAMES.requalify: "w"}])
OTHERS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TAINT),
        st.tuples(st.just("take"), st.integers(0, 5)),
        st.tuples(st.just("turn"), st.just(None)),
        st.tuples(st.just("note"), st.just(None)),
        st.tuples(st.just("beat"), st.just(None)),
    ),
    max_size=3,
)
JSON_PATCH = "application/json-patch+json"
OURS = {(NAMES.pending, "NoSchedule"), (NAMES.quarantined, "NoSchedule")}
PENDING_FREE = {"key": "dedicated", "effect": "NoSchedule"}


def stored(taints: object, notes: object) -> Store:
    store = Store(clock=lambda: 1_800_000_000.0)
    put_node(store, "a", spec={"taints": taints}, metadata={"annotations": notes})
    return store


def seen(store: Store) -> Node:
    return node_of(store.get(f"{NODES}/a"), NAMES)


def send(store: Store, patch: Patch) -> bool:
    """Whether the server took a patch. Refused, it has changed nothing."""
    before = store.get(f"{NODES}/a")
    try:
        store.patch(f"{NODES}/a", JSON_PATCH, patch)
    except Status as status:
        code = status.code
    else:
        return True
    assert code == 422
    assert store.get(f"{NODES}/a") == before
    return False


def others_write(store: Store, what: str, detail: object) -> None:
    def change(node: dict) -> None:
        taints = list(node["spec"].get("taints") or [])
        match what:
            case "put" if isinstance(detail, dict):
                same = (detail["key"], detail["effect"])
                taints = [*[t for t in taints if (t["key"], t["effect"]) != same], dict(detail)]
            case "take" if taints and isinstance(detail, int):
                del taints[detail % len(taints)]
            case "turn":
                taints.reverse()
            case "note":
                node["metadata"]["annotations"] = {"other.example.com/late": "2"}
            case "beat":
                node["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-06-01T00:00:00Z"
        node["spec"]["taints"] = taints or None

    store.change(f"{NODES}/a", change)


def identities(node: dict) -> set[tuple[str, str]]:
    return {(t["key"], t["effect"]) for t in node["spec"].get("taints") or []}


@settings(max_examples=250, deadline=None)
@given(taints=TAINTS, notes=NOTES, others=OTHERS)
def test_a_lift_takes_our_two_taints_and_nothing_else_whoever_writes_meanwhile(
    taints, notes, others
):
    store = stored(taints, notes)
    node = seen(store)
    if not node.has(NAMES.pending) and not node.has(NAMES.quarantined):
        with pytest.raises(ValueError, match="no taint of ours"):
            lift(node, NAMES, stamps={})
        return
    patch = lift(node, NAMES, stamps={NAMES.verdict: "{}"})
    for what, detail in others:
        others_write(store, what, detail)
    before = store.get(f"{NODES}/a")
    done = send(store, patch)
    after = store.get(f"{NODES}/a")
    assert foreign(after) == foreign(before), "taints of others, in their order"
    moved = before["metadata"]["resourceVersion"] != node.version
    assert done == (not moved), "any move since is refused, and nothing else is"
    if done:
        assert not identities(after) & OURS
        notes_now = after["metadata"]["annotations"]
        assert notes_now[NAMES.accepted_boot] == node.boot_id
        assert {**notes_now, **(notes or {})} == notes_now, "annotations of others"
    else:
        assert identities(after) & OURS == identities(before) & OURS


@settings(max_examples=250, deadline=None)
@given(
    taints=TAINTS,
    notes=NOTES,
    others=OTHERS,
    key=st.sampled_from([NAMES.pending, NAMES.quarantined]),
)
def test_a_taint_is_added_to_what_is_there_or_not_at_all(taints, notes, others, key):
    store = stored(taints, notes)
    node = seen(store)
    if node.has(key):
        with pytest.raises(ValueError, match="is on the node"):
            add_taint(node, key)
        return
    patch = add_taint(node, key, stamps={NAMES.requalified: "w"})
    for what, detail in others:
        others_write(store, what, detail)
    before = store.get(f"{NODES}/a")
    done = send(store, patch)
    after = store.get(f"{NODES}/a")
    assert foreign(after) == foreign(before)
    assert identities(after) == identities(before) | ({(key, "NoSchedule")} if done else set())
    if done:
        said = after["metadata"]["annotations"]
        assert said[NAMES.requalified] == "w"
        assert {**said, **(before["metadata"]["annotations"] or {}), NAMES.requalified: "w"} == said
    if before["metadata"]["resourceVersion"] == node.version:
        assert done


@pytest.mark.parametrize("move", ["uid", "boot", "taints"])
@pytest.mark.parametrize("write", ["lift", "add", "annotate"])
def test_another_node_another_boot_or_other_taints_are_refused(move, write):
    store = stored(
        [PENDING_FREE, {"key": NAMES.pending, "effect": "NoSchedule"}], {"x.example.com/y": "1"}
    )
    node = seen(store)
    patch = {
        "lift": lambda: lift(node, NAMES, stamps={}),
        "add": lambda: add_taint(node, NAMES.quarantined),
        "annotate": lambda: annotate(node, {NAMES.requalified: "w"}),
    }[write]()
    changes = {
        "uid": lambda n: n["metadata"].update(uid="another"),
        "boot": lambda n: n["status"]["nodeInfo"].update(bootID="another"),
        "taints": lambda n: n["spec"]["taints"].reverse(),
    }
    store.change(f"{NODES}/a", changes[move])
    assert not send(store, patch)


def test_taints_that_came_to_look_the_same_again_are_not_the_same():
    store = stored([{"key": NAMES.pending, "effect": "NoSchedule"}], {"x.example.com/y": "1"})
    patch = lift(seen(store), NAMES, stamps={})
    assert send(store, lift(seen(store), NAMES, stamps={}))
    assert send(store, add_taint(seen(store), NAMES.pending))
    others_write(store, "take", 0)
    others_write(store, "put", {"key": NAMES.pending, "effect": "NoSchedule"})
    assert not send(store, patch), "what was decided before is not decided now"


def test_without_a_boot_id_nothing_is_lifted():
    store = stored([{"key": NAMES.pending, "effect": "NoSchedule"}], None)
    store.change(f"{NODES}/a", lambda n: n["status"].update(nodeInfo={}))
    with pytest.raises(ValueError, match="no boot id"):
        lift(seen(store), NAMES, stamps={})
