"""Output of nccl-tests: only a run that ended, checked its data and moved some is a pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nodeproof.parsers import nccl_tests_text

FIELD = Path(__file__).parent / "field/nccl"

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2147483648 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   5110 on     node-a device  0 [0000:53:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   5110 on     node-a device  1 [0000:64:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = """\
     1048576        262144     float     sum      -1    31.20   33.61   33.61       0    30.90   33.93   33.93       0
  2147483648     536870912     float     sum      -1   6620.1  324.39  324.39       0   6618.4  324.47  324.47       0
"""
FOOT = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 179.1
#
# Collective test concluded: all_reduce_perf
"""
GOOD = HEAD + ROWS + FOOT


def read(text, **context):
    data = text if isinstance(text, bytes) else text.encode()
    reading = nccl_tests_text.read(data, context)
    assert reading.why
    return str(reading.grade), dict(reading.fields)


def test_a_whole_run_is_a_pass():
    assert read(GOOD, ranks_expected=2, gpus_expected=2, exit_status=0) == (
        "pass",
        {
            "complete": True,
            "wrong": 0,
            "avg_busbw_gbs": 179.1,
            "max_size_bytes": 2147483648,
            "validated": True,
            "ranks": 2,
            "transport": "unknown",
        },
    )


@pytest.mark.parametrize("length", range(0, len(GOOD) - 60, 7))
def test_a_run_that_was_cut_anywhere_is_no_pass(length):
    assert read(GOOD[:length])[0] == "error"


@pytest.mark.parametrize("cut", range(1, len("FAILED")))
def test_half_the_word_behind_the_average_is_no_pass(cut):
    text = GOOD[: GOOD.index("179.1")] + "179.1 " + "FAILED"[:cut]
    assert read(text)[0] == "error"


def changed(old, new, count=1):
    assert old in GOOD
    return GOOD.replace(old, new, count)


