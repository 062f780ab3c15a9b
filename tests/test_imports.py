"""Who loads what: a controller no torch and no pytest, a foreign pytest run nothing but a door."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shipped_run import RUN

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "pytest", "_pytest", "rich", "jinja2", "matplotlib", "numpy", "pynvml"}
DRIVERS = {"torch", "pytest", "_pytest", "numpy", "pynvml"}
CHECK = "device.memory.pattern"


def run(*words, folder, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


MAIN = """
import json, sys
try:
    from nodeproof.cli import main
    status = main(sys.argv[2:])
except SystemExit as stop:
    status = stop.code
with open(sys.argv[1], "w") as file:
    json.dump([status, sorted({m.partition(".")[0] for m in sys.modules})], file)
"""


@pytest.mark.parametrize(
    ("words", "status", "never"),
    [
        (["--help"], 0, HEAVY),
        (["run", "--help"], 0, HEAVY),
        (["--version"], 0, HEAVY),
        (["no-such-command"], 2, HEAVY),
        (["list"], 0, HEAVY),
        (["list", "--specs"], 0, HEAVY),
        (["explain", CHECK], 0, HEAVY),
        (["explain", "device.memory"], 2, HEAVY),
        (["verdict", "results.jsonl"], 0, HEAVY),
        (["verdict", "--json", "results.jsonl"], 0, HEAVY),
        (["verdict", "absent.jsonl"], 2, HEAVY),
        (["report", "results.jsonl", "--format", "json"], 0, HEAVY),
        (["report", "results.jsonl", "--format", "junit"], 0, DRIVERS | {"matplotlib"}),
        (["report", "results.jsonl", "--format", "prometheus"], 0, DRIVERS | {"matplotlib"}),
        (["report", "absent.jsonl", "--format", "html"], 2, DRIVERS | {"matplotlib"}),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_command_loads_no_more_than_it_needs(tmp_path, words, status, never):
    RUN.write(tmp_path / "results.jsonl")
    loaded = tmp_path / "loaded.json"
    done = run("-c", MAIN, loaded, *words, folder=tmp_path)
    said, modules = json.loads(loaded.read_text())
    assert said == status, done.stderr
    assert never & set(modules) == set()
    assert "nodeproof" in modules


def test_a_report_in_html_loads_neither_pytest_nor_torch(tmp_path):
    RUN.write(tmp_path / "results.jsonl")
    words = ["report", "results.jsonl", "--format", "html", "-o", "report.html"]
    run("-c", MAIN, "loaded.json", *words, folder=tmp_path)
    said, modules = json.loads((tmp_path / "loaded.json").read_text())
    assert (said, {"torch", "pytest", "_pytest", "pynvml"} & set(modules)) == (0, set())


FOREIGN = {
    "conftest.py": """
import json, sys
def pytest_sessionfinish(session):
    plugins = session.config.pluginmanager.list_name_plugin()
    with open("seen.json", "w") as file:
        json.dump({
            "modules": sorted(m for m in sys.modules if m.partition(".")[0] in {"nodeproof", "torch", "numpy", "matplotlib", "rich", "jinja2", "pynvml"}),
            "plugins": sorted(n for n, p in plugins if n and "nodeproof" in n and p),
            "markers": [m for m in session.config.getini("markers") if "nodeproof" in m],
            "items": len(session.items),
        }, file)
""",
    "test_mine.py": """
import pytest

@pytest.fixture
def measure():
    return "mine"

@pytest.fixture
def result(measure):
    return [measure]

@pytest.fixture(params=["a", "b"])
def device(request):
    return request.param

@pytest.fixture
def limits():
    return 3

def test_fixtures(measure, result, device, limits):
    assert (measure, result, limits) == ("mine", ["mine"], 3)

@pytest.mark.parametrize("results", [1, 2])
def test_parameters(results):
    assert results

def test_measure(): pass
def test_device(): pass

def check(): raise AssertionError
""",
}


@pytest.fixture
def foreign(tmp_path):
    """Somebody else's tests, in an environment that has nodeproof."""
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_foreign_run_gets_one_module_and_one_plugin_and_its_own_fixtures(foreign):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", folder=foreign)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    seen = json.loads((foreign / "seen.json").read_text())
    assert seen["plugins"] == ["nodeproof.plugin"]
    assert seen["markers"] == []
    assert seen["items"] == 6
    assert seen["modules"] == ["nodeproof", "nodeproof.plugin"]


def test_a_foreign_run_leaves_nothing_behind(foreign):
    scratch = foreign / "tmp"
    scratch.mkdir()
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=foreign, TMPDIR=str(scratch))
    assert done.returncode == 0, done.stdout
    assert sorted(p.name for p in foreign.iterdir()) == sorted([*FOREIGN, "seen.json", "tmp"])
    assert [p.name for p in scratch.iterdir() if "nodeproof" in p.name] == []


def test_no_fixture_and_no_marker_is_added_to_a_foreign_run(foreign):
    for option in ("--fixtures", "--markers"):
        shown = [
            run("-m", "pytest", "-q", option, "-p", "no:cacheprovider", *more, folder=foreign)
            for more in ([], ["-p", "no:nodeproof.plugin"])
        ]
        bodies = [
            [x for x in s.stdout.splitlines() if "plugins:" not in x and " in " not in x]
            for s in shown
        ]
        assert bodies[0] == bodies[1]
        assert len(bodies[0]) > 10


def test_every_option_of_ours_has_our_prefix(foreign):
    texts = [
        run("-m", "pytest", "--help", *more, folder=foreign).stdout.split()
        for more in ([], ["-p", "no:nodeproof.plugin"])
    ]
    ours = {w.partition("=")[0] for w in texts[0] if w.startswith("-")}
    ours -= {w.partition("=")[0] for w in texts[1] if w.startswith("-")}
    assert {w.rstrip(",.") for w in ours if not w.startswith("--nodeproof-")} == set()
    assert "--nodeproof-profile" in ours


def test_kernels_of_the_checkout_answer_to_no_name_but_ours():
    for name in ("kernels", "reports", "nccl_tests", "acceptance"):
        found = importlib.util.find_spec(name)
        where = (
            Path(found.origin or next(iter(found.submodule_search_locations))) if found else None
        )
        assert where is None or ROOT not in where.resolve().parents, name
    assert importlib.util.find_spec("nodeproof.kernels") is not None


def test_nor_do_they_where_pytest_is_started_as_a_module():
    name = test_kernels_of_the_checkout_answer_to_no_name_but_ours.__name__
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/test_imports.py::{name}"]
    done = run(*words, folder=ROOT)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("module", ["verdict", "results", "manifest", "spec", "waivers", "model"])
def test_the_core_loads_the_standard_library_alone(tmp_path, module):
    code = (
        f"import sys, nodeproof.{module}; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    )
    bare = run(
        "-c",
        "import sys; print(*sorted(m.partition('.')[0] for m in sys.modules))",
        folder=tmp_path,
    )
    loaded = set(run("-c", code, folder=tmp_path).stdout.split()) - set(bare.stdout.split())
    assert loaded - set(sys.stdlib_module_names) == {"nodeproof"}
