"""A figure holds for what it was measured on, and where there is none nobody passes by default."""

from __future__ import annotations

import math

import pytest

from nodeproof.nccl_tests import published
from nodeproof.nccl_tests.bandwidth import Collective
from nodeproof.nccl_tests.baselines import (
    Baseline,
    Line,
    Origin,
    find,
    floor,
    limits,
    refusal,
)
from nodeproof.physics import LEAST

GIB = 1 << 30
ALL_REDUCE, ALL_GATHER = Collective.ALL_REDUCE, Collective.ALL_GATHER
SHIPPED = published.shipped()
P5 = {"instance_type": "p5.48xlarge", "nics": 32, "gpus": 8, "collective": ALL_REDUCE}
B200 = {"instance_type": "p6-b200.48xlarge", "nics": 8, "gpus": 8, "collective": ALL_REDUCE}


def named(row):
    return f"{row.system}, {row.collective.value}, {row.nodes} nodes, {row.bytes}, {row.gbs}"


def asked(name, nodes, collective=ALL_REDUCE, size=8 * GIB):
    system = SHIPPED.systems[name]
    return find(
        instance_type=name,
        nics=system.nics or 0,
        gpus=system.gpus,
        nodes=nodes,
        collective=collective,
        size_bytes=size,
    )


# --- provenance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", SHIPPED.rows, ids=named)
def test_every_figure_has_a_source_and_is_within_what_wires_allow(row):
    assert row.source
    assert row.n >= 1
    line = limits(SHIPPED.systems[row.system], row.nodes, row.collective)
    if row.unfit or line is None:
        return
    assert LEAST * line.gbs < row.gbs <= line.most_gbs


@pytest.mark.parametrize("system", SHIPPED.systems.values(), ids=lambda system: system.name)
def test_every_line_rate_has_a_source_and_fits_the_specs_kind_of_node(system):
    assert system.source
    assert system.nics_gbs is None or system.nics_gbs <= 800
    assert system.product is None or system.product.peak("nvlink_gbs")


def test_a_key_stands_once_so_that_no_figure_hides_another():
    keys = [(r.system, r.collective, r.nodes, r.bytes, r.nccl) for r in SHIPPED.rows if not r.unfit]
    assert len(keys) == len(set(keys))


CLAIMS = (488.37, 800, 900, 300)  # illustrations and health checks that no measured row comes near


def test_claims_that_nobody_measured_are_not_in_the_catalogue():
    assert not {row.gbs for row in SHIPPED.rows} & set(CLAIMS)
    assert not [row for row in SHIPPED.rows if row.system in {"a4-highgpu-8g", "p5e.48xlarge"}]


# --- which figure holds --------------------------------------------------------------------------

HOLDS = {
    "two nodes": (2, 8 * GIB, 477.7),
    "four nodes": (4, 8 * GIB, 357.0),
    "thirty-two nodes": (32, 8 * GIB, 321.1),
    "one node": (1, 8 * GIB, 480.4),
    "another size": (2, 16 * GIB, 487.1),
    "a small size": (2, 128 << 20, 289),
    "rounded up to whole elements": (4, 8 * GIB + 96, 357.0),
}


@pytest.mark.parametrize("name", HOLDS)
def test_the_figure_of_exactly_this_size_and_number_of_nodes_is_taken(name):
    nodes, size, gbs = HOLDS[name]
    found = find(**P5, nodes=nodes, size_bytes=size)
    assert (found.origin, found.gbs, found.derived) == (Origin.PUBLISHED, gbs, False)
    assert found.source in found.why
    assert floor(found) == pytest.approx(0.85 * gbs)


UNMEASURED = {
    "three nodes, of a size that is large enough to derive": (3, 8 * GIB, Origin.DERIVED),
    "three nodes, of a small size": (3, 1 * GIB, Origin.UNKNOWN),
    "sixty-four nodes": (64, 8 * GIB, Origin.DERIVED),
    "a size between two that are published": (2, 3 * GIB, Origin.UNKNOWN),
    "a size a page above a published one": (2, 2 * GIB + 4096, Origin.UNKNOWN),
    "a size just below a published one": (2, 2 * GIB - 8, Origin.UNKNOWN),
    "one node, of a size that is not published": (1, 32 * GIB, Origin.UNKNOWN),
}


@pytest.mark.parametrize("name", UNMEASURED)
def test_no_figure_is_carried_over_to_what_was_not_measured(name):
    nodes, size, origin = UNMEASURED[name]
    found = find(**P5, nodes=nodes, size_bytes=size)
    assert found.origin is origin
    if origin is Origin.UNKNOWN:
        assert found.gbs is None
        assert "spec of the site" in found.why
        with pytest.raises(ValueError, match="no figure is known"):
            floor(found)
    else:
        assert found.derived
        assert floor(found) == pytest.approx(280)


