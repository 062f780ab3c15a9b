"""What sixteen devices cost over one: wall time of the same piece of work on 16 workers over 1.

    python benchmarks/devices_at_once.py [--devices 16]

The work waits two seconds and computes nothing, so that the figure is that of starting, feeding and
hearing workers, not of sharing cores. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from nodeproof.child import Answer, Call, Pool


def main() -> None:
    """Time one worker, then many, each pool from nothing to closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=16)
    args = parser.parse_args()
    one, many = (_seconds(count) for count in (1, args.devices))
    line = {"benchmark": "devices_at_once", "devices": args.devices, "ratio": round(many / one, 3)}
    print(json.dumps(line))


def _seconds(count: int) -> float:
    context = {
        "device_kind": "cpu",
        "device_id": "cpu0",
        "device_label": "cpu0",
        "torch_device": "cpu",
        "threads": 1,
        "peers": count,
        "profile": "quick",
        "seed": 1,
        "host_root": "/",
        "group": None,
    }
    work = Call(call="nodeproof.probes.processes:on_cpu", args={"window_s": 2.0}, context=context)
    with tempfile.TemporaryDirectory() as logs:
        begun = time.perf_counter()
        pool = Pool(ends=time.monotonic() + 120, logs=Path(logs), listen=lambda *_: None)
        names = [f"w{number}" for number in range(count)]
        for name in names:
            pool.add(name)
        replies = pool.run(dict.fromkeys(names, work), deadline_s=100)
        pool.close()
    if not all(isinstance(reply, Answer) for reply in replies.values()):
        raise SystemExit(f"a worker did not answer: {replies}")
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
