"""mpirun of two makes, and torchrun: how they are told to start members, and how they end."""

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import mpi_environments
import pytest
from nodeproof_command import nodeproof
from rehearsal import FIVE

from nodeproof.fabric import launching
from nodeproof.fabric.launching import Launched, Launcher, command

MARK = "NODEPROOF_TEST_MARK"
OPEN_MPI_SAYS = "mpirun (Open MPI) 5.0.11\n\nReport bugs to ..."
MPICH_SAYS = "HYDRA build details:\n    Version:  5.0.2"
MEMBER = [
    *(sys.executable, "-P", "-m", "mpi4py", "-m", "nodeproof.fabric.by_mpi"),
    *("--head", "h:1", "--nodes", "4", "--device", "cpu"),
]


def until(found, *, within_s=20.0):
    """What `found` returns as soon as that is true; fails after `within_s`."""
    ends = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < ends, f"not within {within_s} s"
        time.sleep(0.05)
    return value


def marked(mark):
    """Ids of the living processes that were started with this mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"{MARK}={mark}".encode() in (
                (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
    return found


@pytest.fixture
def mark():
    """A word for the environment of what a test starts; at the end nothing of it may be left."""
    word = uuid.uuid4().hex
    yield word
    left = marked(word)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert not left


def script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """Put an mpirun on the PATH that answers as it is told, and an mpi4py beside it."""
    (tmp_path / "site/mpi4py").mkdir(parents=True)
    (tmp_path / "site/mpi4py/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")

    def make(says="", *, text="", **environment):
        path = script(tmp_path / "bin/mpirun", text or f"cat <<'END'\n{says}\nEND")

        def words(*extra, shared=""):
            around = {"PATH": f"{path.parent}:/usr/bin:/bin", **environment}
            told, more = command(
                Launcher.MPIRUN,
                nodes=4,
                head="h:1",
                member_args=["--device", "cpu"],
                extra=extra,
                environment={**around, "NODEPROOF_FABRIC_TOKEN": shared} if shared else around,
            )
            assert more["MPIR_CVAR_ENABLE_GPU"] == "0"
            return told

        return str(path), words

    return make


# --- what they are told -------------------------------------------------------------------------

ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
FREE = ["--bind-to", "none"]
SHARED = ["--map-by", ":OVERSUBSCRIBE"]
SPREAD = ["--map-by", "ppr:1:node"]


@pytest.mark.parametrize(
    ("extra", "around", "told"),
    [
        pytest.param([], {}, [*ROOT, *FREE, *SHARED], id="one-machine"),
        pytest.param(["--hostfile", "f"], {}, [*ROOT, *FREE, *SPREAD], id="hostfile"),
        pytest.param(["--host=a,b"], {}, [*ROOT, *FREE, *SPREAD], id="hosts"),
        pytest.param([], {"SLURM_JOB_ID": "7"}, [*ROOT, *FREE, *SPREAD], id="slurm"),
        pytest.param(
            [],
            {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
            [*ROOT, *FREE, *SPREAD],
            id="mpijob",
        ),
        pytest.param(["--map-by", "slot"], {}, [*ROOT, *FREE], id="own-placing"),
        pytest.param(["--bind-to=core"], {}, [*ROOT, *SHARED], id="own-binding"),
    ],
)
def test_open_mpi_places_one_member_a_node_and_binds_none(mpirun, extra, around, told):
    path, words = mpirun(OPEN_MPI_SAYS, **around)
    assert words(*extra) == [path, *told, "-n", "4", *extra, *MEMBER]


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ([], []),
        (["-f", "hosts"], ["-ppn", "1"]),
        (["-hosts", "a,b"], ["-ppn", "1"]),
        (["-hosts", "a,b", "-ppn", "2"], []),
    ],
)
def test_mpich_places_one_member_a_node(mpirun, extra, told):
    path, words = mpirun(MPICH_SAYS)
    assert words(*extra) == [path, *told, "-n", "4", *extra, *MEMBER]


def test_the_shared_word_reaches_the_members_by_its_name_and_shows_nowhere(mpirun):
    _, words = mpirun(OPEN_MPI_SAYS)
    told = words(shared="secret")
    assert told[told.index("-x") + 1] == "NODEPROOF_FABRIC_TOKEN"
    assert "secret" not in " ".join(told)
    assert "-x" not in words()


def test_torchrun_restarts_nothing_and_waits_for_nobody_for_long():
    told, _ = command(
        "torchrun",
        nodes=3,
        head="h:1",
        member_args=["--device", "cpu"],
        extra=["--rdzv-id", "x"],
        join_s=17,
    )
    assert told[:4] == [sys.executable, "-P", "-m", "torch.distributed.run"]
    for pair in (["--nproc-per-node", "3"], ["--max-restarts", "0"], ["--rdzv-id", "x"]):
        assert told[told.index(pair[0]) + 1] == pair[1]
    assert "join_timeout=17" in told
    assert told[told.index("--no-python") + 1 :] == [
        *(sys.executable, "-P", "-m", "nodeproof.fabric.by_torchrun"),
        *("--head", "h:1", "--nodes", "3", "--device", "cpu"),
    ]


# --- what is missing ----------------------------------------------------------------------------


def test_no_mpirun_is_said_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"there is no mpirun on the PATH or in .*: install Open"):
        command(
            Launcher.MPIRUN,
            nodes=2,
            head="h:1",
            member_args=[],
            environment={"PATH": str(tmp_path)},
        )


def test_an_mpirun_of_neither_make_is_refused(mpirun):
    _, words = mpirun("mpirun (Another MPI) 1.0")
    with pytest.raises(ValueError, match=r"is neither of Open MPI nor of MPICH: 'mpirun .Another"):
        words()


def test_an_mpirun_that_answers_nothing_or_never_is_refused(mpirun, monkeypatch):
    _, words = mpirun(text="exit 1")
    with pytest.raises(ValueError, match="is neither of Open MPI nor of MPICH: ''"):
        words()
    monkeypatch.setattr(launching, "_VERSION_S", 0.3)
    _, words = mpirun(text="exec sleep 20")
    with pytest.raises(ValueError, match=r"mpirun --version did not end within 0\.3 s"):
        words()


def test_an_mpirun_that_cannot_be_executed_is_refused(mpirun, tmp_path):
    _, words = mpirun(OPEN_MPI_SAYS)
    (tmp_path / "bin/mpirun").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(ValueError, match="can't be started: Exec format error"):
        words()


# --- how they end -------------------------------------------------------------------------------


def start(tmp_path, mark, text, **more):
    """Launch a shell script as a launcher."""
    path = script(tmp_path / "launcher", text)
    return Launched(
        [str(path)], log=tmp_path / "log", environment={**os.environ, MARK: mark}, **more
    )


def test_what_a_launcher_leaves_in_sessions_of_its_own_ends_with_it(tmp_path, mark):
    """As MPICH's proxies do; these are deaf to SIGTERM, too."""
    deaf = "setsid sh -c 'trap \"\" TERM; echo up >>ups; sleep 300; sleep 300' &"
    launched = start(tmp_path, mark, f"cd {tmp_path}\n{deaf}\n{deaf}\nsetsid sleep 300")
    ups = tmp_path / "ups"
    until(lambda: ups.exists() and ups.read_text().count("up") == 2)
    assert launched.poll() == ""
    began = time.monotonic()
    assert launched.end() == []
    assert time.monotonic() - began < 4
    assert marked(mark) == []
    assert launched.end() == []  # again, when nothing is there any more


