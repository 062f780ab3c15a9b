"""What the documents show is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from nodeproof import waivers
from nodeproof.cli import main
from nodeproof.cli.options import suites
from nodeproof.manifest import shipped
from nodeproof.model import Profile
from nodeproof.spec import known, limits_for, load
from tests.pytest_run import run_pytest

ROOT = Path(__file__).parent.parent


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_check_in_contributing_runs_as_it_stands(tmp_path):
    (source,) = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "test_cores.py").write_text(source)
    ran = run_pytest(tmp_path, "test_cores.py", "--nodeproof-device=cpu", "--nodeproof-output=out")
    assert ran.status == 0, ran.text
    (finding,) = [r for r in ran.records if r["type"] == "finding"]
    assert (finding["check"], finding["outcome"]) == ("host.cpu.present", "pass")
    assert [t["caught"] for t in ran.records if t["type"] == "selftest"] == [True, True]


def test_the_spec_and_the_waiver_in_the_guide_can_be_used(tmp_path):
    spec, waiver = (tmp_path / name for name in ("spec.toml", "waiver.toml"))
    texts = blocks("docs/operate.md", "toml")
    spec.write_text(texts[0])
    waiver.write_text(texts[1])
    told, declared = load(str(spec)), suites()
    known(told, declared)
    assert all(limits_for(told, check, declared[check].limits) for check in told.limits)
    assert waivers.load(waiver)[0].check in declared


def commands() -> list[str]:
    text = "".join(blocks("README.md", ""))
    return [line.partition("#")[0].strip() for line in text.splitlines() if "nodeproof " in line]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("nodeproof ")])
def test_every_command_of_the_readme_is_understood(command, capsys):
    words = shlex.split(command.replace("quick|gate|deep|soak", "quick"))[1:]
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    options = set(re.findall(r"--[a-z-]+", command))
    assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_the_run_that_the_readme_shows_has_as_many_findings_as_there_are_checks():
    kinds = [kind for entry in shipped().entries.values() for kind in entry.kinds
             if Profile.QUICK in entry.profiles]  # fmt: skip
    # Two CPU devices, one node, one host.
    planned = sum({"cpu": 2, "node": 1, "host": 1}.get(kind, 0) for kind in kinds)
    text = (ROOT / "README.md").read_text()
    assert f"plan: {planned} findings to make" in text
    (passed, trials) = re.findall(r"ACCEPT \w+: (\d+) passed.* (\d+) on trial", text)[0]
    assert int(passed) + int(trials) == planned


def anchors(file: Path) -> set[str]:
    """What may stand behind # in a link to a document, as GitHub makes it of its headings."""
    heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("k8s/**/*.md")]


@pytest.mark.parametrize("file", DOCUMENTS, ids=[str(f.relative_to(ROOT)) for f in DOCUMENTS])
def test_every_link_leads_somewhere(file):
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)]+))?\)", file.read_text())
    assert links or file.name != "README.md" or file.parent != ROOT
    for path, anchor in links:
        target = file.parent / path if path else file
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_every_make_target_that_is_named_is_there():
    named = set()
    for file in ("README.md", "CONTRIBUTING.md"):
        named |= set(
            re.findall(r"(?:`| {4}|^)make ([a-z-]+)", (ROOT / file).read_text(), re.MULTILINE)
        )
    makefile = (ROOT / "Makefile").read_text()
    assert {"accept", "test", "test-all", "lint"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_documents_speak_of_no_machine():
    done = subprocess.run(
        ["grep", "-rlE", "/(root|home|work)/", "README.md", "CONTRIBUTING.md", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
