"""Which devices are to be judged: what NVML, CUDA and the PCI bus each say is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nodeproof.probes import cgroup, cpu, cuda, nvml, pci
from nodeproof.probes.tree import Tree, Unreadable
from nodeproof.worker import Context

CHOICES = ("auto", "cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bus:
    gpus: list[pci.Controller] | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Views:
    bus: _Bus
    by_nvml: nvml.View | None
    nvml_error: nvml.NvmlError | None
    by_cuda: cuda.CudaView | None
    cuda_error: cuda.CudaError | None

    @property
    def answered(self) -> bool:
        # CUDA that finds no GPU says the same where the driver isn't loaded: that is no answer.
        return self.by_nvml is not None or bool(self.by_cuda and self.by_cuda.gpus)


def enumerate_devices(context: Context, *, device: str, cpu_devices: int) -> dict[str, Any]:
    """Work function: the compute devices of this node.

    `device` is "cuda" or "auto" for the GPUs, "cpu" for `cpu_devices` logical devices of a
    rehearsal. Returns

    - `answered`: somebody who knows answered (NVML, or CUDA with at least one GPU); without that
      a short list proves nothing;
    - `devices`: `kind`, `id`, `label`, `facts` of each, GPUs in PCI order, whoever lists them (of
      a GPU that is cut into slices, the facts have `mig`);
    - `asked`: how many logical devices were asked for, `None` for GPUs;
    - `nvml`, `cuda`: the UUIDs each lists (of CUDA a slice counts as its GPU), or `None` with the reason in `nvml_says`, `cuda_says`;
    - `pci`: addresses of NVIDIA's GPUs on the bus, or `None` with the reason in `pci_says`;
      `off_bus`: those of them that no longer answer there;
    - `unanswered`: GPUs that NVML counts and that refused (`index`, `uuid`, `code`, `says`;
      `hidden` for a want of permission, `hardware` where the refusal speaks of the board);
    - `mig`: UUIDs with MIG on; `visible`: what the environment gives to this process;
    - `versions`: `driver`, `cuda`, `nvml`; `says`: one sentence for people.

    Raises `ValueError` for a device or a number that nobody has.
    """
    tree = Tree(root=context.host_root)
    return listing(context, tree, device=device, cpu_devices=cpu_devices)


def listing(context: Context, tree: Tree, *, device: str, cpu_devices: int) -> dict[str, Any]:
    """See `enumerate_devices`; reads through a tree of the caller's."""
    if device not in CHOICES:
        raise ValueError(f"device {device!r} is none of {', '.join(CHOICES)}")
    return _cpus(tree, cpu_devices) if device == "cpu" else _gpus(context, tree)


