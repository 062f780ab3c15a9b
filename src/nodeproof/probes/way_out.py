"""Which GPU is at fault where the driver does not answer: what kernel and bus say without it.

A call into a driver that hangs names no device. The kernel's log, the configuration space on the
bus and the driver's own list in /proc do, and none of them goes through the driver's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.parsers.events import Event, Severity
from nodeproof.parsers.kernel_log import events as read_events
from nodeproof.probes.log_sources import current
from nodeproof.probes.pci import Controller, gpus, normalised
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

_LISTED = "proc/driver/nvidia/gpus"
_OF_THE_DRIVER = frozenset({"xid", "nvrm"})  # whose device is a GPU, on the bus or no longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One GPU that something speaks against. `why` has a sentence from each witness."""

    address: str  # dddd:bb:dd.f
    why: tuple[str, ...]


def suspects(
    events: Iterable[Event], on_bus: Sequence[Controller] | None, listed: Sequence[str] | None
) -> tuple[Suspect, ...]:
    """Name the GPUs at fault, in the order of their addresses.

    Args:
        events: Of the kernel's log; fatal ones of the driver and of GPUs count.
        on_bus: NVIDIA's GPUs as the bus shows them; None if it can't be read.
        listed: Addresses that the driver has taken; None if it has no list, which says nothing.
    """
    why: dict[str, list[str]] = {}
    present = {gpu.address for gpu in on_bus or ()}
    for event in events:
        if event.severity is not Severity.FATAL or event.device is None:
            continue
        if event.source in _OF_THE_DRIVER or event.device in present:
            name = event.source if event.code is None else f"{event.source} {event.code}"
            why.setdefault(event.device, []).append(f"the kernel's log has {name}: {event.text}")
    for gpu in on_bus or ():
        if gpu.present is False:
            why.setdefault(gpu.address, []).append(
                "it is in the kernel's list of devices and does not answer on the bus"
            )
        if listed and gpu.address not in listed:
            why.setdefault(gpu.address, []).append("the driver has not taken it")
    for address in listed or ():
        if on_bus is not None and address not in present:
            why.setdefault(address, []).append("the driver has it and the bus does not")
    return tuple(
        Suspect(address=address, why=tuple(dict.fromkeys(said)))
        for address, said in sorted(why.items())
    )


def look(context: Context) -> dict[str, Any]:
    """Work function: `suspects` (`address`, `why`), `says` in one sentence, `unreadable` witnesses.

    It goes through no library of the driver, so that it answers where they hang. Never raises
    for a witness that can't be read: what that one would say is not known, and `says` tells so.
    """
    tree = Tree(root=context.host_root)
    unreadable: list[str] = []

    def witness(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (Unreadable, ValueError) as refusal:
            unreadable.append(str(refusal))
            return None

    found = suspects(
        witness(lambda: read_events(current(context).text)) or (),
        witness(lambda: gpus(tree)),
        witness(lambda: [normalised(name) for name in tree.names(_LISTED)]),
    )
    said = [f"GPU {each.address}: {', and '.join(each.why)}" for each in found]
    if not said:
        said = [
            "of the kernel's log, the bus and the driver's list, none that was read shows a fault"
        ]
    return {
        "suspects": [{"address": each.address, "why": list(each.why)} for each in found],
        "says": "; ".join([*said, *(f"not read: {refusal}" for refusal in unreadable)]),
        "unreadable": unreadable,
    }
