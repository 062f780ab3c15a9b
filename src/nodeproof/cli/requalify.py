"""`nodeproof requalify NODE`: have a node tested again, by whoever may annotate nodes."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.names import TOO_OFTEN, Names
from nodeproof.gate.node import Node, node_of
from nodeproof.gate.suspicion import MARK
from nodeproof.gate.writes import MERGE, Request

_LOOK_S = 2.0


def main(args: argparse.Namespace) -> int:
    """Ask; with --wait, until it is decided. 0 accepted or asked, 10 rejected, 11 all else."""
    names = Names(domain=args.domain)
    word = args.word or secrets.token_hex(4)
    path = f"/api/v1/nodes/{args.node}"
    body = {"metadata": {"annotations": {names.requalify: word}}}
    try:
        kube = Kube.here()
        answer = kube.send(Request(verb="PATCH", path=path, body=body, content=MERGE))
        if node_of(answer or {}, names).annotations.get(names.requalified) == word:
            print(
                f"nodeproof: {args.node} was tested for {word} before: take another word",
                file=sys.stderr,
            )
            return 2
        print(f"{args.node}: asked for another test, {names.requalify}={word}")
        return _wait(kube, path, names, word, args.wait) if args.wait else 0
    except Refused as error:
        print(f"nodeproof: {error}", file=sys.stderr)
        return 11


def _wait(kube: Kube, path: str, names: Names, word: str, seconds: float) -> int:
    ends, said = time.monotonic() + seconds, ""
    while time.monotonic() < ends:
        try:
            node = node_of(kube.get(path), names)
        except Refused as refusal:
            if refusal.status == 404:
                raise  # the node is gone, and the request with it
            print(f"nodeproof: {refusal}; asking again", file=sys.stderr)
            time.sleep(min(_LOOK_S, max(0.0, ends - time.monotonic())))
            continue
        now = node.annotations.get(names.requalify, "")
        if now != word and now.startswith(MARK):
            print(f"{node.name}: the request was replaced: {now}", flush=True)
            word = now
        told = node.condition
        line = f"{told.status} {told.reason}: {told.message}" if told else "no condition yet"
        if line != said:
            print(f"{node.name}: {line}", flush=True)
            said = line
        status = _answer(node, names, word)
        if status is not None:
            return status
        time.sleep(min(_LOOK_S, max(0.0, ends - time.monotonic())))
    print(f"nodeproof: not decided within {seconds:g} s; the node stays held", file=sys.stderr)
    return 11


def _answer(node: Node, names: Names, word: str) -> int | None:
    """Exit status of the answer; `None` until annotation and condition both give it."""
    told = node.told_for_this_boot
    if node.annotations.get(names.requalified) != word or told is None:
        return None
    if node.accepted(names):
        return 0
    if node.condemned:
        return 10
    return 11 if told.reason == TOO_OFTEN else None
