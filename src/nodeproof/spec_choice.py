"""Which spec a node is held against, from what its firmware and its bus say of it.

The name of the instance type decides where the firmware gives one (Amazon EC2). Elsewhere the
firmware names only the platform, and GPU and count tell its sizes apart. A machine that nobody
described is judged on what can be known of any machine, and the run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nodeproof import physics, spec
from nodeproof.spec import Spec

AUTO = "auto"  # the word for a choice, where a spec is named
_COUNT = ("node.devices.count", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The spec to load, `None` where no shipped one fits, and the reason in one sentence."""

    spec_name: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of node that a shipped spec describes."""

    name: str  # to load it by
    products: tuple[str, ...]
    machines: tuple[str, ...]  # none: any machine
    gpus: int | None
    sized: bool  # its name is an instance type


def choose(
    instance_type: str,
    products: Sequence[str],
    count: int,
    *,
    asset_tag: str = "",
    kinds: Iterable[Kind] | None = None,
) -> Choice:
    """Choose for a node that its firmware calls `instance_type`, with `count` GPUs.

    `products` are the names of its GPUs, each once or once a GPU, as NVML gives them. `asset_tag`
    is that of its chassis, by which Azure and Oracle can be told. `kinds` are those to choose from:
    the shipped ones.

    On a platform that sells certain counts, another one is the next larger size with GPUs missing.
    A bare baseboard is only taken for one with exactly its GPUs: fewer may be a partition.
    """
    known = shipped() if kinds is None else tuple(kinds)
    says = instance_type.strip()
    for kind in known:
        if kind.sized and kind.name == says:
            return Choice(spec_name=kind.name, why=f"the firmware says {says}")
    different = sorted(set(products))
    if not different or count < 1:
        return Choice(spec_name=None, why=f"{says or 'the machine'} is unknown and shows no GPU")
    seen = f"{count} x {', '.join(different)} in {says or 'a machine without a name'}"
    if len(different) > 1:
        return Choice(spec_name=None, why=f"{seen}: no shipped spec has GPUs of several kinds")
    fitting = [kind for kind in known if different[0] in kind.products and kind.gpus]
    at_home = [kind for kind in fitting if {says, asset_tag.strip()} & set(kind.machines)]
    enough = [kind for kind in at_home if (kind.gpus or 0) >= count]
    if enough:
        chosen = min(enough, key=lambda kind: kind.gpus or 0)
        short = "" if chosen.gpus == count else f", which has {chosen.gpus}: GPUs are missing"
        return Choice(spec_name=chosen.name, why=f"{seen} is {chosen.name}{short}")
    bare = [kind for kind in fitting if not kind.machines and not kind.sized]
    equal = [kind for kind in bare if kind.gpus == count]
    if equal:
        return Choice(spec_name=equal[-1].name, why=f"{seen}: chosen by GPU and count")
    near = ", ".join(f"{kind.name} has {kind.gpus}" for kind in at_home or bare)
    hint = f" ({near}); name the spec with --spec if it is one" if near else ""
    return Choice(spec_name=None, why=f"{seen} is in no shipped spec{hint}")


def of_bus(device_ids: Iterable[int]) -> list[str]:
    """Names of GPUs by their PCI device ids; one that is in no catalogue is named by its id.

    The bus shows a GPU before any driver is loaded, and one that the driver lost.
    """
    names = {each: product.names[0] for product in physics.shipped() for each in product.pci_ids}
    return [names.get(device, f"NVIDIA device {device:04x}") for device in device_ids]


@lru_cache(maxsize=1)
def shipped() -> tuple[Kind, ...]:
    """Every kind of node of the shipped specs, a family by its sizes.

    Of several that ask for the same GPUs on any machine, the last is the one that asks for least:
    an HGX baseboard, and not the DGX that is built around one.
    """
    found: list[Kind] = []
    for name in spec.shipped_names():
        loaded = spec.load(name)
        sizes = [spec.load(size) for size in loaded.instances]
        found += [_kind(each, sized=bool(sizes)) for each in sizes or [loaded]]
    return tuple(kind for kind in found if kind.products)


def _kind(loaded: Spec, *, sized: bool) -> Kind:
    check, limit = _COUNT
    gpus = loaded.limits.get(check, {}).get(limit)
    return Kind(
        name=loaded.name,
        products=loaded.products,
        machines=loaded.machines,
        gpus=gpus if isinstance(gpus, int) else None,
        sized=sized,
    )