def _cpus(tree: Tree, cpu_devices: int) -> dict[str, Any]:
    if cpu_devices < 1:
        raise ValueError(f"{cpu_devices} CPU devices: a rehearsal needs at least one")
    usable = cpu.usable(cgroup.ceilings(tree))
    facts = {"product": cpu.model(tree), "threads": max(1, int(usable // cpu_devices))}
    bus = _bus(tree)
    not_asked = "not asked: the devices of this run are CPUs"
    return {
        "answered": True,
        "devices": [
            {"kind": "cpu", "id": f"cpu{n}", "label": f"cpu{n}", "facts": facts}
            for n in range(cpu_devices)
        ],
        "asked": cpu_devices,
        "nvml": None,
        "nvml_says": not_asked,
        "cuda": None,
        "cuda_says": not_asked,
        **_bus_keys(bus),
        "unanswered": [],
        "mig": [],
        "visible": _visible(),
        "versions": {"driver": None, "cuda": None, "nvml": None},
        "says": f"{cpu_devices} CPU devices of a rehearsal: {facts['product']}",
    }


def _gpus(context: Context, tree: Tree) -> dict[str, Any]:
    views = _look(context, tree)
    by_nvml, by_cuda = views.by_nvml, views.by_cuda
    return {
        "answered": views.answered,
        "devices": list(_devices(views)),
        "asked": None,
        "nvml": None if by_nvml is None else [g.uuid for g in by_nvml.gpus],
        "nvml_says": str(views.nvml_error or ""),
        "cuda": None if by_cuda is None else list(_by_cuda(views)),
        "cuda_says": str(views.cuda_error or ""),
        **_bus_keys(views.bus),
        "unanswered": [
            {
                **asdict(u),
                "hidden": u.code == nvml.NO_PERMISSION,
                "hardware": u.code in nvml.OF_THE_HARDWARE,
            }
            for u in (by_nvml.unanswered if by_nvml else ())
        ],
        "mig": [g.uuid for g in by_nvml.gpus if g.mig] if by_nvml else [],
        "visible": _visible(),
        "versions": {
            "driver": by_nvml.driver if by_nvml else None,
            "cuda": (by_cuda and by_cuda.version) or (by_nvml and by_nvml.cuda) or None,
            "nvml": by_nvml.nvml if by_nvml else None,
        },
        "says": _sentence(views),
    }


def _look(context: Context, tree: Tree) -> _Views:
    # Said before each step: where a driver hangs, this is the last thing the parent hears.
    context.progress(step="reading the PCI bus")
    bus = _bus(tree)
    by_nvml, nvml_error = None, None
    context.progress(step="asking NVML")
    try:
        with nvml.session(context.progress):
            by_nvml = nvml.view()
    except nvml.NvmlError as error:
        nvml_error = error
    by_cuda, cuda_error = None, None
    context.progress(step="asking CUDA")
    try:
        by_cuda = cuda.view()
    except cuda.CudaError as error:
        cuda_error = error
    return _Views(
        bus=bus,
        by_nvml=by_nvml,
        nvml_error=nvml_error,
        by_cuda=by_cuda,
        cuda_error=cuda_error,
    )


def _bus(tree: Tree) -> _Bus:
    try:
        return _Bus(gpus=pci.gpus(tree), says="")
    except Unreadable as error:
        return _Bus(gpus=None, says=str(error))


def _bus_keys(bus: _Bus) -> dict[str, Any]:
    return {
        "pci": None if bus.gpus is None else [c.address for c in bus.gpus],
        "pci_says": bus.says,
        "off_bus": [c.address for c in bus.gpus or () if c.present is False],
    }


def _by_cuda(views: _Views) -> dict[str, cuda.CudaGpu]:
    """What CUDA lists, by UUID of the whole GPU: of one with MIG on it names a slice instead."""
    cut = {g.pci: g.uuid for g in (views.by_nvml.gpus if views.by_nvml else ()) if g.mig}
    listed = views.by_cuda.gpus if views.by_cuda else ()
    return {cut.get(gpu.pci, gpu.uuid): gpu for gpu in listed}


def _devices(views: _Views) -> Iterator[dict[str, Any]]:
    """All GPUs that NVML or CUDA name: what only one of them lists must not go unjudged."""
    facts: dict[str, dict[str, Any]] = {}
    for uuid, gpu in _by_cuda(views).items():
        facts[uuid] = {"product": gpu.product, "pci": gpu.pci}
    for known in views.by_nvml.gpus if views.by_nvml else ():
        facts[known.uuid] = {
            "product": known.product or facts.get(known.uuid, {}).get("product"),
            "serial": known.serial,
            "vbios": known.vbios,
            "pci": known.pci,
            "memory_bytes": known.memory_bytes,
            "capability": known.capability,
            **({"mig": True} if known.mig else {}),
        }
    in_order = sorted(facts.items(), key=lambda item: (item[1]["pci"], item[0]))
    for number, (uuid, said) in enumerate(in_order):
        yield {"kind": "gpu", "id": uuid, "label": f"gpu{number}", "facts": said}


def _visible() -> dict[str, str | None]:
    """What the environment gives of the node's GPUs; an empty text is none of them."""
    names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    return {name: os.environ.get(name) for name in names}


def _sentence(views: _Views) -> str:
    cards = _cards(views.bus)
    if views.answered:
        listed = list(_devices(views))
        products = sorted({str(d["facts"]["product"]) for d in listed})
        driver = f", driver {views.by_nvml.driver}" if views.by_nvml else ""
        found = f"{len(listed)} GPUs ({', '.join(products)}){driver}" if listed else ""
        silent = [str(u.says) for u in views.by_nvml.unanswered] if views.by_nvml else []
        nothing = f"the driver answers and lists no GPU; {cards}"
        return "; ".join([found or nothing, *silent])
    if views.nvml_error and views.nvml_error.code not in nvml.NO_DRIVER:
        return f"the driver does not answer: {views.nvml_error}; {cards}"
    if not views.bus.gpus:
        why = views.nvml_error or views.cuda_error
        return f"no GPU: {cards}, and {why}; to rehearse on CPU devices give --device cpu"
    return f"{cards}, but {views.nvml_error}"


def _cards(bus: _Bus) -> str:
    if bus.gpus is None:
        return f"the PCI bus can't be read ({bus.says})"
    if not bus.gpus:
        return "no NVIDIA controller on the PCI bus"
    shown = ", ".join(c.address for c in bus.gpus)
    plural = "" if len(bus.gpus) == 1 else "s"
    return f"{len(bus.gpus)} NVIDIA controller{plural} on the PCI bus ({shown})"
