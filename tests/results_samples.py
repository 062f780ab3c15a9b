"""Results files as runs leave them, written by the real writer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nodeproof import manifest as manifests
from nodeproof.model import (
    About,
    Attempt,
    Cause,
    Device,
    DeviceKind,
    Finding,
    Key,
    Measurement,
    Outcome,
    Planned,
    Profile,
    Remedy,
    SelfTest,
    Waiver,
)
from nodeproof.results import FILE, End, Plan, Results, Writer, parse, plain
from nodeproof.verdict import WITHHELD, Verdict, decide

BOOT = "5a1d6c1e-7b0f-4b52-9d7e-0c2f1f1d9a11"
COMPUTE_KINDS = ("gpu", "cpu")
HOSTILE = (
    "\x1b[31mred\x1b[0m \x00 \x07 ]]> </script><script>alert(1)</script> <!-- -- > \ud800 \udfff "
    "\ufffe \u202egnp.exe \" ' \\ \n# TYPE evil counter\nevil 1\r\n{{ 7*7 }} {% raw %} $x^2$ é 東"
)


def _entry(title: str, kinds: Iterable[str], remedy: str, **more: Any) -> dict[str, Any]:
    whole = {"capability": None, "trial": False, "cause": "hardware", "load": {}, "limits": {}}
    return (
        whole
        | {
            "kinds": list(kinds),
            "profiles": [p.value for p in Profile],
            "title": title,
            "why": "What it means when it fails.\n\nWhat does not help.",
            "remedy": remedy,
            "suite": "acceptance/test_sample.py",
        }
        | more
    )


CHECKS = {
    "device.memory.pattern": _entry(
        "A memory that gives back other bits than it was given spoils every result.",
        COMPUTE_KINDS,
        "replace",
    ),
    "device.burnin.throughput": _entry(
        "A device that slows down under load holds up every job.",
        COMPUTE_KINDS,
        "reset-gpu",
        load={p.value: 20.0 for p in Profile},
    ),
    "device.noise.level": _entry("A new check.", COMPUTE_KINDS, "none", trial=True),
    "node.devices.count": _entry("A device that is missing is no device.", ["node"], "reboot"),
    "host.time.sync": _entry(
        "A clock that is off breaks certificates.", ["host"], "retest", cause="environment"
    ),
}
MANIFEST_TEXT = json.dumps({"schema": 1, "checks": CHECKS})
MANIFEST = manifests.parse(MANIFEST_TEXT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that goes into one results file, in order."""

    plan: Plan | None
    findings: tuple[Finding, ...] = ()
    selftests: tuple[SelfTest, ...] = ()
    telemetry: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    end: End | None = None

    def but(self, **changes: Any) -> Run:
        """The same run with some of it different."""
        return dataclasses.replace(self, **changes)

    def replan(self, **changes: Any) -> Run:
        """The same run with a different plan."""
        assert self.plan is not None
        return self.but(plan=dataclasses.replace(self.plan, **changes))

    def refind(self, check: str, label: str, **changes: Any) -> Run:
        """The same run with one finding different."""
        named = {(f.check, f.device.label): n for n, f in enumerate(self.findings)}
        found = list(self.findings)
        number = named[check, label]
        found[number] = dataclasses.replace(found[number], **changes)
        return self.but(findings=tuple(found))

    def write(self, path: Path) -> Path:
        """Write it as a run does."""
        with Writer(path) as writer:
            if self.plan is not None:
                writer.write("plan", {"schema": 1, **plain(self.plan)})
            for kind, records in (
                ("telemetry", self.telemetry),
                ("event", self.events),
                ("finding", self.findings),
                ("selftest", self.selftests),
                ("end", (self.end,) if self.end else ()),
            ):
                for record in records:
                    writer.write(kind, plain(record))
        return path

    def data(self) -> bytes:
        """The content of its results file."""
        with tempfile.TemporaryDirectory() as folder:
            return self.write(Path(folder) / FILE).read_bytes()


