"""The pytest plugin: devices in, measurements held against limits, findings out.

It is loaded in every pytest run of an environment that has nodeproof, so this module only declares
options and waits for a function that `nodeproof.checks.check` has marked. Without one nothing else
is imported, registered or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

_NAME = "nodeproof-acceptance"
REFUSAL = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our options, all with the prefix --nodeproof-."""
    group = parser.getgroup("nodeproof", "GPU-node acceptance")
    group.addoption(
        "--nodeproof-profile", default="quick", help="quick, gate, deep or soak (default: quick)"
    )
    group.addoption(
        "--nodeproof-device", default="auto", help="auto, cuda, or cpu for a rehearsal (auto)"
    )
    group.addoption(
        "--nodeproof-cpu-devices", type=int, default=2, help="logical CPU devices (default: 2)"
    )
    group.addoption("--nodeproof-spec", default="", help="what this kind of node must show")
    group.addoption("--nodeproof-expect-gpus", type=int, default=None, help="GPUs to be there")
    group.addoption(
        "--nodeproof-host-root",
        type=Path,
        default=Path("/"),
        help="where the node's /proc, /sys and /var are mounted",
    )
    group.addoption(
        "--nodeproof-output", type=Path, default=None, help="an empty directory for results"
    )
    group.addoption("--nodeproof-run-id", default="", help="name of this run; default: a new one")
    group.addoption("--nodeproof-nonce", default="", help="repeated in the results")
    group.addoption("--nodeproof-node-name", default="", help="name of this node")
    group.addoption("--nodeproof-node-uid", default="", help="uid of this node")
    group.addoption(
        "--nodeproof-deadline", type=float, default=None, help="seconds for the whole run"
    )
    group.addoption("--nodeproof-waivers", type=Path, default=None, help="file of waivers (TOML)")
    group.addoption("--nodeproof-seed", type=int, default=None, help="replay the data of a run")
    group.addoption(
        "--nodeproof-record", type=Path, default=None, help="write down what was read of the node"
    )
    group.addoption(
        "--nodeproof-replay", type=Path, default=None, help="a recording to take the node's place"
    )
    group.addoption(
        "--nodeproof-group",
        type=Path,
        default=None,
        help="what `nodeproof fabric run` wrote down: judge those nodes and what they did together",
    )
    group.addoption(
        "--nodeproof-selftest-only",
        action="store_true",
        help="only feed every detector its planted fault",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse at once what would end in a puzzle later."""
    if config.option.nodeproof_output and _distributed(config):
        raise pytest.UsageError(f"nodeproof: {_ONE_AT_A_TIME}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a check one test per device of its kinds. Any other function is left alone."""
    if not _is_check(metafunc.function) or REFUSAL in metafunc.config.stash:
        return
    if _distributed(metafunc.config):  # collected, so that its failure can say why it is not run
        names = metafunc.fixturenames
        metafunc.parametrize(names, [tuple(None for _ in names)], ids=["refused"])
        return
    # Here and not above: a run without checks must not pay for it.
    from nodeproof.plugin.refusal import Refusal  # noqa: PLC0415  see above

    try:
        _acceptance(metafunc.config).parametrise(metafunc)
    except Refusal as refusal:
        # Raised here it would be one collection error for each suite; see below.
        metafunc.config.stash[REFUSAL] = str(refusal)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Say once what is wrong with the options, and run nothing."""
    refusal = config.stash.get(REFUSAL, None)
    if refusal is not None:
        raise pytest.UsageError(f"nodeproof: {refusal}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a check that was sent to one process among several."""
    if _is_check(getattr(item, "function", None)) and _distributed(item.config):
        pytest.fail(f"nodeproof: {_ONE_AT_A_TIME}", pytrace=False)


def _acceptance(config: pytest.Config) -> Any:
    acceptance = config.pluginmanager.get_plugin(_NAME)
    if acceptance is None:
        from nodeproof.plugin.acceptance import Acceptance  # noqa: PLC0415  a run without checks must not pay for it

        acceptance = Acceptance(config)
        config.pluginmanager.register(acceptance, _NAME)
    return acceptance


_ONE_AT_A_TIME = (
    "the checks share one machine and run one at a time, each on all devices at once: "
    "run them without pytest-xdist (-n)"
)


def _is_check(function: object) -> bool:
    return getattr(function, "nodeproof_check", None) is not None


def _distributed(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "numprocesses", None)) or hasattr(config, "workerinput")