@pytest.mark.parametrize(("nics", "gpus"), [(16, 8), (31, 8), (33, 8), (0, 8), (32, 4)], ids=str)
def test_a_node_that_lacks_devices_is_not_asked_for_less(nics, gpus):
    found = find(**P5 | {"nics": nics, "gpus": gpus}, nodes=4, size_bytes=8 * GIB)
    assert found.origin is Origin.UNKNOWN
    assert "holds for 8 GPUs and 32 network devices" in found.why


def test_inside_one_node_the_network_devices_do_not_matter():
    assert find(**P5 | {"nics": 0}, nodes=1, size_bytes=8 * GIB).gbs == 480.4


VERSIONS = {"2.27.7": True, "2.27.5": True, "2.28.3": False, "2.2": False, "": False}


@pytest.mark.parametrize("nccl", VERSIONS)
def test_a_figure_that_states_its_nccl_holds_for_that_release_only(nccl):
    found = find(**B200, nodes=4, size_bytes=1 * GIB, nccl=nccl)
    assert (found.origin is Origin.PUBLISHED) is VERSIONS[nccl]
    assert "NCCL 2.27.7" in found.why


@pytest.mark.parametrize(
    ("name", "nodes", "size", "why"),
    [
        ("p4d.24xlarge", 2, 1 * GIB, "2 channels"),
        ("p4d.24xlarge", 4, 1 * GIB, "2 channels"),
        ("coreweave-h100", 8, 1 * GIB, "SHARP"),
    ],
)
def test_a_mistuned_or_special_figure_is_never_a_floor(name, nodes, size, why):
    found = asked(name, nodes, size=size)
    assert found.origin is Origin.UNKNOWN
    assert why in found.why


@pytest.mark.parametrize("name", ["", "g5.48xlarge", "t3.micro"])
def test_a_kind_of_node_that_nobody_knows_is_said_to_be_unknown(name):
    found = find(
        instance_type=name,
        nics=1,
        gpus=4,
        nodes=2,
        collective=ALL_REDUCE,
        size_bytes=8 * GIB,
    )
    assert (found.origin, found.gbs, found.line) == (Origin.UNKNOWN, None, None)
    assert "Measure 3 or more runs" in found.why


@pytest.mark.parametrize("change", [{"nodes": 0}, {"size_bytes": 0}, {"gpus": 0}, {"nics": -1}])
def test_what_is_no_group_is_refused(change):
    with pytest.raises(ValueError, match="network devices"):
        find(**{**P5, "nodes": 2, "size_bytes": GIB, **change})


# --- derived floors ------------------------------------------------------------------------------

