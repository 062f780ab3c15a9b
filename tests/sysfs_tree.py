"""Machines made of files: /sys as the kernel lays it out, with links and all, by instance type."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeproof.child import Answer, Call, Pool

# EFA devices and their PCI device id, GPUs and theirs.
INSTANCES = {
    "p4d.24xlarge": (4, "0xefa1", 8, "0x20b0"),
    "p5.48xlarge": (32, "0xefa2", 8, "0x2330"),
    "p5e.48xlarge": (32, "0xefa2", 8, "0x2335"),
    "p5en.48xlarge": (16, "0xefa3", 8, "0x2335"),
    "p6-b200.48xlarge": (8, "0xefa3", 8, "0x2901"),
    "g5.48xlarge": (1, "0xefa1", 8, "0x2237"),
    "g6e.48xlarge": (4, "0xefa2", 8, "0x26b9"),
    "dgx-h100": (0, "", 8, "0x2330"),  # with ConnectX-7, see `dgx`
}
EFA_PORT = {
    "tx_bytes": 1000,
    "rx_bytes": 1000,
    "rx_drops": 0,
    "rdma_read_wr_err": 0,
    "rdma_write_wr_err": 0,
    "retrans_pkts": 0,
    "lifespan": 12,
}
IB_PORT = {
    "symbol_error": 0,
    "link_error_recovery": 0,
    "link_downed": 0,
    "local_link_integrity_errors": 0,
    "excessive_buffer_overrun_errors": 0,
    "port_rcv_errors": 0,
    "port_xmit_discards": 0,
    "port_xmit_wait": 7110482206,
}


class Machine:
    """A node under `root`; each method adds one thing to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bus/pci/devices", "class/net"):
            (root / "sys" / name).mkdir(parents=True)
        self.interface("lo", kind=772, losses=0)

    def put(self, path: str, text: object) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def function(
        self, address, *, vendor, device, kind="0x020000", driver="", head=b"\x0f\x1d\xa2\xef"
    ):
        """One PCI function; returns its folder."""
        folder = f"sys/devices/pci0000:00/{address}"
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            self.put(f"{folder}/{name}", text)
        self.put(f"{folder}/numa_node", 0)
        (self.root / folder / "config").write_bytes(head + bytes(60))
        self.link(f"sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")
        if driver:
            self.link(f"{folder}/driver", f"../../../bus/pci/drivers/{driver}")
        return folder

    def rdma(self, address, name, *, uverbs=True):
        """The RDMA device of a PCI function (or one of software, without); returns its folder."""
        if address is None:
            folder, target = f"sys/devices/virtual/infiniband/{name}", ""
        else:
            folder = f"sys/devices/pci0000:00/{address}/infiniband/{name}"
            target = f"../../../{address}"
        (self.root / folder / "ports").mkdir(parents=True)
        if target:
            self.link(f"{folder}/device", target)
        self.link(f"sys/class/infiniband/{name}", f"../../{folder.removeprefix('sys/')}")
        if uverbs:
            self.char("infiniband_verbs", "uverbs", name)
        return folder

    def char(self, group, kind, name, port=None):
        """A device file of an RDMA device in its class."""
        folder = self.root / "sys/class" / group
        number = len(list(folder.glob(f"{kind}*"))) if folder.is_dir() else 0
        self.put(f"sys/class/{group}/{kind}{number}/ibdev", name)
        if port is not None:
            self.put(f"sys/class/{group}/{kind}{number}/port", port)

    def efa(self, address, *, name="", device="0xefa2", driver="efa", counters=EFA_PORT, **how):
        """An EFA device; without a `name` it is on the bus alone."""
        head = how.pop("head", b"\x0f\x1d\xa2\xef")
        self.function(address, vendor="0x1d0f", device=device, driver=driver, head=head)
        if not name:
            return ""
        folder = self.rdma(address, name, **how)
        port = f"{folder}/ports/1"
        self.port(port, state="4: ACTIVE", physical="5: LinkUp", rate="100 Gb/sec (4X EDR)")
        self.put(f"{port}/link_layer", "Unknown")
        for counter, value in counters.items():
            self.put(f"{port}/hw_counters/{counter}", value)
        self.put(f"{folder}/hw_counters/cmds_err", 0)
        return folder

    def port(self, folder, *, state, physical, rate):
        self.put(f"{folder}/state", state)
        self.put(f"{folder}/phys_state", physical)
        self.put(f"{folder}/rate", rate)

    def mellanox(
        self,
        address,
        name,
        *,
        state="4: ACTIVE",
        physical="5: LinkUp",
        rate="400 Gb/sec (4X NDR)",
        layer="InfiniBand",
        interface="",
        operstate="up",
        gid="RoCE v2",
        counters=IB_PORT,
        issm=True,
        uverbs=True,
    ):
        """A ConnectX adapter with one port; returns the folder of the port."""
        kind = "0x020700" if layer == "InfiniBand" else "0x020000"
        parent = self.function(
            address,
            vendor="0x15b3",
            device="0x1021",
            kind=kind,
            driver="mlx5_core",
            head=b"\xb3\x15\x21\x10",
        )
        folder = f"{self.rdma(address, name, uverbs=uverbs)}/ports/1"
        self.port(folder, state=state, physical=physical, rate=rate)
        self.put(f"{folder}/link_layer", layer)
        self.put(f"{folder}/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001" if gid else "0:0")
        self.put(f"{folder}/gid_attrs/types/0", gid or "IB/RoCE v1")
        for counter, value in counters.items():
            self.put(f"{folder}/counters/{counter}", value)
        self.put(f"{folder}/hw_counters/out_of_sequence", 0)
        self.put(f"{folder}/hw_counters/lifespan", 12)
        if layer == "InfiniBand" and issm:
            self.char("infiniband_mad", "issm", name, 1)
            self.char("infiniband_mad", "umad", name, 1)
        if interface:
            kind = 32 if layer == "InfiniBand" else 1
            self.interface(interface, address, parent=parent, kind=kind, operstate=operstate)
        return folder

    def interface(
        self,
        name,
        address=None,
        *,
        parent="",
        kind=1,
        flags="0x1003",
        carrier=1,
        speed=400000,
        operstate="up",
        losses=1,
    ):
        """A network interface; `carrier` and `speed` None: reading them is refused, as when off."""
        folder = f"{parent}/net/{name}" if parent else f"sys/devices/virtual/net/{name}"
        self.put(f"{folder}/type", kind)
        self.put(f"{folder}/flags", flags)
        self.put(f"{folder}/operstate", operstate)
        self.put(f"{folder}/carrier_down_count", losses)
        for attribute, value in (("carrier", carrier), ("speed", speed)):
            if value is not None:
                self.put(f"{folder}/{attribute}", value)
        if address:
            self.link(f"{folder}/device", f"../../../{address}")
        self.link(f"sys/class/net/{name}", f"../../{folder.removeprefix('sys/')}")
        return folder

    def huge_pages(self, free, *, kib=2048):
        self.put(f"sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages", free)


