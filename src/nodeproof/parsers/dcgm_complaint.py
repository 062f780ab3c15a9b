"""What DCGM says beside a result: which error it is, and whether it speaks of the board.

Error numbers, categories and the wording of messages: DCGM, dcgmlib/dcgm_errors.h (read at 4.6.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PERSISTENCE_MODE = 29
_NVLINK_DOWN = 14
_ECC_DISABLED = 55
_NO_MEMORY = frozenset({56, 73})  # could not be allocated, on the GPU or on the host
# Performance, heat, memory, NVLink, NVSwitch, PCIe, power and other hardware. The remaining
# categories are software, settings and Xids; Xids are judged where the kernel tells all of them.
_OF_THE_BOARD = frozenset({1, 2, *range(9, 16)})
# Filed under hardware, and still no proof: ECC off or unsupported and a low power limit are
# settings, and a link that is down is none on a board without a bridge.
_EXPLAINED = frozenset({_ECC_DISABLED, 60, 72, _NVLINK_DOWN})
# Where no number is given (DCGM 2 and text): what a process, a driver or a setting explains.
_OF_THE_SETUP = re.compile(
    r"CUDA API|cuda\w+|\bcu[A-Z]\w+|API call|context|allocat|permission|root|librar|driver|"
    r"persistence mode|environment|graphics process|fabric ?manager|IMEX|in use|busy|Xid|"
    r"ECC[^.]{0,60}(?:not|disabled)|power limit|DCGM API|aborted|skipp",
    re.IGNORECASE,
)
_LINK_DOWN = re.compile(r"NvLink link", re.IGNORECASE)
_NEXT_OF_SEVERAL = re.compile(r",\s*+(?=GPU )")
_GPU = re.compile(r"\bGPU:?\s?(\d{1,4})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One warning or error beside a result. `error` and `category` are DCGM's numbers."""

    text: str
    error: int | None = None
    category: int | None = None

    @property
    def persistence(self) -> bool:
        """Persistence mode is off: a gate can switch it on and test again."""
        if self.error is not None:
            return self.error == _PERSISTENCE_MODE
        return bool(re.search(r"persistence mode for GPU", self.text, re.IGNORECASE))

    @property
    def links_only(self) -> bool:
        """Nothing is said but that NVLinks are down."""
        if self.error is not None:
            return self.error == _NVLINK_DOWN
        parts = _NEXT_OF_SEVERAL.split(self.text)
        return bool(self.text) and all(_LINK_DOWN.search(part) for part in parts)

    @property
    def ecc_off(self) -> bool:
        """ECC is not switched on."""
        if self.error is not None:
            return self.error == _ECC_DISABLED
        return bool(re.search(r"ECC[^.]{0,60}(?:not |disabled)", self.text))

    @property
    def no_memory(self) -> bool:
        """There was no memory to test, whatever the status beside it says."""
        if self.error is not None:
            return self.error in _NO_MEMORY
        return bool(
            re.search(r"(?:could ?n.t|can ?not|unable to) allocate", self.text, re.IGNORECASE)
        )

    @property
    def of_the_board(self) -> bool:
        """Only the hardware explains it, not a process, a driver or a setting."""
        if self.error is not None and self.category is not None:
            return self.category in _OF_THE_BOARD and self.error not in _EXPLAINED
        return not self.links_only and not _OF_THE_SETUP.search(self.text)

    @property
    def gpu(self) -> int | None:
        """DCGM's number of the first GPU that the text names."""
        found = _GPU.search(self.text)
        return int(found[1]) if found else None