# The points that a floor of 0.70 of the line rate was held against, GB/s.
PASSES = {
    "p5, 4 nodes": ("p5.48xlarge", 64, 280, 357),
    "p5, 32 nodes": ("p5.48xlarge", 64, 280, 321),
    "p5en, 16 nodes": ("p5en.48xlarge", 16, 280, 370),
    "p6-b200, 4 nodes": ("p6-b200.48xlarge", 4, 280, 382),
    "H100 over InfiniBand, 4 nodes": ("h100-sxm", 4, 280, 331),
    "a3-mega, 2 nodes": ("a3-megagpu-8g", 3, 140, 338),
    "A100 at OCI, 2 nodes": ("BM.GPU4.8", 3, 140, 190),
    "p4de, 2 nodes": ("p4de.24xlarge", 2, 35, 78),
    "p6-b300, of which nothing is published": ("p6-b300.48xlarge", 2, 560, math.inf),
    "p5e, of which nothing is published": ("p5e.48xlarge", 2, 280, math.inf),
}
WOULD_REJECT = {
    "p3dn, 8 nodes": ("p3dn.24xlarge", 8, 8.75, 6),
    "p4d, 4 nodes": ("p4d.24xlarge", 4, 35, 29.6),
    "GB300 between racks": ("azure-gb300", 36, 280, 200),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_derived_floor_passes_every_sound_point_that_is_published(name):
    system, nodes, expected, measured = PASSES[name]
    found = asked(system, nodes)
    assert found.derived
    assert "nobody's figure is known" in found.why
    assert floor(found) == pytest.approx(expected)
    assert floor(found) < measured


@pytest.mark.parametrize("name", WOULD_REJECT)
def test_where_a_derived_floor_would_reject_sound_nodes_there_is_none(name):
    system, nodes, would, measured = WOULD_REJECT[name]
    assert would > measured
    found = asked(system, nodes)
    assert found.origin is Origin.UNKNOWN
    assert "line rates give no floor here" in found.why


@pytest.mark.parametrize("name", ["coreweave-gb200", "p6e-gb200.36xlarge"])
def test_nodes_that_share_nvlink_across_a_rack_have_to_be_measured(name):
    found = asked(name, 40, size=16 * GIB)
    assert found.origin is Origin.UNKNOWN
    assert "share NVLink within a rack" in found.why


@pytest.mark.parametrize("collective", sorted(set(Collective) - {ALL_REDUCE}))
def test_only_an_all_reduce_has_a_derived_floor(collective):
    """At 2 GiB p5 gives 263 GB/s of an all-gather over 32 nodes, below 280."""
    assert asked("p5.48xlarge", 64, Collective(collective)).origin is Origin.UNKNOWN


# --- what is no figure ---------------------------------------------------------------------------


@pytest.mark.parametrize("gbs", [3_600, 480, 36, 0.36])
def test_a_threshold_beyond_physics_is_refused_with_its_numbers(gbs):
    """A slip of a unit or digit, and a figure that needs more than all network devices have."""
    line = limits(SHIPPED.systems["p5e.48xlarge"], 4, ALL_REDUCE)
    beyond = Baseline(origin=Origin.PUBLISHED, gbs=gbs, why="a figure of a test", line=line)
    with pytest.raises(ValueError, match=rf"{0.85 * gbs:g} GB/s is .* \(400 at most, .*120\)"):
        floor(beyond)


SYSTEM = '[system."p5.48xlarge"]\ngpus = 8\nsource = "x"\ndate = 2026-11-01\n'
BAD = {
    "no source": 'system = "p5.48xlarge"\ncollective = "all_reduce"\nrows = [{nodes=2,mib=8,gbs=1}]',
    "no size": 'system="p5.48xlarge"\ncollective="all_reduce"\nsource="x"\nrows=[{nodes=2,gbs=1}]',
    "no figure": 'system="p5.48xlarge"\ncollective="all_reduce"\nsource="x"\nrows=[{nodes=2,mib=8}]',
    "NaN": 'system="p5.48xlarge"\ncollective="all_reduce"\nsource="x"\nrows=[{nodes=2,mib=8,gbs=nan}]',
    "no such system": 'system="p9"\ncollective="all_reduce"\nsource="x"\nrows=[{nodes=2,mib=8,gbs=1}]',
    "no such collective": 'system="p5.48xlarge"\ncollective="gather"\nsource="x"\nrows=[{nodes=2,mib=8,gbs=1}]',
    "no rows": 'system="p5.48xlarge"\ncollective="all_reduce"\nsource="x"',
}


@pytest.mark.parametrize("name", BAD)
def test_a_catalogue_that_lacks_something_is_refused(name):
    with pytest.raises(ValueError, match="baselines: "):
        published.read(f"{SYSTEM}[[published]]\n{BAD[name]}\n")


def test_the_same_catalogue_is_read_where_it_lacks_nothing():
    whole = (
        'system="p5.48xlarge"\ncollective="all_reduce"\nsource="x"\nrows=[{nodes=2,mib=8,gbs=1}]'
    )
    (row,) = published.read(f"{SYSTEM}[[published]]\n{whole}\n").rows
    assert (row.bytes, row.gbs) == (8 << 20, 1.0)


@pytest.mark.parametrize("text", ["[[row]]", "published = 3", "system = 3", "= ="])
def test_a_catalogue_of_another_shape_is_refused(text):
    with pytest.raises(ValueError, match="baselines: "):
        published.read(text)


@pytest.mark.parametrize(
    ("nodes", "collective", "ring", "most"),
    [
        (1, ALL_REDUCE, 450, 900),
        (1, ALL_GATHER, 450, 450),
        (2, ALL_REDUCE, 400, 800),
        (3, ALL_REDUCE, 400, 400),
        (2, ALL_GATHER, 400, 400),
        (2, Collective.ALL_TO_ALL, 93.75, 93.75),
    ],
)
def test_two_nodes_exactly_can_have_twice_the_line_rate_by_trees(nodes, collective, ring, most):
    line = limits(SHIPPED.systems["p5.48xlarge"], nodes, collective)
    assert line == Line(gbs=ring, most_gbs=most)
    assert refusal(most, line) == ""
    assert refusal(LEAST * ring, line) == ""
    assert "more than" in refusal(most * 1.001, line)
    assert "next to nothing" in refusal(LEAST * ring * 0.999, line)
