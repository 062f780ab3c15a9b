"""Ways by which gates of others let a bad node through, each tried here through a public door.

docs/fail-open.md is the whole list, with the tests elsewhere that belong to it.
"""

from __future__ import annotations

import json
import shutil
import time

import pytest
from fake_dcgmi import FAULTY_MEMORY, WARNING, discovery, refused, styled, v2, v4
from nodeproof_command import nodeproof
from pytest_run import run_pytest
from sysfs_tree import Machine, instance, tool, working

from nodeproof.acceptance import test_efa as efa
from nodeproof.acceptance import test_gpu_memory as memory
from nodeproof.acceptance import test_infiniband as infiniband
from nodeproof.acceptance import test_kernel_log as log
from nodeproof.acceptance import test_nvlink as nvlink
from nodeproof.acceptance import test_services as services
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.cli import main
from nodeproof.model import Attempt, Cause, Outcome
from tests.shipped_run import (
    BURNIN,
    GPU,
    MEMORY,
    RUN,
    bytes_of,
    failed,
    records_of,
    retest,
    without,
)
from tests.standin.build import GPUS, build, judged
from tests.standin.node import standing

# --- nodeproof parse: what a tool printed, with nothing beside it but what is expected ----------

NO_MEMORY = {**WARNING, "warning": "Couldn't allocate at least 75% of GPU memory", "error_id": 56}
SOUND = styled(v4({"software": ["Pass", "Pass"], "memory": ["Pass", "Pass"]}))
FAILED = styled(v4({"memory": ["Pass", ("Fail", FAULTY_MEMORY)]}))
ROW = "  268435456  67108864 float sum -1  11020.50  24.36  24.36  {}  11004.20  24.39  24.39  {}\n"
TABLE = (
    "# nThread 1 nGpus 1 minBytes 268435456 maxBytes 268435456 step: 2(factor) warmup iters: 5 "
    "iters: 20 agg iters: 1 validation: {} graph: 0\n#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid 11 on a device  0 [0000:18:00] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid 12 on a device  1 [0000:2a:00] NVIDIA H100 80GB HBM3\n#\n"
    "#       size         count    type   redop    root     time   algbw   busbw  #wrong     time"
    "   algbw   busbw  #wrong\n"
)
FOOT = "# Out of bounds values : {}\n# Avg bus bandwidth    : 24.375\n#\n"
TCP_ALONE = (
    "provider: tcp\n    fabric: 10.0.0.0/16\n    domain: eth0\n    version: 122.0\n"
    "    type: FI_EP_MSG\n    protocol: FI_PROTO_SOCK_TCP\n"
)