def judged(data: bytes) -> tuple[Results, Verdict]:
    """Read a results file and decide on it, as every report is given both."""
    results = parse(data)
    return results, decide(results, MANIFEST)


def device(number: int, kind: DeviceKind = DeviceKind.GPU) -> Device:
    """One device under test."""
    if kind is DeviceKind.CPU:
        return Device(kind=kind, id=f"cpu{number}", label=f"cpu{number}", facts={"threads": 1})
    return Device(
        kind=kind,
        id=f"GPU-{number:08d}-2222-3333-4444-555555555555",
        label=f"gpu{number}",
        facts={
            "product": "NVIDIA H100 80GB HBM3",
            "serial": f"165012300{number:04d}",
            "vbios": "96.00.74.00.01",
            "capability": [9, 0],
            "pci": f"0000:{0x18 + number:02x}:00.0",
        },
    )


def accept(devices: int = 2, kind: DeviceKind = DeviceKind.GPU, samples: int = 90) -> Run:
    """A run that nothing speaks against."""
    compute = tuple(device(n, kind) for n in range(devices))
    node = Device(kind=DeviceKind.NODE, id="node-a17", label="node-a17", facts={})
    host = Device(kind=DeviceKind.HOST, id="node-a17", label="node-a17", facts={"cores": 192})
    everything = (*compute, node, host)
    pairs = [(c, d) for c, e in CHECKS.items() for d in everything if d.kind.value in e["kinds"]]
    plan = Plan(
        run_id="20260301T031200-4f2a",
        nonce="n0nce",
        profile=Profile.GATE,
        rehearsal=kind is DeviceKind.CPU,
        version="0.1.0",
        suite_digest="sha256:" + "ab" * 32,
        manifest_digest=MANIFEST.digest,
        spec={"name": "h100-sxm", "digest": "sha256:" + "cd" * 32, "source": "shipped"},
        node={
            "name": "node-a17",
            "uid": "0d9f8c1b",
            "boot_id": BOOT,
            "instance_type": "p5.48xlarge",
            "kernel": "6.8.0",
            "driver": None if kind is DeviceKind.CPU else "580.65.06",
            "software": {"torch": "2.8.0", "nccl": [2, 27, 3]},
        },
        devices=everything,
        expected_devices=devices,
        checks=tuple(
            Planned(
                key=Key(check=c, kind=d.kind, device=d.id),
                required=not CHECKS[c]["trial"],
                trial=CHECKS[c]["trial"],
                loaded_s=CHECKS[c]["load"].get("gate", 0.0),
            )
            for c, d in pairs
        ),
        selftests=tuple(
            Key(check=c, kind=d.kind, device=d.id) for c, d in [*pairs, (WITHHELD, node)]
        ),
        about={
            c: About(title=e["title"], why=e["why"], remedy=Remedy(e["remedy"]))
            for c, e in CHECKS.items()
        },
        waivers=(),
        seed=7,
        deadline_s=480.0,
        started="2026-03-01T03:12:00.125+00:00",
    )
    return Run(
        plan=plan,
        findings=tuple(passing(c, d) for c, d in pairs),
        selftests=tuple(
            SelfTest(
                check=c,
                device=d,
                caught=True,
                planted=[{"row": 3, "bits": 1}],
                reported=[{"row": 3, "bits": 1}],
                summary="reported exactly as planted",
            )
            for c, d in [*pairs, (WITHHELD, node)]
        ),
        telemetry=tuple(itertools.chain.from_iterable(_sampled(d, samples) for d in compute)),
        events=({"name": "worker.started", "device": compute[0].id},) if compute else (),
        end=End(boot_id=BOOT, ended="2026-03-01T03:18:42.500+00:00", interrupted=""),
    )


