"""nodeproof: prove a GPU node fit for work before a scheduler may use it.

Exit status: 0 accept, 10 reject, 11 undecided, 2 usage or configuration error; anything else is a
crash of ours and means undecided.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from nodeproof import __version__

_FORMATS = ("junit", "html", "json", "prometheus")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _settle_streams()
    args = _parser().parse_args(arguments)
    # Each command loads what it needs and no more: --help answers at once, and what only reads
    # results needs neither pytest nor torch.
    try:
        module = importlib.import_module(f"nodeproof.cli.{args.module}")
        return int(module.main(args))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "nodeproof":
            raise
        print(
            f"nodeproof: {error.name} is not installed: pip install 'nodeproof[node]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("nodeproof: interrupted before anything was decided: undecided", file=sys.stderr)
        return 11
    except BrokenPipeError:  # `nodeproof list | head`
        sys.stderr.close()
        return 1


def _settle_streams() -> None:
    """Let no closed or narrow terminal end a run: what it can't show is escaped or dropped."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by whoever started us
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, as everything here does."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        self.exit(2, f"nodeproof: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nodeproof",
        description="Prove a GPU node fit for work before a scheduler may use it.",
        epilog="Exit status: 0 accept, 10 reject, 11 undecided, 2 usage error.",
    )
    parser.add_argument("--version", action="version", version=f"nodeproof {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="test this node and decide", description=_RUN)
    run.set_defaults(module="run", selftest_only=False, run_id="")
    _add_target(run)
    run.add_argument(
        "--profile",
        default="quick",
        help="quick (3 min), gate (8 min), deep (1 h) or soak (hours); default: quick",
    )
    run.add_argument(
        "--spec",
        default="",
        metavar="NAME|FILE",
        help="what this kind of node must show (TOML); overrides the limits of the checks",
    )
    run.add_argument(
        "--expect-gpus", type=int, metavar="N", help="GPUs that have to be there; fewer is a reject"
    )
    run.add_argument(
        "--output",
        type=_path,
        default=Path("nodeproof-results"),
        metavar="DIR",
        help="where the files go; those of an earlier run are removed (default: %(default)s)",
    )
    run.add_argument("--nonce", default="", help="repeated in the verdict, so that it binds")
    run.add_argument("--node-name", default="", metavar="N", help="name of this node")
    run.add_argument("--node-uid", default="", metavar="U", help="uid of this node")
    run.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="for the whole run; default by profile"
    )
    run.add_argument(
        "--waivers", type=_path, metavar="FILE", help="what may fail until when (TOML)"
    )
    run.add_argument("--seed", type=int, help="repeat the data of a run; it is in its plan")

    selftest = commands.add_parser(
        "selftest", help="feed every detector its planted fault, and do nothing else"
    )
    selftest.set_defaults(module="selftest", **_NOT_ASKED)
    _add_target(selftest)

    listing = commands.add_parser("list", help="list the checks")
    listing.set_defaults(module="catalogue", check=None)
    explain = commands.add_parser("explain", help="say why a check exists and what to do")
    explain.set_defaults(module="catalogue")
    explain.add_argument("check", metavar="CHECK")

    decide = commands.add_parser("verdict", help="decide from results files, again or elsewhere")
    decide.set_defaults(module="verdict")
    decide.add_argument("files", nargs="+", type=Path, metavar="FILE")
    decide.add_argument("--json", action="store_true", help="print verdict.json")

    report = commands.add_parser("report", help="render a results file")
    report.set_defaults(module="report")
    report.add_argument("file", type=Path, metavar="FILE")
    report.add_argument("--format", choices=_FORMATS, required=True)
    report.add_argument(
        "-o", "--output", type=_path, metavar="PATH", help="default: standard output"
    )

    record = commands.add_parser("record", help="write down all that can be read of this node")
    record.set_defaults(module="record", **_NOT_ASKED)
    _add_target(record)
    record.add_argument("-o", "--output", type=_path, required=True, metavar="PATH")
    return parser


# What `run` can be told and these commands can't.
_NOT_ASKED = {
    "profile": "quick",
    "spec": "",
    "expect_gpus": None,
    "run_id": "",
    "nonce": "",
    "node_name": "",
    "node_uid": "",
    "deadline": None,
    "waivers": None,
    "seed": None,
    "selftest_only": True,
}


def _path(text: str) -> Path:
    if not text:  # as from an unset variable; Path would make the current directory of it
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


_RUN = """Test this node and decide. Writes results.jsonl, verdict.json, junit.xml, report.html and
metrics.prom, whatever happens."""


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        help="auto or cuda: the GPUs of this node, undecided without any; cpu: a rehearsal on CPU "
        "devices, which can never release a node; default: auto",
    )
    parser.add_argument(
        "--cpu-devices", type=int, default=2, metavar="N", help="for --device cpu (default: 2)"
    )
    parser.add_argument(
        "--host-root",
        type=_path,
        default=Path("/"),
        metavar="DIR",
        help="where the node's /proc, /sys and /var are mounted in a container (default: /)",
    )
