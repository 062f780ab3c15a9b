"""The plan: what a run undertakes, written before the first check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodeproof import __version__
from nodeproof.checks import CheckSpec
from nodeproof.manifest import Manifest, suite_digest
from nodeproof.model import About, Device, Key, Planned
from nodeproof.plugin.machine import Machine
from nodeproof.plugin.options import Options
from nodeproof.results import SCHEMA, Plan, now, plain
from nodeproof.verdict import WITHHELD

COUNT = "node.devices.count"  # the check whose limit `expected` says how many devices have to be


def plan(
    checks: Sequence[tuple[CheckSpec, Device]],
    *,
    machine: Machine,
    options: Options,
    manifest: Manifest,
    expected: int | None,
) -> Plan:
    """Lay down what these checks on these devices undertake."""
    whole = Key(check=WITHHELD, kind=machine.node.kind, device=machine.node.id)
    keys = {(d.id, device.id): _key(d, device) for d, device in checks}
    return Plan(
        run_id=options.run_id,
        nonce=options.nonce,
        profile=options.profile,
        rehearsal=machine.rehearsal,
        version=__version__,
        suite_digest=suite_digest(),
        manifest_digest=manifest.digest,
        spec=options.spec.summary(),
        node=machine.identity,
        devices=machine.all,
        expected_devices=expected,
        checks=tuple(
            Planned(
                key=_key(d, device),
                required=not d.trial,
                trial=d.trial,
                loaded_s=d.work.load.seconds(options.profile) if d.work.load else 0.0,
            )
            for d, device in checks
        ),
        selftests=(*keys.values(), whole),
        about={d.id: About(title=d.title, why=d.why, remedy=d.remedy) for d, _ in checks},
        waivers=options.waivers,
        seed=options.seed,
        deadline_s=options.deadline_s,
        started=now(),
    )


def record(plan: Plan) -> Mapping[str, Any]:
    """Return the plan as it stands in the results file."""
    whole: dict[str, Any] = plain(plan)
    return {"schema": SCHEMA, **whole}


def _key(declared: CheckSpec, device: Device) -> Key:
    return Key(check=declared.id, kind=device.kind, device=device.id)
