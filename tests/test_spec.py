"""Specs: whatever is wrong with one, a sentence names the file, the key and the right word."""

from __future__ import annotations

from importlib import resources

import pytest

from nodeproof.cli.options import suites
from nodeproof.spec import NO_SPEC, SpecError, known, limits_for, load

SUITES = suites()
MEMORY = "device.memory.pattern"
HEAD = '["device.memory.pattern"]\n'


def write(folder, content, name="my node.toml"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def use(path):
    """Everything a run does with a spec."""
    spec = load(path)
    known(spec, SUITES)
    return {check: limits_for(spec, check, declared.limits) for check, declared in SUITES.items()}


BAD = {
    # what the file holds, and what the sentence has to say beside the name of the file
    "empty": ("", ["empty"]),
    "only blanks": (" \n\n", ["empty"]),
    "only a comment": ("# nothing yet\n", ["empty"]),
    "binary": (b"\x7fELF\xff\xfe\x00", ["UTF-8"]),
    "no TOML": ('name = "a"\ndate =\n', ["line 2"]),
    "a table twice": (HEAD + "gpu_share = 0.9\n" + HEAD, [MEMORY]),
    "a number of 5000 digits": (HEAD + "gpu_share = " + "1" * 5000, []),
    "nested too deep": ("name = " + "[" * 3000, []),
    "an unknown key": ('name = "a"\ncolour = 3\n', ["line 2", "colour", "name"]),
    "a misspelt key": ('nam = "a"\n', ["line 1", "nam", "name"]),
    "a check set to a number": (f'name = "a"\n"{MEMORY}" = 5\n', ["line 2", MEMORY, "table"]),
    "the same in other quotes": (f"name = \"a\"\n'{MEMORY}' = 5\n", ["line 2", MEMORY, "table"]),
    "a list of tables": (f'[["{MEMORY}"]]\ngpu_share = 0.9\n', ["line 1", MEMORY, "table"]),
    "an unknown check": ('["device.memory.patern"]\ngpu_share = 0.9\n', ["device.memory.patern", MEMORY]),
    "a check without quotes": (f"[{MEMORY}]\ngpu_share = 0.9\n", [f'["{MEMORY}"]', "quote"]),
    "half a check's name": ("[device]\n", ["device"]),
    "a head that is a table": ("[name]\nx = 1\n", ["name"]),
    "a name that is a number": ("name = 5\n", ["name", "text"]),
    "an unknown limit": (HEAD + "gpu_shar = 0.9\n", [MEMORY, "gpu_shar", "gpu_share"]),
    "text for a number": (HEAD + 'gpu_share = "0.9"\n', [MEMORY, "gpu_share", "'0.9'", "number"]),
    "a bool for a number": (HEAD + "gpu_share = true\n", [MEMORY, "gpu_share", "True", "number"]),
    "nan": (HEAD + "gpu_share = nan\n", [MEMORY, "gpu_share", "nan", "finite"]),
    "inf": (HEAD + "gpu_share = -inf\n", [MEMORY, "gpu_share", "-inf", "finite"]),
    "a list for a number": (HEAD + "gpu_share = [0.9]\n", [MEMORY, "gpu_share", "number"]),
    "a table for a number": (HEAD + "gpu_share = {a = 1}\n", [MEMORY, "gpu_share", "number"]),
    "a date for a number": (HEAD + "gpu_share = 2026-01-01\n", [MEMORY, "gpu_share", "number"]),
    "a number past all floats": (HEAD + "gpu_share = 1" + "0" * 400, [MEMORY, "gpu_share", "finite"]),
    "half a device": ('["node.devices.count"]\nexpected = 7.5\n', ["expected", "7.5", "whole number"]),
    "a number for text": ('["host.clock.source"]\nrefused = 1\n', ["refused", "text"]),
    "a limit of a check that has none": ('["gpu.processes.alone"]\nx = 1\n', ["gpu.processes.alone", "x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_spec_is_said_in_words(tmp_path, name):
    content, words = BAD[name]
    with pytest.raises(SpecError) as caught:
        use(write(tmp_path, content))
    said = str(caught.value)
    assert [w for w in ["my node.toml", *words] if w not in said] == [], said
    assert "line 0" not in said


def test_a_spec_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(SpecError, match="cpu-rehearsal"):
        load("cpu-rehersal")


@pytest.mark.parametrize("name", ["absent.toml", "some folder/absent.toml", "."])
def test_a_path_that_cannot_be_read_is_named(tmp_path, name):
    path = str(tmp_path / name)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert path in str(caught.value)


def test_nothing_is_no_spec():
    with pytest.raises(SpecError, match="shipped are"):
        load("")


def test_a_limit_is_overridden_and_every_other_stays_as_declared(tmp_path):
    limits = use(write(tmp_path, 'name = "a"\n' + HEAD + "gpu_share = 1\n"))
    for check, declared in SUITES.items():
        wanted = {"gpu_share": 1} if check == MEMORY else {}
        assert limits[check] == declared.limits(**wanted)


def test_without_a_spec_every_limit_is_as_declared():
    for check, declared in SUITES.items():
        assert limits_for(NO_SPEC, check, declared.limits) == declared.limits()


def test_a_limit_set_on_the_command_line_beats_the_file_and_leaves_its_other_limits(tmp_path):
    spec = load(write(tmp_path, 'name = "a"\n' + HEAD + "gpu_share = 0.5\ncpu_share = 0.1\n"))
    told = spec.with_limit(MEMORY, "gpu_share", 0.7)
    assert told.limits[MEMORY] == {"gpu_share": 0.7, "cpu_share": 0.1}
    assert spec.limits[MEMORY]["gpu_share"] == 0.5


def test_the_digest_is_of_the_bytes_so_that_a_changed_comment_is_another_spec(tmp_path):
    digests = {load(write(tmp_path, f'name = "a"  # {n}\n')).digest for n in range(3)}
    assert len(digests) == 3


def test_every_shipped_spec_loads_by_its_name_and_fits_the_checks():
    names = [e.name for e in resources.files("nodeproof").joinpath("specs").iterdir()]
    names = [name.removesuffix(".toml") for name in names if name.endswith(".toml")]
    assert "cpu-rehearsal" in names
    for name in names:
        assert load(name).name == name
        assert use(name)
