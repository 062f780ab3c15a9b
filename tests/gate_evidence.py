"""What tests leave behind, made once and bound to each attempt: quick enough for many walks."""

from __future__ import annotations

import functools
import json
from typing import Any

from gate_cluster import MANIFEST, NAMES, SETTINGS, SPEC, results_of, told
from results_samples import accept, reject, undecided

from nodeproof.gate import dispatch
from nodeproof.gate.proof import devices_digest
from nodeproof.results import parse
from nodeproof.verdict import decide

SILENT: dict[str, dict[str, Any]] = {
    "crash": {"code": 1},
    "lying exit": {"code": 0},
    "oom": {"code": 137, "reason": "OOMKilled"},
    "evicted": {"code": None, "reason": "Evicted"},
    "deadline": {"code": 143, "reason": "DeadlineExceeded"},
}
FORGED = ("said accept", "replayed", "other image", "log lost", "log cut", "other boot at the end")


@functools.cache
def _template(kind: str) -> tuple[bytes, dict[str, Any]]:
    """Results and message of one kind of run, with words in place of what binds them."""
    run = {
        "accept": lambda: accept(samples=0),
        "reject": lambda: reject().but(telemetry=()),
        "undecided": lambda: undecided().but(telemetry=()),
    }[kind]()
    said = {"nonce": "@nonce@", "profile": SETTINGS.profile.value, "spec-digest": SPEC.digest}
    job = {"metadata": {"annotations": {NAMES.label(k): v for k, v in said.items()}}}
    node = {
        "metadata": {"name": "@name@", "uid": "@uid@"},
        "status": {"nodeInfo": {"bootID": "@boot@"}},
    }
    data = results_of(job, node, run)
    message = dispatch.message(decide(parse(data), MANIFEST).document(), data)
    return data, json.loads(message)


def evidence(
    kind: str, job: dict[str, Any], node: dict[str, Any], boot: str, end_boot: str = ""
) -> tuple[str, str]:
    """The message and the log that a run of one kind leaves, bound to this Job, node and boot."""
    data, said = _template(kind)
    body, _, end = data.rpartition(b'{"type":"end"')
    data = body + b'{"type":"end"' + end.replace(b"@boot@", (end_boot or boot).encode())
    for word, value in (
        ("@nonce@", told(job, "nonce")),
        ("@uid@", node["metadata"]["uid"]),
        ("@boot@", boot),
        ("@name@", node["metadata"]["name"]),
    ):
        data = data.replace(word.encode(), value.encode())
    bound = {
        "nonce": told(job, "nonce"),
        "node_uid": node["metadata"]["uid"],
        "boot_id": boot,
        "results": dispatch.digest(data),
    }
    return json.dumps({**said, **bound}), "\n".join(dispatch.packed(data))


def sound_devices() -> str:
    """The digest of the GPUs of an accepted run."""
    return devices_digest(decide(parse(_template("accept")[0]), MANIFEST))
