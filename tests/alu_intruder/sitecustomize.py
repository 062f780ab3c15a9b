"""An intruder in a worker: an operation of torch that gives one wrong bit, below its Python names.

It is started by the interpreter itself and knows nothing of our code but the name of a worker's
log. ALU_FAULT is JSON: label of the device, name of the operation, dtype and bit of its output, and
in which of every so many calls it is wrong (1: in all of them).
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path

ORDER = json.loads(os.environ.get("ALU_FAULT", "{}"))


class AfterTorch(importlib.abc.MetaPathFinder):
    """Does something to torch as soon as it is there."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            intrude()

        spec.loader.exec_module = exec_module
        return spec


def intrude():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Err(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not str(func).startswith(f"aten.{ORDER['operation']}."):
                return out
            if str(out.dtype) != f"torch.{ORDER['dtype']}" or out.numel() < 100:
                return out
            self.count += 1
            if self.count % ORDER["every"] == 0:
                view = out.view({4: torch.int32, 8: torch.int64}[out.element_size()])
                view[..., 77] ^= 1 << ORDER["bit"]
            return out

    Err().__enter__()


if ORDER and Path("/proc/self/fd/1").resolve().name == f"worker-{ORDER['label']}.log":
    sys.meta_path.insert(0, AfterTorch())
