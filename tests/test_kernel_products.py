"""Products in a real worker process, with faults that somebody outside puts into torch."""

import json
import os
import statistics
import textwrap
import time

import pytest

from nodeproof.acceptance import test_arithmetic as arithmetic
from nodeproof.acceptance import test_burnin as burnin
from nodeproof.acceptance import test_burnin_pace as pace
from nodeproof.checks import Device, DeviceKind, spec_of
from nodeproof.child import Answer, Call, Pool, Raised
from nodeproof.kernels.burn import percentile
from nodeproof.kernels.gemm import CPU_DTYPES
from nodeproof.model import Measurement
from nodeproof.plugin.watched import watched

# Counts every matrix product of the process, below all of torch's Python names, and does to the
# outputs what the control file says. It knows nothing of our code.
_OUTSIDE = """
    import json, os, pathlib
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    CONTROL = pathlib.Path(os.environ["CONTROL"])
    PRODUCTS = ("aten.mm.", "aten._int_mm.", "aten.addmm.", "aten.bmm.", "aten.matmul.",
                "aten.baddbmm.", "aten._scaled_mm.", "aten.mv.", "aten.dot.", "aten.addmv.", "aten.linear.")

    class Outside(TorchDispatchMode):
        known = None
        count = 0
        last = None

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not str(func).startswith(PRODUCTS):
                return out
            text = CONTROL.read_text()
            if text != self.known:
                self.known, self.count, self.last = text, 0, None
            order = json.loads(text)
            number, self.count = self.count, self.count + 1
            (CONTROL.parent / "count").write_text(str(self.count))
            if number in order["at"] or order["at"] == ["all"]:
                if order["how"] == "stale" and self.last is not None:
                    return self.last
                if order["how"] == "flip":
                    ints = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
                    view = out.view(ints[out.element_size()])
                    top = out.element_size() * 8 - 1
                    bit = order["bit"] % (top + 1)
                    mask = -(1 << top) if bit == top else 1 << bit
                    row, column = order["row"] % out.shape[0], order["column"] % out.shape[1]
                    view[row, column] = view[row, column] ^ mask
            self.last = out
            return out

    Outside().__enter__()
"""
_CLEAN = {"at": [], "how": "flip"}


class Worker:
    def __init__(self, folder):
        (folder / "sitecustomize.py").write_text(textwrap.dedent(_OUTSIDE))
        self._control, self._count, self._turn = folder / "control", folder / "count", 0
        self.pool = Pool(
            ends=time.monotonic() + 600, logs=folder, listen=lambda *message: self.heard(message)
        )
        self.messages = []
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.pool.add("cpu0", {"PYTHONPATH": path, "CONTROL": str(self._control)})

    def heard(self, message):
        self.messages.append(message)

    def run(self, call, order=_CLEAN, seed=7, **args):
        self._turn += 1
        self._control.write_text(json.dumps({**order, "turn": self._turn}))
        context = {
            "device_kind": "cpu",
            "device_id": "cpu0",
            "device_label": "cpu0",
            "torch_device": "cpu",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": seed,
            "host_root": "/",
            "group": None,
        }
        work = Call(call=f"nodeproof.kernels.{call}", args=args, context=context)
        return self.pool.run({"cpu0": work}, deadline_s=120)["cpu0"]

    def result(self, *given, **args):
        reply = self.run(*given, **args)
        assert isinstance(reply, Answer), reply
        return reply.result

    def counted(self):
        return int(self._count.read_text())


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("outside"))
    yield worker
    worker.pool.close()


def judged(check, **given):
    """What a check measures of a result."""
    seen = []

    def measure(name, value, **bounds):
        seen.append(Measurement(name=name, value=float(value), **bounds))

    limits = spec_of(check).limits()
    names = check.__code__.co_varnames[: check.__code__.co_argcount]
    offered = {"measure": measure, "limits": limits, "device": CPU, "peers": [], **given}
    check(**{name: offered[name] for name in names})
    return [m.name for m in seen if not m.held]


CPU = Device(kind=DeviceKind.CPU, id="cpu0", label="cpu0")
CHECKS = dict(
    zip(
        CPU_DTYPES,
        (
            arithmetic.test_fp64,
            arithmetic.test_fp32,
            arithmetic.test_bf16,
            arithmetic.test_fp16,
            arithmetic.test_int8,
            arithmetic.test_fp8_e4m3,
            arithmetic.test_fp8_e5m2,
        ),
        strict=True,
    )
)
BURN = ("burn:burn", {})
EXACT = [("gemm:exact", {"dtype": dtype}) for dtype in CPU_DTYPES]


@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_a_sound_device_is_exact_in_every_format(worker, dtype):
    result = worker.result("gemm:exact", dtype=dtype)
    assert (result["wrong"], result["found"], result["planted"]) == (0, [], [])
    assert result["checked_elements"] == result["products"] * result["size"] ** 2
    assert all(family["bound"] <= family["budget"] for family in result["families"])
    assert not result["flags"]["allow_tf32"]
    assert judged(CHECKS[dtype], result=result) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_what_is_planted_is_what_is_found_in_every_format(worker, dtype, seed):
    result = worker.result("gemm:exact", seed=seed, dtype=dtype, plant="flip")
    assert len(result["planted"]) == 2 * len(result["families"])
    assert result["planted"][0]["bits"] == [0]  # what a comparison with a tolerance would miss
    assert result["found"] == result["planted"]
    assert result["operands_intact"] is True
    assert judged(CHECKS[dtype], result=result) == ["wrong elements"]


