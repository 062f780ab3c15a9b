"""Where the work is done: torch's device, Triton's kernels, or a sentence on why there are none."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from nodeproof.worker import Context


class NoPlaceError(RuntimeError):
    """torch or Triton can't use the device. Says why, and what to do."""

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


def written_in_triton(module: str, context: Context, *, what: str) -> ModuleType:
    """Import a module of these kernels that needs Triton, with which alone `what` can be tested.

    Triton comes with torch for CUDA and with no other build. Raises `NoPlaceError` without it.
    """
    try:
        return importlib.import_module(f"nodeproof.kernels.{module}")
    except ImportError as error:
        raise NoPlaceError(
            f"{context.device_label} {context.device_id}: Triton can't be imported ({error}), so "
            f"{what} can't be tested: install the triton package that belongs to this torch"
        ) from error