BAD = {
    # a text, its context, the grade
    "wrong values by the footer": (changed("0 OK", "2 FAILED"), {}, "fail"),
    "a number of wrong values that was cut to 32 bits": (changed("0 OK", "0 FAILED"), {}, "fail"),
    "a number of wrong values that ran over": (changed("0 OK", "-7 FAILED"), {}, "fail"),
    "wrong values that the footer calls OK": (changed("0 OK", "3 OK"), {}, "fail"),
    "wrong values by a row alone": (changed("33.61       0", "33.61      16"), {}, "fail"),
    "wrong values in place": (changed("33.93       0", "33.93  3.4e+07"), {}, "fail"),
    "wrong values in a run that was cut": (
        HEAD + ROWS.replace("324.39       0", "324.39       1"),
        {},
        "fail",
    ),
    "a check that gives no number": (changed("33.61       0", "33.61     nan"), {}, "fail"),
    "data not checked": (changed("validation: 1", "validation: 0"), {}, "warn"),
    "data not checked, by the columns": (
        HEAD + ROWS.replace("       0 ", "     N/A ").replace("       0\n", "     N/A\n") + FOOT,
        {},
        "warn",
    ),
    "below its own floor": (changed("179.1", "179.1 FAILED"), {}, "fail"),
    "an average that is no number": (changed("179.1", "nan"), {}, "error"),
    "an average below zero": (changed("179.1", "-1"), {}, "error"),
    "a bandwidth below zero": (changed("324.39  324.39", "-324.39  -324.39"), {}, "error"),
    "a root that is no number": (HEAD + ROWS.replace("      -1 ", "     --1 ") + FOOT, {}, "warn"),
    "what is expected told as text": (GOOD, {"exit_status": "1", "ranks_expected": "8"}, "error"),
    "a rank missing in a list that is whole": (
        changed("#  Rank  1", "#  Rank  0"),
        {"gpus_expected": 2},
        "error",
    ),
    "a rank missing": (GOOD, {"ranks_expected": 8}, "error"),
    "a rank too many": (GOOD, {"ranks_expected": 1}, "error"),
    "a GPU missing": (GOOD, {"gpus_expected": 8}, "error"),
    "a command that failed": (GOOD, {"exit_status": 1}, "error"),
    "one rank that sends to itself": (
        changed("nGpus 2", "nGpus 1").replace("#  Rank  1", "#"),
        {},
        "error",
    ),
    "sizes left out for want of memory": (
        changed("# Using devices", "#\n# Reducing maxBytes to 1048576 due to memory limitation"),
        {},
        "error",
    ),
    "the large sizes not in the text": (HEAD + ROWS.splitlines(True)[0] + FOOT, {}, "warn"),
    "no row in the text": (HEAD + FOOT, {}, "warn"),
    "a footer alone": (FOOT, {}, "warn"),
    "a footer of nothing": (FOOT.replace("179.1", "0"), {}, "error"),
    "a row that is not whole": (
        HEAD + ROWS + "  4294967296    1073741824     float     sum      -1   13\n" + FOOT,
        {},
        "warn",
    ),
    "a failure behind the footer": (GOOD + " .. node-a pid 5: Test failure common.cu:1\n", {}, "error"),
    "a time limit": (HEAD + "node-a: Test timeout (60s) common.cu:520\n", {}, "error"),
    "a GPU with an ECC error": (
        HEAD + "node-a: Test CUDA failure common.cu:600 'uncorrectable ECC error encountered'\n",
        {},
        "fail",
    ),
    "an ECC error that only NCCL reports": (
        HEAD + "node-a:5:6 [1] enqueue.cc:9 NCCL WARN Cuda failure 'uncorrectable ECC error'\n",
        {},
        "fail",
    ),
    "no memory": (HEAD + "a: Test CUDA failure common.cu:1 'out of memory'\n", {}, "error"),
    "a busy device on a busy node": (
        HEAD + "a: Test CUDA failure x.cu:1 'all CUDA-capable devices are busy or unavailable'\n",
        {"idle": False},
        "error",
    ),
    "the same on an idle node": (
        HEAD + "a: Test CUDA failure x.cu:1 'all CUDA-capable devices are busy or unavailable'\n",
        {"idle": True},
        "fail",
    ),
    "too few GPUs where they are expected": (
        HEAD + "Invalid number of GPUs: 8 requested but only 7 were found.\n",
        {"gpus_expected": 8},
        "fail",
    ),
    "too few GPUs for what was asked": (
        HEAD + "Invalid number of GPUs: 8 requested but only 7 were found.\n",
        {},
        "error",
    ),
    "TCP where EFA is": (
        "a:1:2 [0] NCCL INFO Using network Socket\n" + GOOD,
        {"efa_expected": True},
        "fail",
    ),
    "TCP by libfabric where EFA is": (
        "a:1:2 [0] NCCL INFO NET/OFI Selected provider is tcp, fabric is x (found 1 nics)\n" + GOOD,
        {"efa_expected": True},
        "fail",
    ),
    "EFA with cards missing": (
        "a:1:2 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 31 nics)\n" + GOOD,
        {"efa_expected": True, "efa_nics_expected": 32},
        "fail",
    ),
    "EFA that the text does not show": (GOOD, {"efa_expected": True}, "warn"),
    "GPUs over shared memory": (
        "a:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n" + GOOD,
        {"nvlink_expected": True},
        "fail",
    ),
    "no output at all": ("", {}, "error"),
    "another tool's": ("all good\n", {}, "error"),
    "a log without a test": ("a:1:2 [0] NCCL INFO Init COMPLETE\n", {}, "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_a_clean_run_is_no_pass(name):
    text, context, grade = BAD[name]
    assert read(text, **context)[0] == grade


ON_TCP = "node-a:1:2 [0] NCCL INFO Using network Socket\n"
TWO_HOSTS = GOOD.replace("node-a device  1", "node-b device  1")


@pytest.mark.parametrize(
    ("text", "context", "grade"),
    [
        (ON_TCP + GOOD, {"multi_node": False, "efa_expected": True}, "pass"),
        (ON_TCP + GOOD, {"multi_node": False, "ib_expected": True}, "pass"),
        (GOOD, {"multi_node": False, "efa_expected": True}, "pass"),
        (ON_TCP + GOOD, {"multi_node": False}, "pass"),
        (ON_TCP + GOOD, {"efa_expected": True}, "fail"),
        (ON_TCP + GOOD, {"multi_node": True, "efa_expected": True}, "fail"),
        (ON_TCP + TWO_HOSTS, {"multi_node": False, "efa_expected": True}, "fail"),
        (TWO_HOSTS, {"multi_node": False, "efa_expected": True}, "error"),
        (TWO_HOSTS, {"multi_node": False}, "error"),
        (ON_TCP + ON_TCP.replace("-a", "-b") + GOOD, {"multi_node": False, "efa_expected": True}, "fail"),
        (GOOD, {"multi_node": True}, "error"),
        (TWO_HOSTS, {"multi_node": True}, "pass"),
        ("node-a:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 2\n" + GOOD, {"multi_node": True}, "pass"),
        (ON_TCP + HEAD + ROWS, {"multi_node": False, "efa_expected": True}, "error"),
    ],
)  # fmt: skip
def test_on_one_node_no_network_is_crossed(text, context, grade):
    assert read(text, **context)[0] == grade


def test_ranks_that_ran_alone_measured_nothing():
    """A build without MPI under mpirun: as many runs of one rank, one into the other."""
    alone = GOOD.replace("nGpus 2", "nGpus 1").replace("#  Rank  1", "#  Ronk  1")
    alone = alone.replace("33.61  ", " 0.00  ").replace("  324.39", "    0.00")
    mixed = [line for pair in zip(*[alone.splitlines()] * 3, strict=True) for line in pair]
    grade, fields = read("\n".join(mixed), ranks_expected=3)
    assert (grade, fields["ranks"], fields["complete"]) == ("error", 1, True)
    assert fields["avg_busbw_gbs"] is None


def test_a_single_rank_is_known_without_the_list_of_devices():
    rows = ROWS.replace("  324.39       0", "    0.00       0").replace(
        "   33.61       0", "    0.00       0"
    )
    rows = rows.replace("  324.47       0", "    0.00       0").replace(
        "   33.93       0", "    0.00       0"
    )
    assert read(rows + FOOT.replace("179.1", "0"))[0] == "error"


# --- layouts ---------------------------------------------------------------------------------

FOOT_1 = " Out of bounds values : 0 OK\n Avg bus bandwidth    : 8.1 \n"
LAYOUTS = {
    "2.19, time stamps": (
        "  2147483648     536870912     float     sum      -1   6620.1  324.39  324.39       0"
        "   6618.4  324.47  324.47       0  2026-11-30 10:00:00\n" + FOOT
    ),
    "2.19, times of each iteration": (
        "  2147483648     536870912     float     sum      -1   6620.1  324.39  324.39       0"
        "   6611.0   6640.2   6640.1     0.10   6618.4  324.47  324.47       0   6611.0   6640.2"
        "   6640.1     0.10\n" + FOOT
    ),
    "2.13, all-gather": (
        "  2147483648      67108864     float    none      -1   6620.1  324.39  283.84      0"
        "   6618.4  324.47  283.91      0\n" + FOOT
    ),
    "2.10, in place not to be had": (
        "  2147483648     536870912     float     sum    28440   75.51   75.51  0e+00"
        "    18920  113.50  113.50    N/A\n" + FOOT
    ),
    "2.10, broadcast": (
        "  2147483648     536870912     float       0    28440   75.51   75.51  0e+00"
        "    18920  113.50  113.50  0e+00\n" + FOOT
    ),
    "2.10, deviations of rounding": (
        "  2147483648     536870912     float     sum    28440   75.51   75.51  2e-07"
        "    18920  113.50  113.50  5e-07\n" + FOOT
    ),
    "1.0": (
        "  2147483648     536870912   float     sum   28.440  75.51  75.51    0e+00"
        "   18.920  113.5  113.5    0e+00\n" + FOOT_1
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_every_version_are_read(name):
    grade, fields = read(LAYOUTS[name])
    assert (grade, fields["max_size_bytes"], fields["validated"]) == ("pass", 2147483648, True)


@pytest.mark.parametrize(
    "prefix", ["[1,3]<stdout>:", "0: ", "  | 2026-11-30T10:00:00 | ", "\x1b[32m", "node-a: "]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_stands_before_and_behind_a_line_changes_nothing(prefix, end):
    text = "".join(f"{prefix}{line}{end}" for line in GOOD.splitlines())
    assert read(text) == read(GOOD)


def test_lines_that_ran_together_are_read():
    glued = GOOD.replace(" 0 OK\n", " 0 OK").replace("324.47       0\n", "324.47       0 ")
    assert read(glued) == read(GOOD)


def test_tests_in_one_text_are_counted_one_by_one():
    assert read(GOOD + GOOD)[1]["complete"] is True
    assert read(GOOD + HEAD)[1]["complete"] is False
    assert read(HEAD + GOOD)[1]["complete"] is False
    assert read(GOOD + changed("0 OK", "3 FAILED"))[1]["wrong"] == 3
    assert read(GOOD + GOOD)[1]["avg_busbw_gbs"] is None


# --- anything at all -------------------------------------------------------------------------


def mutated(rounds, seed):
    """Field samples and our own with bytes changed, lines shuffled, cut and repeated."""
    rng = random.Random(seed)
    samples = [path.read_bytes() for path in sorted(FIELD.iterdir())] + [GOOD.encode()]
    for _ in range(rounds):
        lines = rng.choice(samples).splitlines(keepends=True)
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(lines))
            line = bytearray(lines[place] or b" ")
            match rng.randrange(5):
                case 0:
                    line[rng.randrange(len(line))] = rng.randrange(256)
                case 1:
                    line = line[: rng.randrange(len(line) + 1)]
                case 2:
                    line += lines[rng.randrange(len(lines))]
                case 3:
                    at = rng.randrange(len(line))
                    line[at:at] = rng.choice([b"9" * 40, b"1e999", b"nan ", b"N/A ", b"\xff"])
                case _:
                    lines[place], lines[0] = lines[0], lines[place]
                    continue
            lines[place] = bytes(line)
        yield b"".join(lines)


def survives(rounds, seed):
    for data in mutated(rounds, seed):
        for context in ({}, {"efa_expected": True, "efa_nics_expected": 8, "ranks_expected": 4}):
            reading = nccl_tests_text.read(data, context)
            assert reading.why
            if str(reading.grade) == "pass":
                assert reading.fields["complete"]
                assert reading.fields["wrong"] == 0


def test_no_text_breaks_the_reader_and_no_pass_lacks_its_proof():
    survives(1500, seed=11)


@pytest.mark.long
def test_the_same_with_a_hundred_thousand_texts():
    survives(100_000, seed=12)
