"""What `k8s/image/Dockerfile` names is there: files, extras, pins, users. Building it is for people."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

import pytest
from k8s_tree import K8S, built, documents, one
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
FILE = K8S / "image/Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(text: str) -> list[tuple[str, str]]:
    """Each instruction with what it is given; comments gone, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(word, " ".join(rest.split())) for word, _, rest in parts]


TOLD = read(FILE.read_text())
STARTS = [i for i, (word, _) in enumerate(TOLD) if word == "FROM"]
STAGES = {TOLD[i][1].split(" AS ")[1]: TOLD[i : j] for i, j in zip(STARTS, [*STARTS[1:], None], strict=True)}  # fmt: skip
ARGS = {name: value.strip('"') for word, rest in TOLD if word == "ARG" for name, _, value in [rest.partition("=")]}  # fmt: skip


def given(stage: str, word: str) -> list[str]:
    return [rest for said, rest in STAGES[stage] if said == word]


def pins(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return dict(line.split("==") for line in lines)


def needs(*extras: str) -> subprocess.CompletedProcess[str]:
    with (ROOT / "pyproject.toml").open("rb") as project:
        words = [sys.executable, str(K8S / "image/needs.py"), *extras]
        return subprocess.run(words, stdin=project, capture_output=True, text=True, check=False)


def asked(stage: str) -> set[str]:
    """Extras whose needs a stage installs."""
    (made,) = given("wheel", "RUN")[:1]
    [(extras, file)] = re.findall(rf"needs\.py ([a-z0-9 ]+) <[^>]+> (/needs/{stage}\.txt)", made)
    assert any(f"--requirement {file} " in run for run in given(stage, "RUN"))
    return set(extras.split())


# --- what goes in ---------------------------------------------------------------------------------

SOURCES = [s for rest in given("wheel", "COPY") for s in rest.split()[:-1]]
IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]


def let_in(source: str) -> bool:
    """Whether the last line that speaks of a file, or of a folder above it, lets it in."""
    parts = source.rstrip("/").split("/")
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    said = [line for line in IGNORED if any(fnmatch(a, line.lstrip("!")) for a in above)]
    return bool(said) and said[-1].startswith("!")


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_copied_is_there_and_not_ignored(source):
    assert (ROOT / source).exists()
    assert let_in(source)


@pytest.mark.parametrize(
    "source", [".git", "tests", "shared", "build", "nodeproof-results", "k8s/controller", ".venv"]
)
def test_nothing_else_goes_into_the_build(source):
    assert not let_in(source)


def test_the_wheel_is_made_of_all_that_the_package_links_to():
    links = {p.resolve().name for p in (ROOT / "src/nodeproof").iterdir() if p.is_symlink()}
    assert links
    assert links | {"src", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= set(
        SOURCES
    )


# --- what is installed ----------------------------------------------------------------------------


def test_the_suites_have_their_extras_and_the_controller_has_no_torch():
    assert asked("node") == {"node", "k8s"}
    assert asked("controller") == {"k8s"}
    assert asked("node") <= set(PROJECT["optional-dependencies"])
    small, whole = (set(needs(*asked(s)).stdout.split()) for s in ("controller", "node"))
    assert whole == {
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["node"],
        *PROJECT["optional-dependencies"]["k8s"],
    }
    names = {Requirement(line).name for line in small}
    assert "kubernetes" in names
    assert not names & {"torch", "pytest", "numpy", "nvidia-ml-py"}


def test_an_extra_that_is_none_ends_the_build():
    asked_wrong = needs("node", "nodes")
    assert asked_wrong.returncode != 0
    assert asked_wrong.stdout == ""


def test_every_need_is_pinned_to_what_was_tested():
    known = pins((ROOT / "constraints.txt").read_text())
    wanted = [Requirement(line) for line in needs("node", "k8s").stdout.splitlines()]
    assert {r.name for r in wanted if r.name not in known} == set()
    assert [r.name for r in wanted if known[r.name] not in r.specifier] == []


@pytest.mark.parametrize("stage", ["controller", "node"])
def test_nothing_is_installed_without_its_pin(stage):
    runs = [run for run in given(stage, "RUN") if "pip install" in run]
    assert runs
    assert all("--constraint /needs/constraints.txt" in r or "--no-deps" in r for r in runs)
    assert "pip check" in runs[-1]


def test_both_images_hold_one_wheel_so_that_their_digests_agree():
    installed = {rest for s in ("controller", "node") for rest in given(s, "COPY")}
    assert installed == {"--from=wheel /needs /needs", "--from=wheel /wheel /wheel"}
    assert all(len(given(s, "COPY")) == 2 for s in ("controller", "node"))


def test_the_tools_that_the_suites_run_are_installed():
    assert set(ARGS["PACKAGES"].split()) == {"gcc", "libc6-dev", "libfabric-bin"}
    assert any("install" in run and "${PACKAGES}" in run for run in given("node", "RUN"))
    assert any("#include <Python.h>" in run for run in given("node", "RUN"))


def test_the_base_is_one_version_of_a_python_that_is_enough():
    name, _, tag = ARGS["BASE"].partition(":")
    assert "/" not in name, "a registry's host is for the site to name"
    version = "".join(takewhile(lambda c: c in "0123456789.", tag))
    assert version.count(".") == 1
    assert version in SpecifierSet(PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert "latest" not in FILE.read_text()
    assert not any(word == "ADD" for word, _ in TOLD)


# --- how it is run --------------------------------------------------------------------------------


def test_the_last_stage_is_the_one_of_the_tests_and_runs_as_root():
    assert list(STAGES) == ["base", "wheel", "controller", "node"]
    assert given("base", "USER") == given("node", "USER") == []


def test_the_deployment_runs_what_the_image_starts_as_the_user_it_was_built_for():
    pod = one(built("."), "Deployment", "nodeproof-controller")["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command == ["nodeproof"]
    assert command[0] in PROJECT["scripts"]
    assert given("base", "ENTRYPOINT") == ['["nodeproof"]']
    security = pod["securityContext"]
    assert given("controller", "USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert pod["containers"][0]["args"][0] in given("controller", "RUN")[-1].split()


def test_the_test_pods_run_what_the_image_starts():
    (job,) = documents(K8S / "jobs/node-acceptance.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["nodeproof"]


def test_the_image_takes_no_gpu_that_its_pod_did_not_ask_for():
    variables = " ".join(rest for word, rest in TOLD if word == "ENV")
    assert "NVIDIA_VISIBLE_DEVICES" not in variables
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in variables


@pytest.mark.parametrize("stage", ["controller", "node"])
def test_a_build_that_cannot_start_the_command_fails(stage):
    assert any(run.startswith("nodeproof --version && ") for run in given(stage, "RUN"))


@pytest.mark.parametrize("page", ["docs/kubernetes.md", "k8s/README.md"])
def test_the_documents_say_how_it_is_built(page):
    text = (ROOT / page).read_text()
    assert "-f k8s/image/Dockerfile" in text
    assert "--target controller" in text
