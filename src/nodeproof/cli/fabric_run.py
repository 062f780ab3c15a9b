"""`nodeproof fabric run`: one node of a group, and on rank 0 (or outside of a launcher) its head."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from nodeproof import __version__, lifeline, results, spec
from nodeproof.child import Interrupted
from nodeproof.cli import dispatching, fabric_judge, files, options
from nodeproof.fabric import launching, standing
from nodeproof.fabric.campaign import Campaign, Measured, Terms
from nodeproof.fabric.head import Head
from nodeproof.fabric.launching import Launched
from nodeproof.fabric.member import Part, part_of, take_part
from nodeproof.fabric.surroundings import agreed
from nodeproof.fabric.wire import PORT, TOKEN, address, shown
from nodeproof.nccl_tests import record
from nodeproof.probes.boot import boot_id
from nodeproof.reports.counted import counted
from nodeproof.results import FILE, now, plain
from nodeproof.spec import Spec

RECORD = "fabric.json"
LOG = "fabric.log"
_PAIRS = "fabric.member.pairs"  # of their limits the measuring has to know
_TRANSPORT = "fabric.member.transport"
_JUDGING_S = 120.0  # for the suite, during which the head says nothing
_TICK_S = 0.1
_LEAVE_S = 15.0  # for the members that this process started
_SMALL_GPU = 40e9  # bytes of memory; the least size of a GPU that is judged at 8 GiB
_SIZES = {"cpu": 4 << 20, "small": 1 << 30, "large": 8 << 30}


def main(args: argparse.Namespace) -> int:
    """Take part in a group, or lead it; return the exit status of the verdict."""
    try:
        told = spec.load(args.spec) if args.spec else spec.NO_SPEC
        declared = options.suites()
        spec.known(told, declared)
        for check in told.limits:
            spec.limits_for(told, check, declared[check].limits)
        if args.device == "cpu":
            told = told.over(spec.load(spec.REHEARSAL))
        part, head_at = _told(args)
        output = files.prepare(args.output)
        for name in (RECORD, LOG):
            (output / name).unlink(missing_ok=True)
    except ValueError as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    except files.Full as error:
        print(f"nodeproof: undecided: {error}", file=sys.stderr)
        return 11
    lifeline.adopt_orphans()
    try:
        if part is not None and part.rank:
            status = _follow(args, part, output)
        else:
            status = _lead(args, part, head_at, told, output)
    finally:
        for pid in lifeline.end_children():
            _say(f"process {pid} cannot be killed: reboot the node")
    unsent = dispatching.send(output, args.dispatch, _plainly) if args.dispatch else ""
    if unsent:
        print(f"nodeproof: undecided: {unsent}", file=sys.stderr)
        return 11
    return status


def _told(args: argparse.Namespace) -> tuple[Part | None, tuple[str, int]]:
    """Read what this process is. Raises `ValueError` with a sentence for the user."""
    if args.launcher == "static":
        if args.launch:
            raise ValueError(f"{args.launch[0]!r}: only a launcher takes further arguments")
        if not args.head:
            raise ValueError("--head HOST[:PORT]: where rank 0 listens, the same on every node")
        part = part_of(args)
        agreed(os.environ, args.rank)
        named = _names(args, part.nodes)
        if named and named[part.rank] != part.name:
            raise ValueError(
                f"--names says that rank {part.rank} is {named[part.rank]}, and this node is "
                f"{part.name}: give --node-name"
            )
        return part, part.head
    if args.nodes is None or args.nodes < 1:
        raise ValueError(f"--nodes N: how many members {args.launcher} has to start")
    for option, given in (("--node-rank", args.rank is not None), ("--node-name", args.node_name)):
        if given:
            raise ValueError(
                f"{option} is for one node, and --launcher {args.launcher} starts all of them: leave "
                "it out"
            )
    _names(args, args.nodes)
    return None, address(args.head) if args.head else ("", 0)


def _names(args: argparse.Namespace, nodes: int) -> list[str]:
    names = [name.strip() for name in args.names.split(",")] if args.names else []
    if names and (len(set(names)) != nodes or len(names) != nodes or not all(names)):
        raise ValueError(f"--names {args.names}: wants {nodes} different names, one a node")
    return names


# --- a member ------------------------------------------------------------------------------


def _follow(args: argparse.Namespace, part: Part, output: Path) -> int:
    _say(f"{_kind(args)}: rank {part.rank} of {part.nodes}, {part.name}, head {shown(*part.head)}")
    left = take_part(part, _progress)
    for name in (FILE, RECORD):
        if name in left.files:
            (output / name).write_text(left.files[name])
    if left.why or FILE not in left.files:
        why = left.why or f"the head {shown(*part.head)} told no results"
        standing.write(output / FILE, part, why, nonce=args.nonce)
    plan = results.read(output / FILE).plan
    return files.conclude(
        output,
        run_id=plan.run_id if plan else "",
        doubt="",
        rehearsal=args.device == "cpu",
        show=_say,
        beside=(RECORD,),
    )


# --- the head ------------------------------------------------------------------------------


def _lead(
    args: argparse.Namespace,
    part: Part | None,
    head_at: tuple[str, int],
    told: Spec,
    output: Path,
) -> int:
    nodes = part.nodes if part else args.nodes
    known = [name.strip() for name in args.known.split(",") if name.strip()]
    started, boot = now(), boot_id(args.host_root)
    token = os.environ.get(TOKEN, "") if part else secrets.token_hex(16)
    _say(
        f"{_kind(args)}: {counted(nodes, 'node')}, {args.launcher}, "
        f"for at most {args.deadline:.0f} s"
    )
    try:
        head = Head(
            nodes=nodes,
            port=head_at[1],
            token=token,
            names=_names(args, nodes),
            seconds=args.deadline,
            provider=str(told.limits.get(_TRANSPORT, {}).get("provider", "")),
        )
    except OSError as error:
        print(
            f"nodeproof: port {head_at[1] or PORT} can't be listened on: {error.strerror}",
            file=sys.stderr,
        )
        return 2
    # A launcher that was told of hosts starts members elsewhere: they have to find this one.
    where = shown(head_at[0] or (platform.node() if args.launch else "127.0.0.1"), head.port)
    try:
        command, environment = _starter(args, part, where, token, nodes)
    except ValueError as error:
        head.close()
        print(f"nodeproof: {error}", file=sys.stderr)
        return 2
    measured, interrupted = Measured(), ""
    seed = secrets.randbits(48) if args.seed is None else args.seed
    with contextlib.ExitStack() as stack:
        stack.callback(head.close)
        stack.enter_context(_signals(head))
        try:
            head.open_store()
            members = _members(command, environment, output / LOG)
            launched = stack.enter_context(members)
            rank = part.rank if part else None
            head.gather(
                join_s=args.join_timeout, over=launched.poll, whose=rank, progress=_progress
            )
            campaign = Campaign(
                head=head,
                terms=_terms(args, told, head, seed),
                say=_say,
                progress=_progress,
                measured=measured,
            )
            campaign.run()
            head.events += [{"name": "launcher", "text": text} for text in launched.said()]
        except (Interrupted, RuntimeError, OSError) as error:
            interrupted = str(error)
        except Exception:  # noqa: BLE001  whatever went wrong, what was measured is written
            interrupted = f"ended by a bug of nodeproof: {traceback.format_exc()[-2000:]}"
        terms = _terms(args, told, head, seed)
        group = {
            "nodes": nodes,
            "device": _device(head, args.device),
            "launcher": args.launcher,
            "bytes": terms.max_bytes,
            "seed": seed,
            "head": where,
            "head_name": part.name if part else platform.node() or "head",
            "boot_id": boot,
            "boot_id_end": boot_id(args.host_root),
            "started": started,
            "ended": now(),
            "interrupted": interrupted,
            "known": known,
            "ratio": terms.ratio,
            "floor_gbs": terms.floor_gbs,
            "loopback": nodes == 1,
            "join_timeout_s": args.join_timeout,
            "timeout_s": args.timeout,
        }
        try:
            record.write(output / RECORD, _document(group, head, measured))
        except OSError as error:
            _say(f"{output / RECORD} can't be written: {error.strerror}")
        except Exception:  # noqa: BLE001  without a record the run is undecided, and says so
            _say(f"no record, by a bug of nodeproof: {traceback.format_exc()[-2000:]}")
        _progress(f"judging what was measured, for at most {_JUDGING_S:.0f} s")
        head.leave_alone(_JUDGING_S)
        status = fabric_judge.judge(
            output / RECORD,
            output,
            spec=args.spec,
            waivers=args.waivers,
            deadline_s=_JUDGING_S,
            nonce=args.nonce,
            run_id=str(uuid.uuid4()),
            show=_say,
            beside=(RECORD, LOG),
        )
        try:
            head.end({name: _read(output / name) for name in (FILE, RECORD)})
        except Exception:  # noqa: BLE001  the verdict stands, whoever can't be told
            _say(f"not all were told, by a bug of nodeproof: {traceback.format_exc()[-2000:]}")
    return status


def _document(group: Mapping[str, Any], head: Head, measured: Measured) -> dict[str, Any]:
    return {
        "schema": 1,
        "version": __version__,
        "group": dict(group),
        "members": [
            {
                "id": member.name,
                "rank": member.rank,
                "came": member.came,
                "lost": "; ".join(member.trouble),
                "lost_after_s": member.trouble_after_s,
                "boot_id": str(member.hello.get("boot_id", "")),
                "boot_id_end": member.boot_id,
                "address": str(member.hello.get("address", "")),
                "instance_type": str(member.hello.get("instance_type", "")),
                "devices": member.devices,
                "software": member.ready.software if member.ready else {},
            }
            for member in head.members
        ],
        "planted": {"ranks": measured.planted},
        "whole": {"ranks": measured.whole},
        "small": {"ranks": measured.small},
        "pairs": [plain(pair) for pair in measured.pairs],
        "rails": measured.rails,
        "traffic": measured.traffic,
        "nccl": measured.nccl,
        "events": head.events,
    }


def _terms(args: argparse.Namespace, told: Spec, head: Head, seed: int) -> Terms:
    limits = told.limits.get(_PAIRS, {})
    return Terms(
        max_bytes=args.max_bytes or _default_size(head),
        timeout_s=args.timeout,
        sweep_s=max(120.0, 4 * args.timeout),
        most_rounds=args.rounds,
        seed=seed,
        floor_gbs=float(limits.get("floor_gbs", 0.0)),
        ratio=float(limits.get("ratio", 0.85)),
    )


def _default_size(head: Head) -> int:
    rows = [row for member in head.members for row in member.devices]
    if not rows or any(row["kind"] != "gpu" for row in rows):
        return _SIZES["cpu"]
    memory = [row["facts"].get("memory_bytes") for row in rows]
    memory = [known if isinstance(known, int) else 0 for known in memory]
    return _SIZES["large" if min(memory) >= _SMALL_GPU else "small"]


def _device(head: Head, asked: str) -> str:
    kinds = {row["kind"] for member in head.members for row in member.devices}
    return "cpu" if asked == "cpu" or "cpu" in kinds else "cuda"


def _starter(
    args: argparse.Namespace, part: Part | None, where: str, token: str, nodes: int
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the member of this node, or the launcher of all of them.

    Raises `ValueError` with a sentence for the user.
    """
    told = ["--device", args.device, "--cpu-devices", str(args.cpu_devices)]
    told += ["--host-root", str(args.host_root), "--join-timeout", str(args.join_timeout)]
    environment = {**os.environ, TOKEN: token}
    if part is None:
        command, more = launching.command(
            args.launcher,
            nodes=nodes,
            head=where,
            member_args=told,
            extra=args.launch,
            environment=environment,
            join_s=args.join_timeout,
        )
        return command, {**environment, **more}
    own = ["--rank", str(part.rank), "--nodes", str(nodes), "--node-name", part.name]
    command = [sys.executable, "-P", "-m", "nodeproof.fabric.member", "--head", where]
    return [*command, *own, *told], environment


@contextlib.contextmanager
def _members(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[Launched]:
    """Start members, let them leave by themselves at the end, and end what is left of them."""
    launched = Launched(command, environment=environment, log=log)
    try:
        yield launched
        ends = time.monotonic() + _LEAVE_S
        while not launched.poll() and time.monotonic() < ends:
            time.sleep(_TICK_S)
    finally:
        for text in launched.end():
            _say(text)


@contextlib.contextmanager
def _signals(head: Head) -> Iterator[None]:
    def stop(number: int, _frame: FrameType | None) -> None:
        head.interrupt(f"stopped by {signal.Signals(number).name}")

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kind(args: argparse.Namespace) -> str:
    if args.device == "cpu":
        return "REHEARSAL on CPU devices; this run can never release a node"
    return "nodes together"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _plainly(text: str) -> None:
    # Whoever reads the packed results out of the log takes each line as it stands.
    print(text, flush=True)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
