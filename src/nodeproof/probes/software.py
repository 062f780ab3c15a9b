"""The libraries that the work will run on: which versions, and whether they answer."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from typing import Any

import nodeproof
from nodeproof.probes import nvml
from nodeproof.worker import Context

ALWAYS = ("python", "nodeproof", "numpy", "torch")
WITH_A_GPU = ("torch_cuda", "cudnn", "nccl", "driver", "driver_cuda")


class Silent(Exception):  # noqa: N818  a state of the installation
    """A library is there and does not give an answer, or the wrong one."""

    cause = "environment"


def versions(context: Context, *, device: str = "auto") -> dict[str, Any]:
    """Work function: `versions`, name to text for every library that was imported and answered.

    The names wanted are in `wanted`: those of `ALWAYS`, and with a device other than "cpu" those
    of `WITH_A_GPU` too. One that is missing from `versions` is in `unreadable` with the reason.
    `driver_cuda` and `torch_cuda` are CUDA versions as "12.8". Imports torch, so it belongs in a
    worker. Raises nothing for a library that fails to load.
    """
    readings: dict[str, Callable[[], str]] = {
        "python": platform.python_version,
        "nodeproof": lambda: nodeproof.__version__,
        "numpy": _numpy,
        "torch": _torch,
        "torch_cuda": _torch_cuda,
        "cudnn": _cudnn,
        "nccl": _nccl,
        "driver": lambda: _driver(context, "nvmlSystemGetDriverVersion"),
        "driver_cuda": lambda: nvml.cuda_version(
            int(_driver(context, "nvmlSystemGetCudaDriverVersion_v2"))
        ),
    }
    wanted = ALWAYS if device == "cpu" else ALWAYS + WITH_A_GPU
    found: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for name in wanted:
        try:
            found[name] = readings[name]()
        except (
            ImportError,
            OSError,
            RuntimeError,
            AttributeError,
            Silent,
            nvml.NvmlError,
        ) as error:
            unreadable[name] = f"{type(error).__name__}: {error}"
    return {"wanted": list(wanted), "versions": found, "unreadable": unreadable}


def _numpy() -> str:
    numpy = importlib.import_module("numpy")
    if int(numpy.arange(10).sum()) != 45:
        raise Silent("numpy adds 0 to 9 and does not get 45: install it again")
    return str(numpy.__version__)


def _torch() -> str:
    torch = importlib.import_module("torch")
    if int(torch.arange(10).sum()) != 45:
        raise Silent("torch adds 0 to 9 and does not get 45: install it again")
    return str(torch.__version__)


def _torch_cuda() -> str:
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        raise Silent(f"torch {torch.__version__} is built without CUDA: install a build with it")
    if not torch.cuda.is_available():
        raise Silent(
            f"torch {torch.__version__} finds no GPU that it can use: is the driver new enough "
            f"for CUDA {torch.version.cuda}, and is a GPU given to this process?"
        )
    return str(torch.version.cuda)


def _cudnn() -> str:
    version = importlib.import_module("torch").backends.cudnn.version()
    if version is None:
        raise Silent("torch does not find cuDNN: install a build of torch that brings it")
    # 90100 from 9.0 on, 8902 before
    major, minor = (10000, 100) if version >= 90000 else (1000, 100)
    return f"{version // major}.{version % major // minor}.{version % minor}"


def _nccl() -> str:
    torch = importlib.import_module("torch")
    if not torch.distributed.is_nccl_available():
        raise Silent("torch is built without NCCL: install a build with it")
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _driver(context: Context, call: str) -> str:
    with nvml.session(context.progress):
        return str(nvml.ask(call))
