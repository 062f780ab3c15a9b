"""Whether wrong elements are a device's own, or what the same software does on any device."""

from __future__ import annotations

from typing import Any

from nodeproof.checks import Result, Results

# The number of a product differs with the pace of a device, and the SM that did it by chance.
_OWN = {"product", "sm"}


def common(result: Result, peers: Results) -> str:
    """Return why the mismatches of `result` are software's, "" if they are the device's.

    `peers` did the same products. Two devices don't break alike: where one of them shows at least
    half of the described mismatches too, bit for bit, or the host's own processor computes the same
    wrong bits, it is a setting, a library or a driver. A device that is the host's processor has no
    such witness, and a repeat that is right, or another way that is, is none either.
    """
    described = [_what(fault) for fault in result["found"]]
    for device, other in peers:
        theirs = [_what(fault) for fault in other["found"]]
        shared = sum(fault in theirs for fault in described)
        if shared and 2 * shared >= len(described):
            return (
                f"{shared} of {len(described)} described mismatches are the same on {device.label} "
                f"{device.id}, so the cause is software: look at versions and settings first"
            )
    if described and result["host"] == "same":
        return (
            "the host's processor computes the same wrong bits, so the cause is software or the "
            "known answer: look at versions and settings first"
        )
    return ""


def _what(fault: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fault.items() if name not in _OWN}