def passing(check: str, on: Device) -> Finding:
    """A finding that shows what it claims."""
    load = CHECKS[check]["load"].get("gate", 0.0)
    return Finding(
        check=check,
        device=on,
        outcome=Outcome.PASS,
        summary="all limits held",
        measurements=(
            Measurement(name="score", value=0.9731, unit="of median", at_least=0.9),
            Measurement(name="wrong", value=0, at_least=0, at_most=0),
            Measurement(name="median", value=612.5, unit="TFLOP/s"),
        ),
        evidence={"seed": 7},
        loaded_s=load + 0.8 if load else 0.0,
        duration_s=0.00001 if on.kind is DeviceKind.HOST else 2418.5,
    )


def reject() -> Run:
    """A GPU with wrong bits; a throughput below its limit on the same; everything else held."""
    wrong = Measurement(
        name="wrong", value=4, unit="words", at_most=0, detail="first at byte 0x7f3a00, bit 17"
    )
    slow = Measurement(name="p5", value=0.4, unit="of median", at_least=0.9)
    return (
        accept()
        .refind(
            "device.memory.pattern",
            "gpu1",
            outcome=Outcome.FAIL,
            cause=Cause.HARDWARE,
            remedy=Remedy.REPLACE,
            summary=str(wrong),
            measurements=(wrong,),
            evidence={"words": [{"at": "0x7f3a00", "bits": 131072}]},
        )
        .refind(
            "device.burnin.throughput",
            "gpu1",
            outcome=Outcome.FAIL,
            cause=Cause.HARDWARE,
            remedy=Remedy.RESET_GPU,
            summary=str(slow),
            measurements=(slow,),
        )
    )


def undecided() -> Run:
    """An error, a missing finding, a self-test that missed its fault, a skip."""
    run = accept().refind(
        "device.burnin.throughput",
        "gpu0",
        outcome=Outcome.ERROR,
        cause=Cause.ENVIRONMENT,
        remedy=Remedy.RETEST,
        summary="the worker of gpu0 was killed by signal 9: the kernel ran out of memory",
        measurements=(),
        attempts=(Attempt(outcome=Outcome.ERROR, cause=Cause.ENVIRONMENT, summary="the same"),),
    )
    run = run.refind("host.time.sync", "node-a17", outcome=Outcome.SKIP, summary="not here")
    kept = [
        f for f in run.findings if (f.check, f.device.label) != ("device.memory.pattern", "gpu1")
    ]
    missed = dataclasses.replace(run.selftests[0], caught=False, reported=[], summary="not seen")
    return run.but(findings=tuple(kept), selftests=(missed, *run.selftests[1:-1]))


def waived() -> Run:
    """A waived fail, a trial that failed, and an accept all the same."""
    run = reject()
    assert run.plan is not None
    unlucky = device(1).id
    return run.replan(
        waivers=(
            Waiver(
                check="device.memory.pattern",
                device=unlucky,
                reason="known, on order",
                expires="2026-12-31",
            ),
            Waiver(
                check="device.burnin.throughput",
                device=unlucky,
                reason="power cap",
                expires="2026-03-01",
            ),
            Waiver(
                check="host.time.sync",
                device="node-a17",
                reason="long over",
                expires="2026-02-01",
            ),
        )
    ).refind(
        "device.noise.level",
        "gpu0",
        outcome=Outcome.FAIL,
        cause=Cause.HARDWARE,
        summary="loud",
    )


def rehearsal() -> Run:
    """The same as an accept, on CPU devices."""
    return accept(kind=DeviceKind.CPU)


