"""Plans that end in our condition, so that no node is where it is without a reason. Pure."""

from __future__ import annotations

from nodeproof.gate.actions import (
    Action,
    Hold,
    Measure,
    Phase,
    Plan,
    Quarantine,
    Record,
    Say,
    Tell,
    Test,
)
from nodeproof.gate.names import EVERYTHING_PASSED
from nodeproof.gate.node import Node
from nodeproof.gate.occasion import GRANDFATHERED
from nodeproof.gate.settings import Settings

_LONGEST = 1024  # characters of a message, as the policies have it
_DOUBTED = "; serves on, though suspected: "


def hold(
    node: Node, settings: Settings, reason: str, text: str, now: float, *, status: str = "Unknown"
) -> Plan:
    """Keep the node from the scheduler, and say why."""
    taint = () if node.has(settings.names.pending) else (Hold(),)
    return say(
        node,
        settings,
        now,
        Phase.WAITING,
        status,
        reason,
        text,
        *taint,
        wake_s=1.0 if taint else None,
    )


def say(
    node: Node,
    settings: Settings,
    now: float,
    phase: Phase,
    status: str,
    reason: str,
    text: str,
    *actions: Action,
    wake_s: float | None = None,
) -> Plan:
    """Make a plan with our condition in it, unless the condition says so already."""
    told_now = Say(status=status, reason=reason, message=message_of(node, text))
    told = node.condition
    same = told is not None and (told.status, told.reason, told.message) == (
        told_now.status, told_now.reason, told_now.message,
    )  # fmt: skip
    fresh = (
        told is not None
        and told.heartbeat is not None
        and now - told.heartbeat < settings.heartbeat_s
    )
    order: list[Action] = [*actions] if same and fresh else [*actions, told_now]
    order.sort(key=_rank)
    return Plan(phase=phase, actions=tuple(order), wake_s=wake_s)


def _rank(action: Action) -> int:
    """The order that a crash between any two actions does no harm in.

    A node that is to be held must not be free while its condition is written; a test that can't be
    started must not be said to run; a ruling has to be remembered and told before the condition
    says that it was, and before a quarantine that the API may refuse, since the node is held then;
    and a request counts as answered only when the answer stands.
    """
    if isinstance(action, Hold):
        return 0
    if isinstance(action, Record | Tell | Test | Measure):
        return 1
    if isinstance(action, Quarantine):
        return 2
    return 3 if isinstance(action, Say) else 4


def heartbeat(
    node: Node, phase: Phase, settings: Settings, now: float, *, doubt: str = ""
) -> tuple[Action, ...]:
    """Keep the condition of an accepted node fresh; say once why an old one is let alone.

    `doubt` is what speaks against a node that serves on, and is said beside that.
    """
    told = node.condition
    if phase is Phase.ACCEPTED and told is None:
        text = "it was accepted for this boot; the condition that said so was lost"
        return (Say(status="True", reason=EVERYTHING_PASSED, message=message_of(node, text)),)
    if told is None:
        text = "it served before the gate was installed, and is tested after its next boot"
        return (Say(status="Unknown", reason=GRANDFATHERED, message=message_of(node, text)),)
    message = doubted(told.message.partition(_DOUBTED)[0], doubt)
    same = message == told.message
    fresh = told.heartbeat is not None and now - told.heartbeat < settings.heartbeat_s
    if same and (fresh or phase is not Phase.ACCEPTED):
        return ()
    say = Say(status=told.status, reason=told.reason, message=message)
    return (say,) if same else (*doubt_told(node, doubt), say)


def doubted(text: str, doubt: str) -> str:
    """What a condition says of a node that serves, with what speaks against it."""
    added = _fitting(_DOUBTED + doubt, _LONGEST // 2) if doubt else ""
    return text[: _LONGEST - len(added)] + added


def doubt_told(node: Node, doubt: str) -> tuple[Action, ...]:
    """The event that a node serves on though somebody suspects it, unless its condition says so."""
    if not doubt or (
        node.condition
        and node.condition.message == doubted(node.condition.message.partition(_DOUBTED)[0], doubt)
    ):
        return ()
    return (Tell(reason="SuspectServes", message=doubt, warning=True),)


def differs(node: Node, status: str, reason: str) -> bool:
    """Whether our condition of this boot does not say this yet."""
    told = node.condition
    return (
        told is None
        or (told.status, told.reason) != (status, reason)
        or not told.message.startswith(f"boot {node.boot_id};")
    )


def message_of(node: Node, text: str) -> str:
    """The message of our condition: the boot that it speaks of, then the text."""
    return _fitting(f"boot {node.boot_id or 'unknown'}; {text}", _LONGEST)


def _fitting(text: str, longest: int) -> str:
    # The API replaces half characters; unlike what we said, it would be said again for ever.
    return text[:longest].encode(errors="replace").decode()
