"""An intruder in a worker: flips one bit in one matrix product, below all of torch's Python names.

It is started by the interpreter itself and knows nothing of our code but the name of a worker's
log. FLIP is JSON: label, or a list of them; dtype of one of the operands; rows of the product, 0 for any; its number among
those, or "every" for an eighth of the columns of all of them; row, column, bit; a file to leave as a mark.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path

ORDER = json.loads(os.environ.get("FLIP", "{}"))


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

    class Flip(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not str(func).startswith(("aten.mm.", "aten._int_mm.", "aten._scaled_mm.")):
                return out
            if f"torch.{ORDER['dtype']}" not in {str(side.dtype) for side in args[:2]}:
                return out
            if ORDER["rows"] not in {0, out.shape[0]}:
                return out
            number, self.count = self.count, self.count + 1
            ints = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
            view = out.view(ints[out.element_size()])
            if ORDER["number"] == "every":  # a lane that is broken for good
                view[:, ORDER["column"] :: 8] ^= 1 << ORDER["bit"]
            elif number == ORDER["number"]:
                place = ORDER["row"], ORDER["column"]
                view[place] = view[place] ^ (1 << ORDER["bit"])
                Path(ORDER["mark"]).touch()
            return out

    Flip().__enter__()


LABELS = ORDER.get("label", [])
LOGS = [f"worker-{label}.log" for label in ([LABELS] if isinstance(LABELS, str) else LABELS)]
if Path("/proc/self/fd/1").resolve().name in LOGS:
    sys.meta_path.insert(0, AfterTorch())