def hostile() -> Run:
    """Everything that can be text is as bad as text can be, and one summary is a megabyte."""
    run = reject()
    assert run.plan is not None
    evil = Device(
        kind=DeviceKind.GPU, id=HOSTILE, label=HOSTILE, facts={HOSTILE: HOSTILE, "pci": HOSTILE}
    )
    finding = Finding(
        check=HOSTILE,
        device=evil,
        outcome=Outcome.ERROR,
        cause=Cause.CONFIG,
        remedy=Remedy.RETEST,
        summary=HOSTILE + "x" * 1_000_000,
        measurements=(
            Measurement(name=HOSTILE, value=1e300, unit=HOSTILE, at_least=-1e300, detail=HOSTILE),
            Measurement(name=HOSTILE, value=1e-300, unit=HOSTILE, at_most=5e-324),
        ),
        evidence={HOSTILE: [HOSTILE, math.inf, math.nan, 10**400]},
        attempts=(Attempt(outcome=Outcome.FAIL, cause=Cause.HARDWARE, summary=HOSTILE),),
    )
    other = dataclasses.replace(evil, id=HOSTILE + "2")
    missed = SelfTest(
        check=HOSTILE, device=evil, caught=False, planted=HOSTILE, reported=None, summary=HOSTILE
    )
    plan = run.plan
    samples = (
        {"device": evil.id, "t": HOSTILE, "power_w": HOSTILE, "sm_mhz": 1e300},
        {"device": [HOSTILE], "t": 10**400, "power_w": 10**400, "throttle": -1},
        {"t": True, "power_w": 3, "temperature_c": None},
        {"device": evil.id, "t": -1e300, "power_w": 250.0, "throttle": 1 << 80},
    )
    return run.but(
        plan=dataclasses.replace(
            plan,
            run_id=HOSTILE,
            version=HOSTILE,
            started=HOSTILE,
            spec={"name": HOSTILE, HOSTILE: HOSTILE},
            node={**plan.node, "name": HOSTILE, HOSTILE: {"deep": [HOSTILE]}},
            devices=(*plan.devices, evil, other),
            about={**plan.about, HOSTILE: About(title=HOSTILE, why=HOSTILE, remedy=Remedy.NONE)},
            waivers=(Waiver(check=HOSTILE, device=HOSTILE, reason=HOSTILE, expires=HOSTILE),),
        ),
        findings=(
            *run.findings,
            finding,
            finding,
            dataclasses.replace(finding, device=other),
            dataclasses.replace(finding, outcome=Outcome.PASS, cause=None),
        ),
        selftests=(*run.selftests, missed, missed),
        telemetry=(*run.telemetry, *samples),
        events=({"name": HOSTILE, HOSTILE: HOSTILE},),
        end=End(boot_id=HOSTILE, ended=HOSTILE, interrupted=HOSTILE),
    )


def cut() -> bytes:
    """The run ended in the middle of a line."""
    data = reject().data()
    return data[: data.index(b'{"type":"selftest"') + 40]


def without_plan() -> bytes:
    """The first line did not survive."""
    return reject().data().partition(b"\n")[2]


def deep() -> bytes:
    """Nested deeper than Python can recurse in its own words."""
    well = b"[" * 600 + b"]" * 600
    data = accept().data().replace(b'"evidence":{"seed":7}', b'"evidence":{"well":' + well + b"}")
    data = data.replace(b'"torch":"2.8.0"', b'"torch":' + well)
    return data.replace(b'"name":"worker.started"', b'"name":' + well)


def _sampled(on: Device, samples: int) -> Iterable[Mapping[str, Any]]:
    for second in range(samples):
        wave = math.sin(second / 7)
        yield {
            "device": on.id,
            "t": second + 1.25,
            "power_w": 640.0 + 40 * wave,
            "temperature_c": None if second == 5 else 61 + round(4 * wave),
            "sm_mhz": 1980 - (300 if 30 < second < 36 else 0),
            "memory_mhz": 2619,
            "throttle": 4 if 30 < second < 36 else 0,
            "utilisation": 0.99,
        }


SAMPLES: Mapping[str, Callable[[], bytes]] = {
    "accept": lambda: accept().data(),
    "reject": lambda: reject().data(),
    "undecided": lambda: undecided().data(),
    "waived": lambda: waived().data(),
    "rehearsal": lambda: rehearsal().data(),
    "hostile": lambda: hostile().data(),
    "nothing found": lambda: accept().but(findings=(), selftests=(), telemetry=()).data(),
    "no devices": lambda: accept(devices=0).data(),
    "cut": cut,
    "without a plan": without_plan,
    "deep": deep,
    "empty": lambda: b"",
    "rubbish": lambda: b"\xff\xfe\x00not json\n[]\n{}\n",
}