@pytest.mark.parametrize(("call", "args"), [*EXACT, BURN, ("burn:burn", {"plant": "slow"})])
def test_torch_does_no_product_that_is_not_compared(worker, call, args):
    assert worker.result(call, **args)["products"] == worker.counted() > 1


@pytest.mark.parametrize("bit", [0, pytest.param(5, marks=pytest.mark.long), -1])
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_one_bit_flipped_from_outside_is_found_where_it_is(worker, dtype, bit):
    products = worker.result("gemm:exact", dtype=dtype)["products"]
    for number in range(products):
        order = {"at": [number], "how": "flip", "row": 77 + number, "column": 101, "bit": bit}
        result = worker.result("gemm:exact", order, dtype=dtype)
        (found,) = result["found"]
        width = (len(found["xor"]) - 2) * 4
        assert result["wrong"] == 1
        assert found["dtype"] == dtype
        assert (found["row"], found["column"]) == (77 + number, 101)
        assert (found["bits"], found["product"]) == ([bit % width], number)
        assert int(found["expected"], 16) ^ int(found["got"], 16) == 1 << bit % width
        assert (result["replay"], result["operands_intact"]) == (0, True)
        assert judged(CHECKS[dtype], result=result) == ["wrong elements"]


@pytest.mark.parametrize(("call", "args"), [*EXACT, BURN])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_a_flip_in_the_planted_run_spoils_the_self_test(worker, call, args, number):
    order = {"at": [number], "how": "flip", "row": 12, "column": 34, "bit": 3}
    result = worker.result(call, order, **args, plant="flip")
    assert worker.counted() > number
    assert result["found"] != result["planted"]


@pytest.mark.parametrize(("call", "args"), EXACT)
def test_a_flip_of_the_very_bit_that_is_planted_spoils_the_self_test(worker, call, args):
    (first, *_) = worker.result(call, **args, plant="flip")["planted"]
    order = {
        "at": [first["product"]],
        "how": "flip",
        "row": first["row"],
        "column": first["column"],
        "bit": first["bits"][0],
    }
    result = worker.result(call, order, **args, plant="flip")
    assert result["found"] != result["planted"]


def test_a_fault_in_every_product_is_wrong_again_in_every_repeat(worker):
    order = {"at": ["all"], "how": "flip", "row": 1, "column": 2, "bit": 30}
    result = worker.result("gemm:exact", order, dtype="float32")
    assert result["replay"] == 3
    assert result["wrong"] == result["products"]


@pytest.mark.parametrize(("call", "args"), [*EXACT, BURN])
def test_an_output_left_over_from_the_product_before_is_no_answer(worker, call, args):
    # One family alternates with itself where torch has no wider output, two where it has.
    for number in (1, 2):
        result = worker.result(call, {"at": [number], "how": "stale"}, **args)
        assert result["wrong"] > 0 or result["products"] <= number


def test_an_unknown_format_or_plant_is_refused(worker):
    reply = worker.run("gemm:exact", dtype="float8")
    assert isinstance(reply, Raised)
    assert "float8" in reply.message
    for call, args in (*EXACT[:1], BURN):
        assert isinstance(worker.run(call, **args, plant="fire"), Raised)


@pytest.mark.parametrize("number", [0, 5])
def test_a_flip_in_any_product_of_a_burn_in_is_found(worker, number):
    order = {"at": [number], "how": "flip", "row": 700, "column": 3, "bit": 31}
    result = worker.result("burn:burn", order)
    (found,) = result["found"]
    assert (found["row"], found["column"], found["bits"]) == (700, 3, [31])
    assert judged(burnin.test_exact, result=result) == ["wrong elements"]
    order = {**order, "again": True}
    slow = worker.result("burn:burn", order, plant="slow")
    assert slow["found"] != slow["planted"]


def test_a_burn_in_finds_its_planted_bit_and_its_planted_stall(worker):
    flipped = worker.result("burn:burn", plant="flip")
    assert flipped["found"] == flipped["planted"] != []
    assert judged(burnin.test_exact, result=flipped) == ["wrong elements"]
    slow = worker.result("burn:burn", plant="slow")
    seen = watched([{"mhz": 2000.0}], since={}, seconds=1.0, silence_s=0.5)
    slow = {**slow, "telemetry": seen}
    assert slow["found"] == slow["planted"] == [{"window": slow["slow"][0]}]
    assert judged(pace.test_throughput, result=slow) == ["slowest twentieth of the median"]


def test_a_burn_in_lasts_as_long_as_asked_and_says_how_far_it_is(worker):
    worker.messages.clear()
    asked = time.monotonic()
    result = worker.result("burn:burn", seconds=1.2)
    begun, ended = result["loaded_between"]
    assert asked < begun < ended < time.monotonic()
    # Operands were made and tried before, which is no load.
    assert 1.2 <= result["loaded_s"] == pytest.approx(ended - begun, abs=0.1)
    assert len(result["windows"]) >= 2
    assert result["median_tflops"] == statistics.median(result["windows"])
    told = [content for _, kind, content in worker.messages if kind == "progress"]
    assert told
    assert all(0 <= what["done"] <= 1 and what["tflops"] > 0 for what in told)


def test_a_percentile_is_a_value_that_was_measured():
    values = [float(n) for n in range(40, 0, -1)]
    assert [percentile(values, p) for p in (5, 50, 100)] == [2.0, 20.0, 40.0]
    assert percentile([3.0], 5) == 3.0
