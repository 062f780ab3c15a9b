"""The table of NVLink states that `dcgmi nvlink --link-status` prints, one letter a link.

U is up, D down, X disabled, _ not supported (DCGM, dcgmi/Nvlink.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeproof.parsers.dcgm_results import without_nvlink
from nodeproof.parsers.reading import Context, Grade

Links = dict[str, dict[str, int]]  # GPU to state to number of links

_STATES = {"U": "up", "D": "down", "X": "disabled", "_": "unsupported"}
_GPU = re.compile(r"\s*gpuId\s++(\d{1,5})\s*+:(.*)")
_LETTERS = re.compile(r"\s*+[UDX_](?:\s++[UDX_])*+\s*+")


def links_of(text: str) -> Links:
    """Count the links of each GPU by state; empty where the text holds no table."""
    found: Links = {}
    gpu: str | None = None
    for line in text.splitlines():
        if head := _GPU.fullmatch(line):
            gpu = str(int(head[1]))
            found.setdefault(gpu, dict.fromkeys(_STATES.values(), 0))
            line = head[2]  # noqa: PLW2901  the letters may follow on the same line
        if gpu is not None and _LETTERS.fullmatch(line):
            for letter in line.split():
                found[gpu][_STATES[letter]] += 1
        elif line.strip():
            gpu = None  # switches have rows of letters too
    return found


def judge_links(links: Links, context: Context) -> tuple[Grade, str]:
    """Decide whether these links are as many as the product has."""
    wanted = context.get("nvlinks_per_gpu")
    if without_nvlink(context) and type(wanted) is not int:
        return Grade.PASS, "no NVLink is expected here"
    for gpu, states in links.items():
        if type(wanted) is int and states["up"] < wanted:
            return Grade.FAIL, f"GPU {gpu} has {states['up']} NVLinks up of {wanted}: reset it"
        if type(wanted) is not int and context.get("nvlink_expected") and not _sound(states):
            return Grade.FAIL, f"GPU {gpu} has {states['down']} NVLinks down: reset it"
    down = [gpu for gpu, states in links.items() if states["down"]]
    if down and type(wanted) is not int:
        return Grade.WARN, (
            f"NVLinks are down on GPU {', '.join(down)}: a fault where the product has them"
        )
    return Grade.PASS, "the NVLinks are as many as expected"


def _sound(states: Mapping[str, int]) -> bool:
    return states["up"] > 0 and states["down"] == 0