def test_what_is_left_when_a_launcher_ends_by_itself_ends_too(tmp_path, mark):
    launched = start(tmp_path, mark, "setsid sh -c 'sleep 300; sleep 300' &\nexit 137")
    assert until(launched.poll) == "launcher ended with status 137"
    assert marked(mark) == []


def test_a_launcher_that_was_killed_is_told_as_a_shell_tells_it(tmp_path, mark):
    launched = start(tmp_path, mark, "sleep 300 &\nkill -9 $$")
    assert until(launched.poll) == "launcher ended with status 137"
    assert marked(mark) == []


def test_a_launcher_deaf_to_sigterm_is_killed_after_its_grace(tmp_path, mark):
    text = f"trap '' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.1; done"
    launched = start(tmp_path, mark, text, grace_s=0.5)
    until((tmp_path / "up").exists)
    assert launched.end() == []
    assert launched.poll() == "launcher ended with status 137"


def test_a_launcher_that_cannot_be_started_says_so(tmp_path, mark):
    launched = Launched(
        [str(tmp_path / "nothing")],
        log=tmp_path / "log",
        environment={**os.environ, MARK: mark},
    )
    why = f"{tmp_path}/nothing can't be started: No such file or directory"
    assert until(launched.poll) == f"nothing ended with status 127: {why}"


def test_what_members_say_to_the_user_is_found_among_the_noise(tmp_path, mark):
    text = "echo noise\necho '[1,2]<stderr>: nodeproof: it is so'\necho nodeproof: it is so"
    launched = start(tmp_path, mark, text)
    until(launched.poll)
    assert launched.said() == ["it is so"]


