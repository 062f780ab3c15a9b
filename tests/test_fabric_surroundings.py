"""Which rank a member is, and of how many, as launchers tell it."""

import re

import pytest

from nodeproof.fabric.surroundings import Machine, Place, agreed, names, place

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {  # as Open MPI 5.0.11 sets them; PMIX_RANK stands beside its own
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "2",
}
MPICH = {  # as MPICH 5.0.2 sets them
    "PMI_RANK": "1",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
}
JOB = {"JOB_COMPLETION_INDEX": "0", "NODEPROOF_NODES": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
STATIC = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "rank", "nodes", "source", "beside", "together"),
    [
        pytest.param(TORCHRUN, 3, 8, "RANK (torchrun)", 1, 2, id="torchrun"),
        pytest.param(OPEN_MPI, 2, 4, "OMPI_COMM_WORLD_RANK (Open MPI)", 2, 4, id="open-mpi"),
        pytest.param(MPICH, 1, 4, "PMI_RANK (PMI)", 0, 1, id="mpich"),
        pytest.param(
            {"PMIX_RANK": "1", "NODEPROOF_NODES": "2"}, 1, 2, "PMIX_RANK (PMIx)", 0, 1, id="pmix"
        ),
        pytest.param(JOB, 0, 4, "JOB_COMPLETION_INDEX (Indexed Job)", 0, 1, id="job"),
        pytest.param(SLURM, 5, 8, "SLURM_PROCID (Slurm)", 0, 1, id="slurm"),
        pytest.param(STATIC, 1, 2, "RANK (environment)", 0, 1, id="static"),
    ],
)
def test_each_launcher_is_understood(environment, rank, nodes, source, beside, together):
    assert place(environment) == Place(
        rank=rank, nodes=nodes, source=source, beside=beside, together=together
    )


@pytest.mark.parametrize("inner", [TORCHRUN, OPEN_MPI, MPICH], ids=["torchrun", "open-mpi", "pmi"])
@pytest.mark.parametrize("outer", [BATCH, {"JOB_COMPLETION_INDEX": "0"}], ids=["slurm", "job"])
def test_what_an_outer_launcher_left_in_the_environment_does_not_count(inner, outer):
    assert place({**outer, **inner}) == place(inner)


def test_the_command_line_comes_first():
    assert place({}, rank=1, nodes=2) == Place(rank=1, nodes=2, source="--node-rank")
    assert place(OPEN_MPI, rank=7, nodes=9) == Place(rank=7, nodes=9, source="--node-rank")
    assert place({"NODEPROOF_NODES": "9", **JOB}, nodes=3).nodes == 3
    assert place(JOB, rank=2) == Place(rank=2, nodes=4, source="--node-rank")
    assert place(SLURM, rank=2).nodes == 8


@pytest.mark.parametrize(
    ("environment", "variable"),
    [(TORCHRUN, "RANK"), (OPEN_MPI, "OMPI_COMM_WORLD_RANK"), (MPICH, "PMI_RANK")],
)
def test_a_rank_that_is_not_that_of_the_launcher_is_refused(environment, variable):
    """One command line for all ranks, with a rank in it: all of them would be that one."""
    right = int(environment[variable])
    agreed(environment, right)
    agreed(environment, None)
    with pytest.raises(
        ValueError, match=rf"--node-rank says rank 7 and {variable} .* says {right}"
    ):
        agreed(environment, 7)


@pytest.mark.parametrize("environment", [{}, JOB, SLURM, BATCH, STATIC], ids=str)
def test_a_job_may_number_its_nodes_otherwise(environment):
    agreed(environment, 7)


