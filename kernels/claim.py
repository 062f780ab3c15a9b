"""The memory that a test takes: how much, in which pieces, and out of how much.

On a processor the share is of what the control group leaves, so that the test itself does not
provoke the kernel; on a GPU it is of what is free, in pieces, and what the driver and the test need
has to come out of the rest. A GPU that does not give that much is tested as far as it does, and the
claim says how far: the check asks for the whole share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nodeproof.kernels.headroom import available
from nodeproof.kernels.mismatches import WORD
from nodeproof.worker import Context

MIB = 1 << 20
# For what the driver loads while the test runs; the context itself is no longer free by then. Within
# the 3 % that a share of 97 % leaves of 8 GiB, beside blocks and buffers.
_GPU_RESERVE = 96 * MIB
_CHUNK = 1024 * MIB  # of one allocation on a GPU, where free memory may be in pieces
_PLANTED = {"cuda": 512 * MIB, "cpu": 64 * MIB}  # the region in which faults are planted
# A machine with less than the rest does not go on; of a GPU's free memory the driver's part is gone.
_MOST = {"cuda": 0.99, "cpu": 0.95}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """Memory that was taken: int64 tensors, each a whole number of blocks."""

    pieces: list[Any]
    bytes: int
    asked: int  # bytes
    free: int  # bytes, before
    total: int  # bytes
    devices: int  # that take as much of the same memory

    def facts(self) -> dict[str, Any]:
        """How much it is, of what."""
        return {
            "bytes": self.bytes,
            "asked": self.asked,
            "share": self.bytes * self.devices / self.free,
            "share_of_total": self.bytes * self.devices / self.total,
            "free_of_total": self.free / self.total,
        }

    def announce(self, context: Context) -> None:
        """Tell whoever watches where the memory is, now that it is filled."""
        starts = [
            {"address": f"{piece.data_ptr():#x}", "bytes": piece.numel() * WORD}
            for piece in self.pieces
        ]
        context.event(
            "memory.filled",
            pid=os.getpid(),
            bytes=self.bytes,
            address=starts[0]["address"],
            pieces=starts,
        )


def claim(
    context: Context,
    device: Any,
    *,
    gpu_share: float,
    cpu_share: float | None = None,
    cpu_mib: float | None = None,
    block: int,
    spare: int = 0,
    planting: bool = False,
) -> Claim:
    """Take `gpu_share` of what is free on a GPU; on a processor a share, or a number of MiB.

    `cpu_share` is of what all devices under test may take together. Pieces are whole multiples of
    `block` words: on a GPU as many as make up the share, on a processor as fit into it. `spare`
    bytes of a GPU stay free for the test's own buffers; that, or a driver that refuses, may leave
    less than was asked. Where faults are to be planted a small region is enough. Raises `ValueError`
    for a share or size that is none, `RuntimeError` where no block of it, or on a processor not all
    of it, can be had.
    """
    gpu = device.type == "cuda"
    share = gpu_share if gpu else cpu_share
    most = _MOST[device.type]
    if share is not None and not 0 < share <= most:
        raise ValueError(
            f"a share of {share} of the memory: more than 0 and at most {most} can be tested"
        )
    if not gpu and (share is None) == (cpu_mib is None):
        raise ValueError("on a processor either a share of the memory is tested or a size")
    if not gpu and cpu_mib is not None and not 0 < cpu_mib < 1 << 20:
        raise ValueError(f"{cpu_mib} MiB of memory: more than 0 and less than 1 TiB can be tested")
    free, total = free_and_total(device)
    devices = 1 if gpu else context.peers
    asked = int(free * share) // devices if share is not None else int((cpu_mib or 0) * MIB)
    if planting:
        asked = min(asked, _PLANTED[device.type])
    size = block * WORD
    if gpu:
        cells = min(-(-asked // size), (free - _GPU_RESERVE - spare) // size) * block
    else:
        cells = asked // size * block
    lack = (
        f"{context.device_id}: {max(cells, 0) * WORD / MIB:.0f} MiB to test could not be had, "
        f"{free / MIB:.0f} MiB are free: end what else uses the memory, or lower the share"
    )
    if cells <= 0 or cells * WORD > free:
        raise RuntimeError(lack)
    try:
        if gpu:
            pieces = _in_pieces(cells, block, device, spare)
        else:
            # By numpy, which asks for huge pages where the system leaves that to the program.
            pieces = [torch.from_numpy(np.empty(cells, np.int64))]
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RuntimeError(f"{lack} ({error})") from error
    return Claim(
        pieces=pieces,
        bytes=sum(p.numel() for p in pieces) * WORD,
        asked=asked,
        free=free,
        total=total,
        devices=devices,
    )


def free_and_total(device: Any) -> tuple[int, int]:
    """Bytes that may be taken now, and bytes there are, of a GPU or of the host."""
    if device.type != "cuda":
        return available()
    torch.cuda.empty_cache()  # what earlier work in this process still holds is not in use
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def _in_pieces(cells: int, block: int, device: Any, spare: int) -> list[Any]:
    """Take so many words of a GPU, or as many as it gives, and leave it `spare` bytes.

    Raises `torch.OutOfMemoryError` where it gives not one block.
    """
    # Held meanwhile, or the driver's last bytes would go into the claim, and the test would starve.
    kept = torch.empty(spare, dtype=torch.uint8, device=device)
    chunk = max(_CHUNK // WORD // block, 1) * block
    pieces: list[Any] = []
    while cells:
        size = min(chunk, cells)
        try:
            pieces.append(torch.empty(size, dtype=torch.int64, device=device))
        except torch.OutOfMemoryError:
            if size > block:
                chunk = -(-size // 2 // block) * block
                continue
            if not pieces:
                raise
            break
        cells -= size
    del kept
    torch.cuda.empty_cache()
    return pieces
