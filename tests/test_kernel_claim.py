"""How much of a GPU's memory a test takes, by a driver that gives so many bytes and no more."""

from __future__ import annotations

import math
import types
import weakref
from pathlib import Path

import pytest
import torch

from nodeproof.acceptance import test_memory as memory
from nodeproof.kernels import march, neighbours
from nodeproof.kernels.claim import claim
from nodeproof.kernels.memory import words_of_block
from nodeproof.model import Cause, Device, DeviceKind, Outcome
from nodeproof.worker import Context
from tests.standin.build import judged

MIB, GIB = 1 << 20, 1 << 30
CUDA = types.SimpleNamespace(type="cuda")
GPU = Device(kind=DeviceKind.GPU, id="GPU-1", label="gpu0")
DRIVER = 96 * MIB  # that has to stay free for it
EMPTY = torch.empty


class Given:
    """A driver that says how much is free, and gives it, or less."""

    def __init__(self, monkeypatch, free: int, gives: int | None = None) -> None:
        self.left = free if gives is None else gives
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, free + GIB // 2))

    def empty(self, count, *, dtype, device):
        assert device is CUDA
        size = count * dtype.itemsize
        if size > self.left:
            raise torch.OutOfMemoryError(f"tried to allocate {size / MIB:.0f} MiB")
        self.left -= size
        cells = EMPTY(count, dtype=dtype, device="meta")
        weakref.finalize(cells, self.back, size)
        return cells

    def back(self, size):
        self.left += size


def taken(work, free, share=0.97, **more):
    grain, spare = {
        "march": (march.values_of_digit("cuda", free) ** (march.DIGITS - 1), march.SPARE),
        "neighbours": (neighbours.GRAIN["cuda"], neighbours.SPARE),
        "fused": (words_of_block(CUDA, fused=True), 16 * words_of_block(CUDA, fused=True)),
        "torch": (words_of_block(CUDA, fused=False), 16 * words_of_block(CUDA, fused=False)),
    }[work]
    context = Context(
        device_kind="gpu", device_id="GPU-1", device_label="gpu0", torch_device="cuda:0",
        threads=1, peers=8, profile="gate", seed=7, host_root=Path("/"),
    )  # fmt: skip
    return claim(context, CUDA, gpu_share=share, block=grain, spare=spare, **more), grain, spare


@pytest.mark.parametrize("gib", [11.9, 14.6, 15.7, 21.9, 22.5, 23.6, 39.4, 47.5, 79.1, 139.8, 268])
@pytest.mark.parametrize("work", ["march", "neighbours", "fused", "torch"])
def test_the_whole_share_is_taken_of_every_size_and_no_block_more(monkeypatch, work, gib):
    free = int(gib * GIB)
    driver = Given(monkeypatch, free)
    had, grain, spare = taken(work, free)
    assert 0.97 <= had.facts()["share"] < 0.97 + grain * 8 / free
    assert had.bytes >= had.asked == int(free * 0.97)
    assert {piece.numel() % grain for piece in had.pieces} == {0}
    assert driver.left == free - had.bytes >= spare + DRIVER


@pytest.mark.parametrize("work", ["march", "neighbours", "fused"])
def test_so_it_is_of_small_cards(monkeypatch, work):
    Given(monkeypatch, 8 * GIB)
    assert taken(work, 8 * GIB)[0].facts()["share"] >= 0.97


def judgement(work, facts, planted=False):
    words = facts["bytes"] // 8
    turns, marches = 40, 11
    told = {
        "wrong": int(planted), "found": [], "planted": [], "strides": [], "rounds": 1, "held": 2,
        "compared": words * 5 * marches, "marches": marches, "programme": marches, "kept": turns,
        "turned": 2 * marches, "disturbed": 2 * words * turns, "reference_wrong": 0, "passes": 3,
        "held_s": 1.0, "gb_per_s": 1.0, **facts,
    }  # fmt: skip
    return judged(getattr(memory, f"test_{work}"), told, device=GPU)


@pytest.mark.parametrize("gives", [0.9699, 0.95, 0.5, 0.03])
@pytest.mark.parametrize("work", ["march", "neighbours", "fused"])
def test_a_gpu_that_gives_less_is_tested_as_far_as_it_does_and_is_no_pass(monkeypatch, work, gives):
    free = 24 * GIB
    driver = Given(monkeypatch, free, gives=int(free * gives))
    had, grain, spare = taken(work, free)
    # All that it gave, but for what is to be left and less than a block.
    assert spare <= driver.left < spare + grain * 8
    assert had.bytes == int(free * gives) - driver.left
    for check in ("pattern", "neighbours", "march", "hold"):
        told, broken = judgement(check, had.facts())
        assert list(broken) == ["tested of what was asked"]
        assert (told.outcome, told.cause) == (Outcome.FAIL, Cause.ENVIRONMENT)
        # A wrong word is one however much was tested.
        told, broken = judgement(check, had.facts(), planted=True)
        assert "wrong words" in broken
        assert told.cause is Cause.HARDWARE


@pytest.mark.parametrize("bytes_", [-1, 0, 1])
def test_the_share_is_bound_to_the_last_byte(bytes_):
    free = 16 * GIB
    asked = int(free * 0.97)
    facts = {
        "asked": asked,
        "bytes": asked + bytes_,
        "share": (asked + bytes_) / free,
        "share_of_total": 0.9,
        "free_of_total": 0.95,
    }
    for check in ("pattern", "neighbours", "march", "hold"):
        _, broken = judgement(check, facts)
        assert list(broken) == (["tested of what was asked"] if bytes_ < 0 else [])


@pytest.mark.parametrize(
    ("free", "gives"), [(24 * GIB, 150 * MIB), (24 * GIB, 0), (100 * MIB, None), (0, None)]
)
def test_a_gpu_that_gives_not_one_block_is_refused_with_a_sentence(monkeypatch, free, gives):
    driver = Given(monkeypatch, free, gives=gives)
    with pytest.raises(RuntimeError, match=r"GPU-1: .* MiB to test could not be had"):
        taken("march", free)
    assert driver.left == (free if gives is None else gives)


def test_a_planted_fault_takes_a_small_region(monkeypatch):
    Given(monkeypatch, 80 * GIB)
    had = taken("march", 80 * GIB, planting=True)[0]
    assert had.bytes == had.asked == 512 * MIB
    assert math.isclose(had.facts()["free_of_total"], 80 / 80.5)
