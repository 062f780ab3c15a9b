"""Where the work is done: the torch device of a worker, or a sentence on why there is none."""

from __future__ import annotations

from typing import Any

import torch

from nodeproof.worker import Context


class NoPlaceError(RuntimeError):
    """torch can't use the device. Says why, and what to do."""

    cause = "environment"


def place(context: Context) -> Any:
    """Return the torch device of `context`. Raises `NoPlaceError` for a GPU that torch can't use."""
    device = torch.device(context.torch_device)
    if device.type != "cuda":
        return device
    who = f"{context.device_label} {context.device_id}"
    if torch.version.cuda is None and torch.version.hip is None:
        raise NoPlaceError(
            f"torch {torch.__version__} is built without CUDA and cannot use {who}: "
            "install a build with CUDA"
        )
    if not torch.cuda.is_available():
        raise NoPlaceError(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU where {who} "
            "should be: see node.software.versions and node.devices.count"
        )
    return device
