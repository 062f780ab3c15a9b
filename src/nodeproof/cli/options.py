"""Check a command line before anything is started, with the words of the suites themselves."""

from __future__ import annotations

import argparse
import difflib
import importlib
import pkgutil

from nodeproof import spec
from nodeproof.checks import CheckSpec, spec_of
from nodeproof.plugin import options


def read(args: argparse.Namespace) -> options.Options:
    """Read the options of `nodeproof run`. Raises `ValueError` with a sentence for the user."""
    names = (
        "profile",
        "device",
        "cpu_devices",
        "spec",
        "expect_gpus",
        "host_root",
        "run_id",
        "nonce",
        "node_name",
        "node_uid",
        "deadline",
        "waivers",
        "seed",
        "selftest_only",
        "record",
        "replay",
    )
    asked = {f"nodeproof_{name}": getattr(args, name) for name in names}
    asked["nodeproof_group"] = getattr(args, "group", None)
    told = options.read(argparse.Namespace(**asked))
    declared = suites()
    spec.known(told.spec, declared)
    for check in told.spec.limits:
        spec.limits_for(told.spec, check, declared[check].limits)
    for waiver in told.waivers:
        if waiver.check not in declared:
            near = difflib.get_close_matches(waiver.check, declared, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(f"waiver: there is no check {waiver.check!r}{hint}")
    if not args.host_root.is_dir():
        raise ValueError(f"--host-root {args.host_root}: no such directory")
    return told


def suites() -> dict[str, CheckSpec]:
    """Every check of the shipped suites, by id. Loads the suites, which load no driver."""
    found: dict[str, CheckSpec] = {}
    package = importlib.import_module("nodeproof.acceptance")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        if not module.startswith("test_"):
            continue
        for value in vars(importlib.import_module(f"nodeproof.acceptance.{module}")).values():
            declared = spec_of(value)
            if declared is None:
                continue
            if declared.id in found:
                raise ValueError(f"{declared.id}: declared twice, the second time in {module}")
            found[declared.id] = declared
    return found