@pytest.mark.parametrize(
    ("environment", "given", "sentence"),
    [
        ({}, {}, "nothing says which rank this node is: give --node-rank, or set one of RANK, "),
        ({}, {"nodes": 4}, "nothing says which rank this node is"),
        ({}, {"rank": 0}, "nothing says how many nodes there have to be: give --nodes, or set N"),
        ({"JOB_COMPLETION_INDEX": "0"}, {}, "nothing says how many nodes there have to be"),
        ({"PMIX_RANK": "0"}, {}, "nothing says how many nodes there have to be"),
        ({"PMI_RANK": "0"}, {}, "nothing says how many nodes there have to be"),
        ({**TORCHRUN, "WORLD_SIZE": "eight"}, {}, "WORLD_SIZE is 'eight', which is no number"),
        ({**TORCHRUN, "RANK": ""}, {}, "RANK is '', which is no number"),
        ({**TORCHRUN, "RANK": "-1"}, {}, "RANK is '-1', which is no number"),
        ({**TORCHRUN, "LOCAL_RANK": "1.0"}, {}, "LOCAL_RANK is '1.0', which is no number"),
        ({**JOB, "JOB_COMPLETION_INDEX": "²"}, {}, "JOB_COMPLETION_INDEX is '²', which is no num"),
        ({**JOB, "JOB_COMPLETION_INDEX": "0x1"}, {}, "which is no number"),
        ({**JOB, "NODEPROOF_NODES": "9" * 60}, {}, "which is no number"),
        ({**JOB, "NODEPROOF_NODES": "0"}, {}, "a group has at least one node, not 0"),
        ({}, {"rank": 0, "nodes": -2}, "a group has at least one node, not -2"),
        ({}, {"rank": -1, "nodes": 2}, "--node-rank says rank -1, but a group of 2 has ranks 0 t"),
        ({}, {"rank": 2, "nodes": 2}, "says rank 2, but a group of 2 has ranks 0 to 1"),
        (
            {**JOB, "JOB_COMPLETION_INDEX": "4"},
            {},
            "JOB_COMPLETION_INDEX (Indexed Job) says rank 4, but a group of 4 has ranks 0 to 3",
        ),
        (OPEN_MPI, {"nodes": 8}, "--nodes says 8 nodes and OMPI_COMM_WORLD_SIZE says 4"),
        (
            {**TORCHRUN, "NODEPROOF_NODES": "4"},
            {},
            "NODEPROOF_NODES says 4 nodes and WORLD_SIZE says 8: start one member a node",
        ),
    ],
)
def test_what_is_missing_or_contradictory_is_said_in_one_sentence(environment, given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as told:
        place(environment, **given)
    assert "\n" not in str(told.value)


def on(host, boot="", given=""):
    return Machine(host=host, boot_id=boot or host, given=given)


@pytest.mark.parametrize(
    ("machines", "named"),
    [
        ([on("a"), on("b")], ["a", "b"]),
        ([on("a"), on("a"), on("a")], ["a#0", "a#1", "a#2"]),
        ([on("a"), on("b"), on("a")], ["a#0", "b", "a#1"]),
        ([on("a", given="n1"), on("b", given="n2")], ["n1", "n2"]),
        ([on("a", given="n1"), on("b", given="n1")], ["a", "b"]),  # the launcher's own, handed on
        ([on("a", given="n1"), on("b")], ["a", "b"]),
        ([on("a", boot="x"), on("b", boot="x")], ["a", "b"]),  # two containers on one machine
    ],
)
def test_in_a_rehearsal_no_two_members_have_one_name(machines, named):
    assert names(machines, device="cpu") == named


@pytest.mark.parametrize("device", ["cuda", "auto"])
@pytest.mark.parametrize(
    "machines",
    [
        [on("a"), on("b"), on("a")],
        [on("a", boot="x"), on("b", boot="y"), on("c", boot="x")],
        [on("a", boot="x"), on("b"), on("a", boot="y")],
    ],
)
def test_a_node_cannot_be_its_own_partner(machines, device):
    with pytest.raises(
        ValueError, match=r"ranks 0 and 2 are both on [ac]: start one member a node"
    ):
        names(machines, device=device)
    assert names(machines[:2], device=device) == ["a", "b"]


def test_machines_whose_boot_cannot_be_read_are_told_apart_by_their_names():
    unread = [Machine(host=host, boot_id="") for host in "ab"]
    assert names(unread, device="cuda") == ["a", "b"]
