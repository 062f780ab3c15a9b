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
from nodeproof.cli import cluster, group, learning
from nodeproof.parsers.reading import KINDS

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
        extra = "k8s" if error.name.partition(".")[0] in {"kubernetes", "urllib3"} else "node"
        print(
            f"nodeproof: {error.name} is not installed: pip install 'nodeproof[{extra}]'",
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
    run.set_defaults(module="run", selftest_only=False, run_id="", record=None)
    _add_target(run)
    run.add_argument(
        "--profile",
        default="quick",
        help="quick (3 min), gate (8 min), deep (75 min) or soak (5 h); default: quick",
    )
    run.add_argument(
        "--spec",
        default="",
        metavar="NAME|FILE|auto",
        help="what this kind of node must show (TOML); overrides the limits of the checks; auto: "
        "the shipped one that fits the machine, if one does",
    )
    run.add_argument(
        "--expect-gpus", type=int, metavar="N", help="GPUs that have to be there; fewer is a reject"
    )
    run.add_argument(
        "--output",
        type=_path,
        metavar="DIR",
        help="where the files go; those of an earlier run are removed (default: nodeproof-results, "
        "of a replay nodeproof-replay)",
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
    run.add_argument(
        "--dispatch",
        type=_path,
        metavar="FILE",
        help="in a pod: print the packed results at the end and write the termination message here",
    )
    run.add_argument(
        "--replay",
        type=_path,
        metavar="FILE",
        help="judge a node by what `nodeproof record` wrote, and ask nothing of this machine; "
        "what computes is not measured, so that this can never release a node",
    )

    selftest = commands.add_parser(
        "selftest", help="feed every detector its planted fault, and do nothing else"
    )
    selftest.set_defaults(module="selftest", **_NOT_ASKED)
    _add_target(selftest)

    listing = commands.add_parser("list", help="list the checks, or the shipped specs")
    listing.set_defaults(module="catalogue", check=None)
    listing.add_argument(
        "--specs", action="store_true", help="list the shipped specs instead, by their names"
    )
    explain = commands.add_parser("explain", help="say why a check exists and what to do")
    explain.set_defaults(module="catalogue", specs=False)
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

    parse = commands.add_parser(
        "parse",
        help="read a kernel log or what a tool printed, as the checks do",
        description=_PARSE,
    )
    parse.set_defaults(module="parse")
    parse.add_argument("kind", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parse.add_argument("file", metavar="FILE", help="- reads standard input")
    parse.add_argument(
        "--context",
        default="{}",
        metavar="JSON",
        help='what is known beside the text, such as {"gpus_expected": 8}',
    )

    record = commands.add_parser(
        "record", help="write down all that can be read of this node", description=_RECORD
    )
    record.set_defaults(module="record", **{**_NOT_ASKED, "selftest_only": False})
    _add_target(record)
    record.add_argument(
        "--spec",
        default="",
        metavar="NAME|FILE|auto",
        help="that of the run: it says what is looked for",
    )
    record.add_argument(
        "--redact",
        action="store_true",
        help="put placeholders for UUIDs, serials, boot ids, addresses and names; it still replays",
    )
    record.add_argument("-o", "--output", type=_path, required=True, metavar="PATH")
    learning.add(commands)
    group.add(commands)
    cluster.add(commands)
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
    "replay": None,
    "record": None,
    "selftest_only": True,
}


def _path(text: str) -> Path:
    if not text:  # as from an unset variable; Path would make the current directory of it
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


_PARSE = """Read a text and say what a gate decides on a new, idle node from it alone. Prints one JSON
object. Exit status: 0 pass or warn, 10 fail, 11 error, 2 for a kind that is not known."""

_RECORD = """Read this node as the checks do and write down what they were told, in one file that
`nodeproof run --replay` judges. Nothing is computed on the devices. Exit status: 0 written, 11 not
or not all of it, 2 usage error."""

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
