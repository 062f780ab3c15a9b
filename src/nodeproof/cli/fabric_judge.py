"""`nodeproof fabric judge FILE`: decide by what a group of nodes wrote down, now or again.

Nothing is measured and no node is asked. The suites of the fabric run in a pytest process of their
own, as those of one node do, and answer out of the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeproof.cli import files, lenient, options, run
from nodeproof.nccl_tests import record
from nodeproof.plugin.options import Target

SUITES = ("nodeproof.acceptance.test_fabric", "nodeproof.acceptance.test_fabric_members")
_DEADLINE_S = 300.0  # of judging a file, which measures nothing


def main(args: argparse.Namespace) -> int:
    """Judge a file and return the exit status of the verdict."""
    run_id = str(uuid.uuid4())
    try:
        options.read(_asked(args.file, args.spec, args.waivers, _DEADLINE_S, args.nonce, run_id))
        output = files.prepare(args.output)
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    except files.Full as error:
        print(f"nodeproof: undecided: {error}", file=sys.stderr)
        return 11
    return judge(
        args.file,
        output,
        spec=args.spec,
        waivers=args.waivers,
        deadline_s=_DEADLINE_S,
        nonce=args.nonce,
        run_id=run_id,
        show=print,
    )


def judge(
    document: Path,
    output: Path,
    *,
    spec: str,
    waivers: Path | None,
    deadline_s: float,
    nonce: str,
    run_id: str,
    show: Callable[[str], None],
    beside: Sequence[str] = (),
) -> int:
    """Judge `document` into `output`, which `files.prepare` has made ready.

    Always writes the reports and returns the exit status of the verdict: a document that can't be
    read, a suite that crashes or hangs is undecided, and says so. `beside` is as `files.conclude`
    takes it.
    """
    try:
        rehearsal = record.load(document).group.device == "cpu"
    except record.RecordError as error:
        return files.conclude(
            output, run_id=run_id, doubt=str(error), rehearsal=False, show=show, beside=beside
        )
    asked = _asked(document, spec, waivers, deadline_s, nonce, run_id)
    with tempfile.TemporaryDirectory(prefix="nodeproof-") as scratch:
        ended = run.supervise(
            run.command(asked, output, Path(scratch), SUITES),
            output,
            deadline_s=deadline_s,
            shown=_Quiet(show),
        )
    for line in lenient.lines(spec, rehearsal=rehearsal):
        show(line)
    return files.conclude(
        output,
        run_id=run_id,
        doubt=ended.doubt or ended.usage,
        rehearsal=rehearsal,
        show=show,
        beside=beside,
    )


def _asked(
    document: Path, spec: str, waivers: Path | None, deadline_s: float, nonce: str, run_id: str
) -> argparse.Namespace:
    """Return what `nodeproof run` would have been told."""
    return argparse.Namespace(
        group=document.absolute(),
        profile="quick",
        device=Target.AUTO.value,
        cpu_devices=1,
        spec=spec,
        expect_gpus=None,
        host_root=Path("/"),
        run_id=run_id,
        nonce=nonce,
        node_name="",
        node_uid="",
        deadline=deadline_s,
        waivers=waivers,
        seed=None,
        selftest_only=False,
        record=None,
        replay=None,
    )


class _Quiet:
    """Shows sentences, and no single findings: it takes seconds."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave everything as it is."""

    def opening(self, *, target: str, cpu_devices: int, profile: str) -> None:
        """Do nothing: the group has said what it is."""

    def show(self, lines: Iterable[bytes]) -> None:
        """Do nothing."""

    def line(self, text: str) -> None:
        """Say one sentence."""
        self._show(text)
