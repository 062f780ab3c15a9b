"""Whole lives of nodes, each write of which the policies admit: what they refuse, no node comes past."""

from __future__ import annotations

import copy

import gate_group_life
import gate_life
import pytest
from k8s_cases import GATE, KUBELET, but, node
from k8s_policies import Admission
from k8s_tree import built
from test_gate_group_crash import LONGER
from test_gate_group_crash import SCENES as GROUPS

from nodeproof.gate.names import Names
from tests.apiserver.store import NODES

RULES = Admission(built("."))
NOTES = {
    name: getattr(Names(), name)
    for name, told in vars(Names).items()
    if isinstance(told, property) and (told.__doc__ or "").startswith("Annotation:")
}


def refusals(life, scene):
    """Play a scene; the writes to nodes in it, and what the policies say against them."""
    before, writes, said = {}, [], []

    def interfere(verb, path, when):
        if verb != "PATCH" or not path.startswith(f"{NODES}/"):
            return
        name, _, sub = path.removeprefix(f"{NODES}/").partition("/")
        if when == "before":
            before[name] = copy.deepcopy(life.store.get(f"{NODES}/{name}"))
            return
        after = life.store.get(f"{NODES}/{name}")
        writes.append(path)
        said.extend(RULES.refused(GATE, before[name], after, sub=sub))

    life.server.interfere = interfere
    scene(life)
    return writes, said


@pytest.mark.parametrize("scene", gate_life.SCENES.values(), ids=gate_life.SCENES)
def test_every_write_in_the_life_of_a_node_is_admitted(scene):
    with gate_life.living() as life:
        writes, said = refusals(life, scene)
    assert len(writes) > 2
    assert said == []


@pytest.mark.parametrize("scene", [*GROUPS.values(), *LONGER.values()], ids=[*GROUPS, *LONGER])
def test_every_write_in_the_life_of_a_group_is_admitted(scene):
    with gate_group_life.living(group_most=2) as life:
        writes, said = refusals(life, scene)
    assert len(writes) > 6
    assert said == []


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_every_annotation_has_those_who_may_write_it(note):
    """All are the gate's but what a node says it has; a request is anybody's, and so is that."""
    assert len(NOTES) == 9
    stamped = but(lambda n: n["metadata"]["annotations"].update({note: "x"}))
    devices, anybodys = note == Names().devices, note in {Names().requalify, Names().devices}
    assert (RULES.refused(GATE, node(), stamped) == []) == (not devices)
    assert (RULES.refused(KUBELET, node(), stamped) == []) == anybodys