HEAD = """
import os, pathlib, sys, threading
from nodeproof.fabric.launching import Launched
Launched([sys.argv[1]], log=pathlib.Path(sys.argv[2]))
print("launched", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_head_is_killed_the_launcher_and_its_processes_end(tmp_path, mark, number):
    text = f"setsid sh -c 'sleep 300; sleep 300' &\ntouch {tmp_path}/up\nwait"
    path = script(tmp_path / "launcher", text)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HEAD, str(path), str(tmp_path / "log")],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
    ) as head:
        until((tmp_path / "up").exists)
        head.send_signal(number)
        head.wait(10)
    until(lambda: not marked(mark))


# --- the real ones ------------------------------------------------------------------------------

MPIS = (mpi_environments.OPEN_MPI, mpi_environments.MPICH)
EACH = (*MPIS, "torchrun")


@pytest.fixture(scope="session")
def environments(tmp_path_factory):
    """Make the interpreter of an MPI, or of torchrun; one for all processes of a test run."""
    here = tmp_path_factory.getbasetemp()
    cache = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "mpi"
    cache.mkdir(exist_ok=True)

    def make(name):
        return sys.executable if name == "torchrun" else mpi_environments.environment(name, cache)

    return make


@pytest.fixture
def python(environments):
    """Path of the interpreter with which to start by one of `EACH`."""

    def find(name):
        made = environments(name)
        return made if isinstance(made, str) else made.python

    return find


TELL = """
import json, sys
from nodeproof.fabric import launching
args = json.loads(sys.argv[1])
print(json.dumps(launching.command(**args)))
"""


def launch(tmp_path, mark, python, name, *told, nodes=2, head="127.0.0.1:9", mpirun="", **more):
    """Start members as the head does; they are told another head, or none that listens."""
    args = {
        "launcher": name if name == "torchrun" else "mpirun",
        "nodes": nodes,
        "head": head,
        "member_args": told,
    }
    asked = subprocess.run(
        [python(name), "-P", "-c", TELL, json.dumps(args)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    words, needed = json.loads(asked.stdout)
    words[0] = mpirun or words[0]
    return Launched(
        words, log=tmp_path / "log", environment={**os.environ, **needed, **more, MARK: mark}
    )


@pytest.fixture
def deaf_head():
    """Address of a head that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


BOOM = """
import os, socket

def boom(*_, **__):
    raise RuntimeError("boom")

if "1" in (os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")) or (
    "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") == "1"
):
    socket.create_connection = boom
"""


@pytest.mark.parametrize("name", EACH)
def test_an_exception_in_one_rank_ends_all(tmp_path, mark, python, name, deaf_head):
    (tmp_path / "sitecustomize.py").write_text(BOOM)
    launched = launch(
        tmp_path, mark, python, name, "--device", "cpu",
        nodes=3, head=deaf_head, PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert " ended with status 1" in until(launched.poll, within_s=120)
    assert "RuntimeError: boom" in (tmp_path / "log").read_text()
    assert marked(mark) == []


@pytest.mark.parametrize("name", EACH)
def test_two_members_with_gpus_on_one_machine_are_refused(tmp_path, mark, python, name):
    launched = launch(tmp_path, mark, python, name, "--device", "cuda")
    ended = until(launched.poll, within_s=120)
    assert ": start one member a node; only --device cpu rehearses with more" in ended
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        (*MPIS, ": MPI has 1 ranks, not 2: mpirun and mpi4py have to belong to the same MPI"),
        (*MPIS[::-1], ""),  # MPICH gives up by itself before anything of ours runs
    ],
)
def test_ranks_that_another_mpi_starts_take_no_part(
    tmp_path, mark, python, environments, name, other, told
):
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    wrong = script(
        tmp_path / "bin/mpirun",
        f"""while [ "$1" != -n ]; do shift; done; exec {environments(other).mpirun} "$@" """,
    )
    launched = launch(
        tmp_path, mark, python, name, "--device", "cpu", nodes=2, mpirun=str(wrong), **allowed
    )
    ended = until(launched.poll, within_s=120)
    assert told in ended
    assert "ended with status 0" not in ended
    assert marked(mark) == []


# --- whole runs ---------------------------------------------------------------------------------


# What one pair of members reaches says little of the next where they share the cores of a machine
# with other tests: nothing here asks for speed.
SLOW = """
name = "any-speed"
["fabric.group.bandwidth"]
all_reduce_gbs = 1e-6
all_gather_gbs = 1e-6
reduce_scatter_gbs = 1e-6
all_to_all_gbs = 1e-6
broadcast_gbs = 1e-6
sendrecv_gbs = 1e-6
["fabric.member.pairs"]
ratio = 0.001
["fabric.link.pair"]
ratio = 0.001
["fabric.group.common"]
ratio = 0.001
["fabric.member.punctual"]
late_ms = 60000.0
"""