def instance(root: Path, kind: str, *, missing_on_bus=0, missing_driver=0) -> Machine:
    """A machine of this instance type, healthy but for what is said to be missing."""
    efa, device, gpus, gpu = INSTANCES[kind]
    machine = Machine(root)
    machine.put("sys/class/dmi/id/product_name", kind)
    for n in range(gpus):
        head = b"\xde\x10" + int(gpu, 16).to_bytes(2, "little")
        address = f"0000:{0x53 + 4 * n:02x}:00.0"
        machine.function(
            address, vendor="0x10de", device=gpu, kind="0x030200", driver="nvidia", head=head
        )
    for n in range(efa - missing_on_bus):
        address = efa_address(n)
        alone = n < missing_driver
        name = "" if alone else f"rdmap{0x40 + n}s0"
        counters = {} if n else EFA_PORT  # one is enough to tell them by
        driver = "" if alone else "efa"
        machine.efa(address, name=name, device=device, driver=driver, counters=counters)
    machine.huge_pages(2560)
    return machine


def efa_address(number: int) -> str:
    return f"0000:{0x80 + number:02x}:00.0"


def dgx(root: Path, *, ports=8, **last) -> Machine:
    """Eight InfiniBand ports of data as on a DGX H100, and two for storage; `last` is of mlx5_7."""
    machine = Machine(root)
    for n in range(ports):
        machine.mellanox(f"0000:{0x18 + 8 * n:02x}:00.0", f"mlx5_{n}", **(last if n == 7 else {}))
    for n in (8, 9):
        machine.mellanox(
            f"0000:{0xC0 + n:02x}:00.0", f"mlx5_{n}", rate="200 Gb/sec (4X HDR)", layer="Ethernet"
        )
    return machine


class Worker:
    """Calls work functions in processes of their own, as a run does."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[str, str, dict[str, object]]] = []
        self._pool = Pool(
            ends=time.monotonic() + 240,
            logs=folder,
            listen=lambda worker, kind, content: self.heard.append((worker, kind, dict(content))),
        )
        self._names: dict[str, str] = {}

    def run(self, call, root, *, path="", deadline_s=30.0, **args):
        """What became of a call on the machine under `root`, with `path` ahead of PATH."""
        if path not in self._names:
            self._names[path] = f"w{len(self._names)}"
            self._pool.add(self._names[path], {"PATH": f"{path}:/usr/bin:/bin"})
        name = self._names[path]
        context = {
            "device_kind": "node",
            "device_id": "node-1",
            "device_label": "node-1",
            "torch_device": "",
            "threads": 1,
            "peers": 1,
            "profile": "quick",
            "seed": 7,
            "host_root": str(root),
            "group": None,
        }
        calls = {name: Call(call=call, args=args, context=context)}
        return self._pool.run(calls, deadline_s=deadline_s)[name]

    def answer(self, call, root, **how):
        reply = self.run(call, root, **how)
        assert isinstance(reply, Answer), reply
        return dict(reply.result)

    def close(self) -> None:
        self._pool.close(grace_s=0.5)


@contextmanager
def working(folder: Path) -> Iterator[Worker]:
    worker = Worker(folder)
    yield worker
    worker.close()


def tool(folder: Path, name: str, script: str) -> str:
    """A program of this name that does what the shell script says; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(folder)
