"""Run on a small disk and fill it in mid-run. In a process of its own, whose mounts nobody sees."""

import contextlib
import sys
from pathlib import Path

from rehearsal import Rehearsal

disk = Path(sys.argv[1])
run = Rehearsal(disk)
run.wait_for(lambda r: r["type"] == "finding")
with (
    Path(disk, "ballast").open("wb", buffering=0) as ballast,
    contextlib.suppress(OSError),
):
    while ballast.write(bytes(4096)):
        pass
status, text = run.finish()
print(text)
print("status", status)