class Group:
    """One `nodeproof fabric run` by a launcher, on this machine."""

    def __init__(self, folder, mark, python, name, *more, nodes=3):
        self.output, self.mark, self.log = folder / "out", mark, folder / "said"
        spec = folder / "any-speed.toml"
        spec.write_text(SLOW)
        launcher = name if name == "torchrun" else "mpirun"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(python(name), "-P", "-m", "nodeproof", "fabric", "run"),
                    *("--launcher", launcher, "--nodes", str(nodes), "--device", "cpu"),
                    *("--join-timeout", "60", "--timeout", "20", "--deadline", "240"),
                    *("--max-bytes", "64KiB", "--spec", str(spec), "--output", str(self.output)),
                    *more,
                ],
                env={**os.environ, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def said(self):
        return self.log.read_text()

    def wait_for(self, words):
        until(lambda: words in self.said() or self.process.poll() is not None, within_s=150)
        assert words in self.said()

    def member(self, rank):
        """Process id of a member that the launcher started."""
        names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
        found = []
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                around = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                placed = any(f"{name}={rank}".encode() in around for name in names)
                if placed and b"nodeproof.fabric.by_" in line:
                    found.append(pid)
        assert len(found) == 1, found
        return found[0]

    def launcher(self):
        """Process id of what the keeper keeps."""
        (keeper,) = [
            pid
            for pid in marked(self.mark)
            if b"nodeproof.fabric.launching" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        return int(children[0])

    def end(self, within_s=200):
        """Exit status; nothing of it may be left then."""
        try:
            status = self.process.wait(within_s)
        finally:
            self.process.kill()
        assert marked(self.mark) == []
        return status

    def record(self):
        return json.loads((self.output / "fabric.json").read_text())

    def verdict(self):
        return json.loads((self.output / "verdict.json").read_text())


@pytest.fixture
def group(tmp_path, mark, python):
    started = []

    def start(name, *more, **how):
        started.append(Group(tmp_path, mark, python, name, *more, **how))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


HOST = platform.node()


@pytest.mark.parametrize("name", [*MPIS, pytest.param("torchrun", marks=pytest.mark.long)])
def test_a_group_that_a_launcher_starts_is_accepted(group, name):
    run = group(name, nodes=4)
    assert run.end() == 0, run.said()
    assert all((run.output / file).stat().st_size for file in FIVE)
    record = run.record()
    assert [m["id"] for m in record["members"]] == [f"{HOST}#{rank}" for rank in range(4)]
    assert [m["lost"] for m in record["members"]] == [""] * 4
    assert len(record["whole"]["ranks"]) == 4
    assert {pair["said"] for pair in record["pairs"]} == {""}


@pytest.mark.parametrize(
    "name",
    [mpi_environments.OPEN_MPI, *(pytest.param(n, marks=pytest.mark.long) for n in EACH[1:])],
)
def test_a_member_that_is_killed_is_named_though_its_launcher_kills_the_others(group, name):
    run = group(name)
    run.wait_for("nodes are ready")
    os.kill(run.member(1), signal.SIGKILL)
    assert run.end() == 11, run.said()
    assert all((run.output / file).stat().st_size for file in FIVE)
    lost = {m["id"]: m["lost_after_s"] for m in run.record()["members"] if m["lost"]}
    assert min(lost, key=lost.get) == f"{HOST}#1"
    assert f"{HOST}#1" in json.dumps(run.verdict()["undecided"])


@pytest.mark.parametrize(
    "name", [mpi_environments.MPICH, *(pytest.param(n, marks=pytest.mark.long) for n in EACH[::2])]
)
def test_a_launcher_that_is_killed_ends_in_an_undecided_and_leaves_nothing(group, name):
    run = group(name)
    run.wait_for("nodes are ready")
    os.kill(run.launcher(), signal.SIGKILL)
    assert run.end() == 11, run.said()
    assert all((run.output / file).stat().st_size for file in FIVE)
    assert all(m["lost"] for m in run.record()["members"])


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_when_the_head_of_a_group_is_killed_nothing_of_it_stays(group, name):
    run = group(name)
    run.wait_for("nodes are ready")
    run.process.kill()
    run.process.wait()
    until(lambda: not marked(run.mark), within_s=40)


@pytest.mark.parametrize("why", ["mpirun", "mpi4py"])
def test_what_is_missing_for_mpirun_is_a_usage_error(tmp_path, why):
    """Neither is in the environment of these tests."""
    if why == "mpi4py":
        script(tmp_path / "bin/mpirun", "echo mpirun Open MPI")
    done = nodeproof(
        *("fabric", "run", "--launcher", "mpirun", "--nodes", 2, "--device", "cpu"),
        *("--output", tmp_path / "out"),
        PATH=f"{tmp_path}/bin:/usr/bin:/bin",
    )
    assert done.returncode == 2
    assert {
        "mpirun": "nodeproof: there is no mpirun on the PATH",
        "mpi4py": "nodeproof: mpi4py is not installed: pip install 'nodeproof[mpi]'",
    }[why] in done.stderr