TEXTS = {
    # what it is: kind, text, context, outcomes that do not pass
    "a diagnostic that says it cannot be run": (
        "dcgm_text",
        "Error: Diagnostic cannot be run. ABORT\n",
        {"exit_status": 0},
        {"error"},
    ),
    "the same as JSON, and the command ended with 0": (
        "dcgm_json",
        styled(refused("Diagnostic could not be run.")),
        {"exit_status": 0},
        {"error"},
    ),
    "a failure of the memory, and the command ended with 0": (
        "dcgm_json",
        FAILED,
        {"exit_status": 0},
        {"fail"},
    ),
    "a failure in words without a number, and the command ended with 0": (
        "dcgm_json",
        styled(v2(("Pass", "Fail"), "Found 3 faulty memory elements on GPU 1")),
        {"exit_status": 0},
        {"fail"},
    ),
    "a status of the library that stayed after all retries": (
        "dcgm_text",
        "Error: Unable to execute diagnostic: DCGM_ST_CONNECTION_NOT_VALID\n" * 3,
        {},
        {"error"},
    ),
    "a memory test that passes and had no memory": (
        "dcgm_json",
        styled(v4({"memory": ["Pass", ("Pass", NO_MEMORY)]})),
        {"exit_status": 0},
        {"error"},
    ),
    "tests that were all skipped": (
        "dcgm_json",
        styled(v4({"memory": ["Skip", "Skip"]})),
        {"exit_status": 0},
        {"error", "fail"},
    ),
    "one GPU tested of two": (
        "dcgm_json",
        styled(v4({"memory": ["Pass"]}, gpus=1)),
        {"exit_status": 0, "gpus_expected": 2},
        {"error", "fail"},
    ),
    "a repeat that passes behind one that failed": ("dcgm_json", FAILED + SOUND, {}, {"fail"}),
    "a repeat that passes before one that failed": ("dcgm_json", SOUND + FAILED, {}, {"fail"}),
    "a diagnostic that was ended by its deadline": (
        "dcgm_json",
        SOUND[: len(SOUND) // 2],
        {"exit_status": 124},
        {"error"},
    ),
    "a test of collectives with wrong values and a good bandwidth": (
        "nccl_tests_text",
        TABLE.format(1) + ROW.format(64, 16) + FOOT.format("1 FAILED"),
        {"exit_status": 0},
        {"fail"},
    ),
    "wrong values in a row under a footer that says all is well": (
        "nccl_tests_text",
        TABLE.format(1) + ROW.format(64, 0) + FOOT.format("0 OK"),
        {"exit_status": 0},
        {"fail", "error"},
    ),
    "a test of collectives that was ended by its deadline": (
        "nccl_tests_text",
        TABLE.format(1) + ROW.format(0, 0),
        {"exit_status": 124},
        {"error"},
    ),
    "a test of collectives with fewer ranks than there are": (
        "nccl_tests_text",
        TABLE.format(1) + ROW.format(0, 0) + FOOT.format("0 OK"),
        {"exit_status": 0, "ranks_expected": 16},
        {"error", "fail"},
    ),
    "a libfabric without the provider that there should be": (
        "fi_info",
        "fi_getinfo: -61 (No data available)\n",
        {"efa_expected": True},
        {"fail"},
    ),
    "a libfabric that shows other providers alone": (
        "fi_info",
        TCP_ALONE,
        {"efa_expected": True},
        {"fail"},
    ),
    "health watches that were never set": (
        "dcgm_health_text",
        "Error: Health watches not enabled. Please enable watches. \n",
        {},
        {"error"},
    ),
    "a log in which no kernel speaks": ("kernel_log", "\n\n", {}, {"error"}),
    "a journal of programs alone": (
        "journal_json",
        '{"_TRANSPORT": "stdout", "MESSAGE": "all is well"}\n',
        {},
        {"error"},
    ),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_that_others_pass_is_no_pass(tmp_path, capsys, what):
    kind, text, context, outcomes = TEXTS[what]
    file = tmp_path / "text"
    file.write_text(text)
    status = main(["parse", kind, str(file), "--context", json.dumps(context)])
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] in outcomes, told
    assert status == {"fail": 10, "error": 11}[told["outcome"]]


@pytest.mark.parametrize("kind", ["dcgm_json", "nccl_tests_text"])
def test_the_texts_of_a_sound_node_pass(tmp_path, kind):
    """Otherwise the table above would prove nothing."""
    text = {
        "dcgm_json": SOUND,
        "nccl_tests_text": TABLE.format(1) + ROW.format(0, 0) + FOOT.format("0 OK"),
    }[kind]
    (tmp_path / "text").write_text(text)
    context = json.dumps({"exit_status": 0, "ranks_expected": 2, "gpus_expected": 2})
    assert main(["parse", kind, str(tmp_path / "text"), "--context", context]) == 0


# --- nodeproof verdict: what a run left behind --------------------------------------------------

PASSED_AT_LAST = (Attempt(outcome=Outcome.FAIL, cause=Cause.HARDWARE, summary="wrong bits"),)
LEFT = {
    # what it is: the run, the exit status
    "a checker that ended with an error": (
        RUN.refind(MEMORY, "gpu1", outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, measurements=()),
        11,
    ),
    "a check that was skipped": (RUN.refind(MEMORY, "gpu1", outcome=Outcome.SKIP), 11),
    "a check that nobody planned": (
        RUN.replan(checks=tuple(p for p in RUN.plan.checks if p.key.check != BURNIN)),
        11,
    ),
    "a check that never came to an end": (without(RUN, MEMORY), 11),
    "a run that was ended before its end": (RUN.but(end=None), 11),
    "a fault of the hardware that a retry made good": (
        RUN.refind(MEMORY, "gpu1", attempts=PASSED_AT_LAST),
        11,
    ),
    "a pass written behind a fail of the same check": (
        failed().but(findings=(*failed().findings, *RUN.findings)),
        10,
    ),
    "a pass that held nothing against a limit": (RUN.refind(MEMORY, "gpu1", measurements=()), 11),
    "a load that was too short to count": (RUN.refind(BURNIN, "gpu1", loaded_s=1.0), 11),
    "a detector that no longer sees a fault": (retest(RUN, MEMORY, GPU, caught=False), 11),
    "fewer devices than there should be": (RUN.replan(expected_devices=8), 11),
    "no finding at all": (RUN.but(findings=()), 11),
    "a fail among passes": (failed(), 10),
}


def test_no_results_that_others_pass_are_an_accept(tmp_path):
    names = {what: f"{number}.jsonl" for number, what in enumerate(LEFT)}
    for what, name in names.items():
        (tmp_path / name).write_bytes(bytes_of(records_of(LEFT[what][0])))
    done = nodeproof("verdict", "--json", *names.values(), cwd=tmp_path)
    documents, rest = [], done.stdout
    while rest.strip():
        document, end = json.JSONDecoder().raw_decode(rest.lstrip())
        documents.append(document["verdict"])
        rest = rest.lstrip()[end:]
    words = {10: "reject", 11: "undecided"}
    assert dict(zip(names, documents, strict=True)) == {w: words[s] for w, (_, s) in LEFT.items()}
    assert done.returncode != 0


def test_the_run_that_these_spoil_is_accepted(tmp_path):
    (tmp_path / "results.jsonl").write_bytes(bytes_of(records_of(RUN)))
    assert nodeproof("verdict", "results.jsonl", cwd=tmp_path).returncode == 0


# --- a run of the suites ------------------------------------------------------------------------

SUITES = ("efa", "dcgm", "services", "buses", "infiniband", "kernel_log")
EXPECTING = """
["node.efa.devices"]
expected = 4
wait_s = 0.0
["node.infiniband.ports"]
expected = 8
["node.bus.links"]
devices = 12
"""
WORDS = ("-p", "no:cacheprovider", "--nodeproof-device=cuda", "--nodeproof-output=out")


def ran(folder, *suites, path=None, spec=""):
    """A run on the machine made of files in `node`, two GPUs in a stand-in driver's list."""
    build("nvml.c", folder / "libnvidia-ml.so.1")
    build("cuda.c", folder / "libcuda.so.1")
    build("klogctl.c", folder / "klogctl.so")  # without STANDIN_LOG the log may not be read
    if spec:
        (folder / "spec.toml").write_text(spec)
    given = ["--nodeproof-spec=spec.toml"] if spec else []
    return run_pytest(
        folder,
        *(*WORDS, "--nodeproof-host-root=node", *given, "--pyargs"),
        *(f"nodeproof.acceptance.test_{suite}" for suite in suites),
        LD_LIBRARY_PATH=str(folder),
        LD_PRELOAD=str(folder / "klogctl.so"),
        STANDIN_NVML=" ".join(GPUS),
        STANDIN_CUDA=" ".join(GPUS),
        PATH=f"{path or folder}:/usr/bin:/bin",
    )


def outcomes(run):
    """By check: the outcome on the node, the worst on the GPUs."""
    order = ["pass", "skip", "error", "fail"]
    found = {}
    for (check, _), finding in run.findings().items():
        found[check] = max(found.get(check, "pass"), finding["outcome"], key=order.index)
    return found


@pytest.fixture(scope="module")
def unknown(tmp_path_factory):
    """A kind of machine that no spec describes, and on it what others take for harmless there."""
    folder = tmp_path_factory.mktemp("unknown")
    machine = instance(folder / "node", "g5.48xlarge", missing_driver=1)
    machine.put("sys/class/dmi/id/product_name", "x9.metal")
    machine.function("0000:c1:00.0", vendor="0x10de", device="0x22a3", kind="0x068000")
    machine.put("proc/self/stat", "1 (none) S")  # no kernel's second process: nothing is seen
    machine.put("proc/cpuinfo", "flags\t\t: fpu")
    (folder / "table").write_text(discovery())
    tool(
        folder,
        "dcgmi",
        f'if [ "$1" = discovery ]; then cat {folder}/table; exit 0; fi\n'
        "echo 'Error: Diagnostic cannot be run'; exit 0",
    )
    # No number that is expected: only the wait for what comes late is left out.
    return ran(folder, *SUITES, spec='["node.efa.devices"]\nwait_s = 0.0\n')


@pytest.mark.parametrize(
    ("check", "outcome", "says"),
    [
        ("node.efa.devices", "fail", "without an RDMA device"),
        ("node.dcgm.diag", "error", ""),
        ("node.dcgm.health", "error", ""),
        ("node.services.needed", "error", "not visible"),
        ("node.log.events", "error", "can't be read"),
        ("node.log.new", "error", "can't be read"),
        ("gpu.bus.link", "error", "the bus has no"),
    ],
)
def test_a_machine_that_nobody_knows_is_not_passed_for_that(unknown, check, outcome, says):
    found = [f for (name, _), f in unknown.findings().items() if name == check]
    assert {f["outcome"] for f in found} == {outcome}, unknown.text
    assert all(says in f["summary"] for f in found)


def test_that_machine_is_undecided_and_no_check_is_left_out(unknown):
    assert unknown.status == 1
    told = unknown.verdict()
    assert told.decision.value == "undecided"
    planned = {
        p["key"]["check"] for r in unknown.records if r["type"] == "plan" for p in r["checks"]
    }
    assert planned == {check for check, _ in unknown.findings()}


@pytest.mark.long
def test_gpus_that_a_hollow_host_root_does_not_show_are_no_pass(tmp_path):
    """/sys without a single device passes checks of what may be absent, never those of the GPUs."""
    machine = Machine(tmp_path / "node")
    machine.link("proc", "/proc")
    run = ran(tmp_path, "efa", "infiniband", "buses")
    assert outcomes(run)["gpu.bus.link"] == "error"
    assert "ERRORED" in run.doubts("gpu.bus.link")


@pytest.mark.long
def test_a_spec_makes_of_every_absence_there_a_fail(tmp_path):
    machine = Machine(tmp_path / "node")
    machine.link("proc", "/proc")
    run = ran(
        tmp_path,
        *("efa", "infiniband", "buses"),
        spec=EXPECTING,
    )
    told = outcomes(run)
    for check in ("node.efa.devices", "node.infiniband.ports", "node.bus.links"):
        assert told[check] == "fail"


# --- a node that says less of itself than it should, and no spec that says what that is ---------

SINCE_BOOT = "nodeproof.probes.kernel_events:since_boot"
SILENT = "\n".join(
    f"nvmlDeviceGet{call}=error:3"
    for call in (
        *("EccMode", "DefaultEccMode", "TotalEccErrors", "MemoryErrorCounter"),
        *("SramEccErrorStatus", "RemappedRows", "RowRemapperHistogram"),
        *("RetiredPages", "RetiredPagesPendingStatus"),
    )
)
DOWN = "\n".join(f"nvmlDeviceGetNvLinkState/{link}=0" for link in range(18))
# What a sandbox gives for the kernel's log: google/gvisor, pkg/sentry/kernel/syslog.go.
SANDBOX = "<6>[    0.000000] Starting gVisor...\n<6>[    0.354495] Daemonizing children...\n"
PROGRAM = "<14>[    0.500000] a program, and no kernel\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with standing(tmp_path_factory) as one:
        yield one


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with working(tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.mark.parametrize("product", ["hgx-h100", "gb200", "l40s", "t4"])
def test_a_product_with_ecc_that_tells_of_none_is_no_pass(node, product):
    node.says(product, also=SILENT)
    for check in (memory.test_ecc_mode, memory.test_ecc_errors, memory.test_remap):
        assert node.judged(check)[0].outcome is Outcome.FAIL


def test_a_product_that_nobody_knows_and_that_tells_of_no_ecc_is_no_pass(node):
    node.says("gb200", also=f"nvmlDeviceGetName=NVIDIA Z900\n{SILENT}")
    assert node.judged(memory.test_ecc_mode)[0].outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("name", "outcome"), [("NVIDIA GB300", Outcome.FAIL), ("NVIDIA Z900", Outcome.ERROR)]
)
def test_links_that_are_there_and_all_down_on_every_gpu_are_no_pass(node, name, outcome):
    node.says("gb200", also=f"nvmlDeviceGetName={name}\n{DOWN}")
    assert len(node.answer("nodeproof.probes.nvlink:links")["links"]) == 18
    assert node.judged(nvlink.test_links)[0].outcome is outcome


@pytest.mark.parametrize("text", [SANDBOX, PROGRAM], ids=["sandbox", "program"])
def test_a_log_in_which_no_kernel_tells_of_its_start_is_no_whole_log(tmp_path, context, text):
    build("klogctl.c", tmp_path / "klogctl.so")
    (tmp_path / "log").write_text(text)
    told = {"LD_PRELOAD": str(tmp_path / "klogctl.so"), "STANDIN_LOG": str(tmp_path / "log")}
    pool = Pool(ends=time.monotonic() + 60, logs=tmp_path, listen=lambda *_: None)
    pool.add("w", told)
    own = context(device_kind="node", host_root=str(tmp_path / "root"))
    try:
        reply = pool.run({"w": Call(call=SINCE_BOOT, args={}, context=own)}, deadline_s=20)["w"]
    finally:
        pool.close(grace_s=0.5)
    assert isinstance(reply, Answer), reply
    assert judged(log.test_events, reply.result)[0].outcome is Outcome.FAIL


COUNTED = {
    # by check: work and what it is asked with
    services.test_needed: ("nodeproof.probes.services:services", {}),
    efa.test_efa_devices: ("nodeproof.probes.efa:devices", {"expected": 0, "wait_s": 0.0}),
    infiniband.test_infiniband_ports: ("nodeproof.probes.infiniband:ports", {}),
}


@pytest.mark.parametrize("file", ["vendor", "class"])
@pytest.mark.parametrize("check", COUNTED, ids=lambda check: check.__name__)
def test_what_does_not_tell_what_it_is_is_no_bus_without_it(worker, tmp_path, check, file):
    """A switch, an adapter or a port: whichever it is, it can't be counted."""
    machine = Machine(tmp_path)
    machine.put("proc/1/stat", "1 (init) S")
    folder = machine.function("0000:c1:00.0", vendor="0x10de", device="0x22a3", kind="0x068000")
    call, args = COUNTED[check]
    for text in ("", "rubbish"):
        machine.put(f"{folder}/{file}", text)
        reply = worker.run(call, tmp_path, **args)
        assert isinstance(reply, Raised), reply
        assert reply.cause == "environment"
        assert "0000:c1:00.0 does not tell what it is" in reply.message


def test_a_function_that_has_gone_since_the_bus_was_listed_is_none(worker, tmp_path):
    machine = Machine(tmp_path)
    machine.put("proc/1/stat", "1 (init) S")
    folder = machine.function("0000:c1:00.0", vendor="0x10de", device="0x22a3", kind="0x068000")
    shutil.rmtree(tmp_path / folder)
    assert worker.answer("nodeproof.probes.services:services", tmp_path)["implied"] == {}
