"""`nodeproof controller`: hold nodes until they have proved themselves, and release those."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from nodeproof.gate import metrics, serving
from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.leading import Lease, lead
from nodeproof.gate.settings import filled_in, parse
from nodeproof.manifest import shipped
from nodeproof.spec import NO_SPEC, load

_LEASE_PATIENCE_S = 4.0  # for an answer about the Lease, which has to be renewed in time
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})
_TICK_S = 0.5
_END_S = 4.0  # for what is under way; past that the process ends with it


def main(args: argparse.Namespace) -> int:
    """Run until told to stop; 2 for settings that can't be used, 1 where the API refuses."""
    try:
        settings = parse(args.settings.read_text())
        filled_in(settings)
        spec = load(settings.spec) if settings.spec else NO_SPEC
    except OSError as error:
        return _refuse(f"{args.settings}: {error.strerror}", 2)
    except ValueError as error:  # of the settings, the spec, or bytes that are no text
        return _refuse(f"{args.settings}: {error}", 2)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        kube = Kube.here()
        lease = Lease(Kube.here(patience_s=_LEASE_PATIENCE_S), settings.names.namespace)
    except Refused as error:
        return _refuse(str(error), 1)
    leads = (lambda: True) if args.dry_run else lease.held
    controller = Controller(kube, settings, spec, shipped(), leads=leads, dry=args.dry_run)
    # For all threads from here on: the main one asks for them, and nothing is interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        serving.serve(args.port, alive=controller.ailing, metrics=lambda: _metrics(controller))
    except OSError as error:
        return _refuse(f"--port {args.port}: {error.strerror}", 2)
    return _run(controller, None if args.dry_run else lease)


def _run(controller: Controller, lease: Lease | None) -> int:
    """Work, with the Lease or without one, in a thread: a signal has to end whatever it waits for."""
    stopping = threading.Event()
    why: list[str] = []

    def work() -> None:
        try:
            controller.start()
            controller.run()
        except Refused as refusal:
            why.append(str(refusal))
        finally:
            stopping.set()

    def led(lease: Lease) -> None:
        try:
            why.append(lead(lease, run=work, stopping=stopping))
        finally:
            stopping.set()  # whatever ended it: nobody would follow the Lease, and nobody know

    thread = threading.Thread(
        target=led if lease else work, args=(lease,) if lease else (), daemon=True
    )
    thread.start()
    asked = None
    while asked is None and not stopping.is_set():
        asked = signal.sigtimedwait(_ENDING, _TICK_S)
    stopping.set()
    controller.stop()
    thread.join(_END_S)
    if asked:
        return 0
    # Without the Lease somebody else decides; the Deployment starts this one anew.
    return _refuse(next(filter(None, why), "its work ended by itself"), 1)


def _metrics(controller: Controller) -> str:
    return metrics.render(
        phases=controller.phases(),
        requests=controller.requests,
        running=controller.running,
        breakers=controller.breakers(),
    )


def _refuse(why: str, status: int) -> int:
    print(f"nodeproof: {why}", file=sys.stderr)
    return status
