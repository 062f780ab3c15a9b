"""What no device can do, and what no threshold may therefore ask.

A floor above the theoretical peak rejects every node. A floor of a few hundredths of it (a slip of
a unit, a lost digit) accepts every node and looks like a check. Both are refused: a floor stands
between `LEAST` and 1 of the peak of its product, or it is a mistake.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Any

LEAST = 0.3  # of the peak; healthy devices reach 0.5 to 0.95 of it in every published figure


class Quantity(StrEnum):
    """What has a peak. Bandwidths in GB/s (decimal), one direction; operations in dense TFLOP/s."""

    MEMORY = "memory_gbs"
    COPY = "copy_gbs"  # inside a device: each byte is read and written
    NVLINK = "nvlink_gbs"
    REDUCTION = "reduction_gbs"  # bus bandwidth of an all-reduce inside a node
    PCIE = "pcie_gbs"
    BF16 = "bf16_tflops"
    FP16 = "fp16_tflops"
    TF32 = "tf32_tflops"
    FP8 = "fp8_tflops"
    INT8 = "int8_tflops"


# The limits of checks that have a physical ceiling. The pairs and the burn-in go by what their work
# moves and multiplies on a GPU (bf16); a limit that is missing here is not held against physics.
LIMITS: Mapping[tuple[str, str], Quantity] = {
    ("device.transfers.host", "h2d_gbs"): Quantity.PCIE,
    ("device.transfers.host", "d2h_gbs"): Quantity.PCIE,
    ("device.transfers.host", "d2d_gbs"): Quantity.COPY,
    ("node.collective.bandwidth", "all_reduce_gbs"): Quantity.REDUCTION,
    ("node.collective.bandwidth", "all_gather_gbs"): Quantity.NVLINK,
    ("node.collective.bandwidth", "reduce_scatter_gbs"): Quantity.NVLINK,
    ("node.collective.bandwidth", "all_to_all_gbs"): Quantity.NVLINK,
    ("node.collective.bandwidth", "sendrecv_gbs"): Quantity.NVLINK,
    ("node.collective.bandwidth", "broadcast_gbs"): Quantity.NVLINK,
    ("node.transfers.pairs", "pair_gbs"): Quantity.NVLINK,
    ("device.burnin.throughput", "median_tflops"): Quantity.BF16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A GPU as its maker describes it."""

    key: str
    names: tuple[str, ...]  # as NVML and CUDA give them
    pci_ids: frozenset[int]
    nvlinks: int | None
    ecc: bool | None  # whether its memory has ECC that can be on; `None` where nobody wrote it down
    reduces_in_switch: bool  # NVSwitch adds up on the way, so a rank sends its data once
    peaks: Mapping[str, float]
    source: str
    date: str

    def peak(self, quantity: Quantity) -> float | None:
        """The theoretical peak, `None` where the maker publishes none."""
        if quantity is Quantity.COPY:
            memory = self.peaks.get(Quantity.MEMORY)
            return None if memory is None else memory / 2
        if quantity is Quantity.REDUCTION:
            wire = self.peaks.get(Quantity.NVLINK)
            # 2(n-1)/n of the data at (n+1)/n of it per direction of the wire, for many ranks.
            return None if wire is None else wire * (2 if self.reduces_in_switch else 1)
        return self.peaks.get(quantity)


def refusal(quantity: Quantity, value: float, product: Product) -> str:
    """Why `value` can't be a floor of `quantity` for `product`; `""` where it can, or nobody knows.

    The floor of an all-reduce is held against the wire below, and against what a reducing switch
    could give above.
    """
    peak = product.peak(quantity)
    if peak is None:
        return ""
    base = product.peak(Quantity.NVLINK) if quantity is Quantity.REDUCTION else peak
    least = LEAST * (base or peak)
    if least <= value <= peak:
        return ""
    word = "more than" if value > peak else "next to nothing of"
    return (
        f"{value:g} is {word} what {product.names[0]} can do ({peak:g} at most, and a floor is at "
        f"least {least:g}; {product.source}): look at unit and digits"
    )


def slips(limits: Mapping[str, Mapping[str, Any]], products: Iterable[str]) -> list[str]:
    """Return what is wrong with the limits of a spec for GPUs of these names, one sentence each.

    A limit of 0 asks for nothing and is left alone. Raises `KeyError` for a name that is not in the
    catalogue: a spec that names a product is held against it or not used.
    """
    known = by_name()
    found = []
    for name in products:
        product = known[name]
        for (check, limit), quantity in LIMITS.items():
            value = limits.get(check, {}).get(limit)
            if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
                continue
            if why := refusal(quantity, value, product):
                found.append(f"{check}: {limit}: {why}")
    return found


def by_name() -> Mapping[str, Product]:
    """Every product of the shipped catalogue, by each of its names."""
    return {name: product for product in shipped() for name in product.names}


def for_players(name: str) -> bool:
    """Whether a GPU's name says that it is made for players: without ECC, its NVLink on a bridge.

    Of all other products that the catalogue does not know, nobody knows what they have.
    """
    return re.search(r"\b(GeForce|TITAN)\b", name, re.IGNORECASE) is not None


@lru_cache(maxsize=1)
def shipped() -> tuple[Product, ...]:
    """Read the catalogue that comes with the package."""
    return read(resources.files("nodeproof").joinpath("catalog/products.toml").read_text("utf-8"))


def read(text: str) -> tuple[Product, ...]:
    """Read products from TOML. Raises `ValueError` for a product without names, source or date.

    So too for one that is said to have ECC, or none, without a source of that.
    """
    products = []
    for key, table in tomllib.loads(text).items():
        for needed in ("names", "source", "date"):
            if not table.get(needed):
                msg = f"product {key}: no {needed}"
                raise ValueError(msg)
        if "ecc" in table and (not isinstance(table["ecc"], bool) or not table.get("ecc_source")):
            msg = f"product {key}: whether it has ECC is true or false, with an ecc_source"
            raise ValueError(msg)
        peaks = {q.value: float(table[q.value]) for q in Quantity if q.value in table}
        if not peaks or not all(peak > 0 for peak in peaks.values()):
            msg = f"product {key}: no peak, or one that is not above 0"
            raise ValueError(msg)
        products.append(
            Product(
                key=key,
                names=tuple(table["names"]),
                pci_ids=frozenset(table.get("pci_ids", ())),
                nvlinks=table.get("nvlinks"),
                ecc=table.get("ecc"),
                reduces_in_switch=table.get("reduces_in_switch", False),
                peaks=peaks,
                source=table["source"],
                date=str(table["date"]),
            )
        )
    return tuple(products)
