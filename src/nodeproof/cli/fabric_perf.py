"""`nodeproof fabric perf`: run NVIDIA's all_reduce_perf and judge what it prints and writes."""

from __future__ import annotations

import argparse
import json
import sys

from nodeproof.nccl_tests import perf
from nodeproof.parsers.reading import Grade

_STATUS = {Grade.PASS: 0, Grade.WARN: 0, Grade.FAIL: 10, Grade.ERROR: 11}


def main(args: argparse.Namespace) -> int:
    """Print the reading as JSON. Exit status: 0 pass or warn, 10 fail, 11 error, 2 usage."""
    try:
        asked = perf.Asked(
            least_bytes=args.least_bytes,
            most_bytes=args.most_bytes,
            ranks=args.ranks,
            gpus=args.gpus,
            iterations=args.iterations,
            hosts=tuple(host for host in args.hosts.split(",") if host),
        )
        asked.sizes  # noqa: B018  raises for what would be no sweep
        program = perf.find(args.program)
        reading = perf.measure(
            asked, program=program, launcher=args.launch, deadline_s=args.deadline
        )
    except (perf.MissingError, ValueError) as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 11
    told = {"outcome": reading.grade, "why": reading.why, **reading.fields}
    print(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))
    return _STATUS[reading.grade]
