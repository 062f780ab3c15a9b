"""Wait, up to a deadline, for what is merely not up yet, and say what it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nodeproof.probes import pci
from nodeproof.probes import services as daemons
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

LONGEST_S = 600.0
_VERBS = "sys/class/infiniband"


def wait(
    context: Context,
    *,
    wait_s: float = 0.0,
    services: str = "",
    gpus: int = 0,
    efa: int = 0,
    adapters: int = 0,
    poll_s: float = 1.0,
) -> dict[str, Any]:
    """Work function: wait until all that is named is there, `wait_s` at most.

    `services` are names of `nodeproof.probes.services.KNOWN`, separated by spaces; `gpus` NVIDIA
    GPUs with their driver, `efa` EFA devices, `adapters` RDMA devices of any kind. Returns
    `blockers` (a sentence for each that is missing at the end), `waited_s` and `first` (what was
    missing at the start). Each change is an event, `readiness.blocked`. Raises `ValueError` for an
    unknown service and for a wait longer than `LONGEST_S`.
    """
    tree = Tree(root=context.host_root)
    if not 0 <= wait_s <= LONGEST_S:
        raise ValueError(f"wait_s = {wait_s}: between 0 and {LONGEST_S:.0f} s")
    needs = _needs(tree, services.split(), gpus=gpus, efa=efa, adapters=adapters)
    started = time.monotonic()
    first = last = _blockers(needs)
    told: list[str] = []
    while last:
        if last != told:
            context.event("readiness.blocked", text="; ".join(last))
            told = last
        waited = time.monotonic() - started
        if waited >= wait_s:
            break
        context.progress(step=f"waiting for {'; '.join(last)}", waited_s=round(waited, 1))
        time.sleep(min(poll_s, wait_s - waited))
        last = _blockers(needs)
    return {"blockers": last, "first": first, "waited_s": time.monotonic() - started}


Need = Callable[[], str]  # what is missing, `""` if nothing


def _needs(
    tree: Tree, named: list[str], *, gpus: int, efa: int, adapters: int
) -> list[tuple[str, Need]]:
    if unknown := sorted(set(named) - daemons.KNOWN.keys()):
        raise ValueError(
            f"no service {', '.join(unknown)} is known here, only {', '.join(sorted(daemons.KNOWN))}"
        )
    needs: list[tuple[str, Need]] = []
    if named:
        needs.append(("services", lambda: _services(tree, named)))
    if gpus:
        needs.append(("GPUs", lambda: _gpus(tree, gpus)))
    if efa:
        needs.append(("EFA devices", lambda: _verbs(tree, efa, driver="efa")))
    if adapters:
        needs.append(("RDMA devices", lambda: _verbs(tree, adapters, driver="")))
    return needs


def _blockers(needs: list[tuple[str, Need]]) -> list[str]:
    found = []
    for name, missing in needs:
        try:
            said = missing()
        except Unreadable as error:  # which may be for want of what is waited for
            said = f"{name} can't be seen: {error}"
        if said:
            found.append(said)
    return found


def _services(tree: Tree, named: list[str]) -> str:
    states = daemons.states(tree)
    missing = [f"{name} ({states[name]})" for name in named if states[name] != "running"]
    return f"services {', '.join(missing)}" if missing else ""


def _gpus(tree: Tree, wanted: int) -> str:
    found = pci.gpus(tree)
    without = [gpu.address for gpu in found if _driver(tree, gpu.address) != "nvidia"]
    ready = len(found) - len(without)
    if ready >= wanted:
        return ""
    named = f", without the nvidia driver: {', '.join(without)}" if without else ""
    return f"{ready} of {wanted} GPUs ({len(found)} on the bus{named})"


def _driver(tree: Tree, address: str) -> str:
    try:
        return (tree.root / pci.DEVICES / address / "driver").readlink().name
    except OSError:
        return ""


def _verbs(tree: Tree, wanted: int, *, driver: str) -> str:
    try:
        names = tree.names(_VERBS)
    except Unreadable:  # the kernel makes it with the first device
        names = []
    ready = [name for name in names if not driver or _driver_of_verbs(tree, name) == driver]
    kind = "EFA" if driver else "RDMA"
    return "" if len(ready) >= wanted else f"{len(ready)} of {wanted} {kind} devices"


def _driver_of_verbs(tree: Tree, name: str) -> str:
    try:
        return (tree.root / _VERBS / name / "device/driver").readlink().name
    except OSError:
        return ""
