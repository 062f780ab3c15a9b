"""The shipped specs: each number has a source, none is a slip, and the right one is chosen."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from nodeproof import physics, provenance, spec, spec_choice
from nodeproof.cli.options import suites
from nodeproof.plugin.chosen import chosen
from nodeproof.spec import NO_SPEC, SpecError
from nodeproof.spec_choice import Kind, choose

H100, A100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA A10G"
NAMES = spec.shipped_names()
SIZES = [size for name in NAMES for size in spec.load(name).instances]
COUNT, EFA, LINKS = "node.devices.count", "node.efa.devices", "gpu.nvlink.links"
AZURE = "7783-7084-3265-9085-8269-3286-77"
SOUND = {"unit": "GPUs", "source": "a page", "date": tomllib.loads("d = 2026-01-01")["d"], "n": 0}


def folder():
    return resources.files("nodeproof").joinpath("specs")


# --- what they say ---------------------------------------------------------------------------

# GPUs, EFA devices and NVLinks by instance type, as Amazon publishes them.
AMAZON = {
    "p4d.24xlarge": (8, 4, 12),
    "p4de.24xlarge": (8, 4, 12),
    "p5.4xlarge": (1, 1, None),
    "p5.48xlarge": (8, 32, 18),
    "p5e.48xlarge": (8, 32, 18),
    "p5en.48xlarge": (8, 16, 18),
    "p6-b200.48xlarge": (8, 8, 18),
    "p6-b300.48xlarge": (8, 16, 18),
    "g5.xlarge": (1, 0, None),
    "g5.12xlarge": (4, 1, None),
    "g5.48xlarge": (8, 1, None),
    "g6.8xlarge": (1, 1, None),
    "g6.48xlarge": (8, 1, None),
    "g6e.24xlarge": (4, 2, None),
    "g6e.48xlarge": (8, 4, None),
}


@pytest.mark.parametrize("size", AMAZON)
def test_an_instance_type_has_the_parts_that_are_sold(size):
    limits = spec.load(size).limits
    gpus, efa, links = AMAZON[size]
    assert limits[COUNT]["expected"] == gpus
    assert limits[EFA]["expected"] == efa
    assert limits.get(LINKS, {}).get("active") == links


# Ports of the cluster network and their least rate (Gb/s, 0 where no source says one). Azure's are
# those of Azure/azurehpc-health-checks, Oracle's those of oracle-quickstart/oci-hpc-oke.
PORTS = {
    "azure-nd-a100-v4": (8, 200),
    "azure-ndm-a100-v4": (8, 200),
    "azure-nd-h100-v5": (8, 400),
    "azure-nd-h200-v5": (8, 400),
    "oci-a100-40": (16, 100),
    "oci-a100-80": (16, 100),
    "oci-h100": (16, 0),
    "oci-h200": (8, 0),
    "oci-b200": (8, 0),
}


@pytest.mark.parametrize("name", PORTS)
def test_a_machine_of_a_cloud_has_the_ports_of_its_cluster_network(name):
    limits = spec.load(name).limits["node.infiniband.ports"]
    assert (limits["expected"], limits.get("gbs", 0)) == PORTS[name]
    named = limits.get("names", "").split()
    assert len(set(named)) == len(named)
    assert len(named) in (0, limits["expected"])
    # A rate tells a data port from one to the outside; without a rate only its name does.
    assert named or limits["gbs"]


@pytest.mark.parametrize("name", [*NAMES, *SIZES])
def test_a_spec_fits_the_checks_and_has_the_name_it_is_asked_for_by(name):
    declared = suites()
    loaded = spec.load(name)
    assert loaded.name == name
    spec.known(loaded, declared)
    for check in loaded.limits:
        spec.limits_for(loaded, check, declared[check].limits)


@pytest.mark.parametrize("name", [n for n in NAMES if n != spec.REHEARSAL])
def test_a_spec_expects_gpus_of_products_that_are_known(name):
    loaded = spec.load(name)
    assert loaded.products
    for each in [spec.load(size) for size in loaded.instances] or [loaded]:
        assert each.limits[COUNT]["expected"] >= 1


@pytest.mark.parametrize("name", [*NAMES, *SIZES])
def test_a_product_with_stacked_memory_has_to_have_ecc_on(name):
    loaded = spec.load(name)
    stacked = any(word in str(loaded.products) for word in ("A100", "H100", "H200", "B200", "B300"))
    assert loaded.limits.get("gpu.ecc.mode") == ({"on": True} if stacked else None)


def test_sizes_of_a_family_are_told_apart_by_their_digest():
    digests = {spec.load(name).digest for name in [*NAMES, *SIZES]}
    assert len(digests) == len(NAMES) + len(SIZES)


def test_a_size_that_is_not_sold_is_no_spec():
    with pytest.raises(SpecError, match=r"'p5.2xlarge'; did you mean p5.4xlarge or "):
        spec.load("p5.2xlarge")


# --- where the numbers come from -------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_without_the_source_of_one_number_is_not_shipped(name):
    """Each number in turn loses its provenance."""
    table = tomllib.loads(folder().joinpath(f"{name}.toml").read_text("utf-8"))
    limits = {k: v for k, v in table.items() if "." in k}
    sized = list(table.get("instance", {}).values())
    numbers = {
        (check, limit)
        for one in [limits, *sized]
        for check, given in one.items()
        for limit, value in given.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert numbers
    for check, limit in numbers:
        sources = {c: dict(entries) for c, entries in table["provenance"].items()}
        del sources[check][limit]
        found = [why for one in [limits, *sized] for why in provenance.gaps(one, sources)]
        assert found
        assert all(why.startswith(f"{check}: {limit} = ") for why in found)


def test_the_loader_refuses_a_shipped_spec_with_such_a_gap(tmp_path, monkeypatch):
    """The same bytes are good enough for a site, and not for the package."""
    text = '["node.devices.count"]\nexpected = 8\n'
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/mine.toml").write_text(text)
    monkeypatch.setattr(spec.resources, "files", lambda _package: tmp_path)
    with pytest.raises(
        SpecError, match=r"mine\.toml: node.devices.count: expected = 8 has no prov"
    ):
        spec.load("mine")
    assert spec.load(str(tmp_path / "specs/mine.toml")).limits[COUNT] == {"expected": 8}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unit": ""}, "unit is missing"),
        ({"source": None}, "source is missing"),
        ({"date": "2026"}, "date = '2026' is of the wrong kind"),
        ({"n": True}, "n = True is of the wrong kind"),
        ({"n": -1}, "n = -1 is below 0"),
        ({"derived": 1}, "derived = 1 is neither"),
        ({"sorce": "a"}, "no 'sorce'"),
    ],
)
def test_a_provenance_is_whole_or_said_to_be_broken(change, says):
    entry = {k: v for k, v in {**SOUND, **change}.items() if v is not None}
    assert any(says in why for why in provenance.faults({COUNT: {"expected": entry}}))
    assert provenance.faults({COUNT: {"expected": SOUND}}) == []


@pytest.mark.parametrize("sources", [{COUNT: 5}, {COUNT: {"expected": 5}}])
def test_a_provenance_that_is_no_table_is_said_to_be_broken(sources):
    assert provenance.faults(sources)


# --- specs of a site -------------------------------------------------------------------------

SITE = 'name = "a"\nproducts = ["NVIDIA H100 80GB HBM3"]\n["node.transfers.pairs"]\npair_gbs = '


def site(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    return str(path)


def test_a_site_may_leave_the_provenance_out(tmp_path):
    assert spec.load(site(tmp_path, SITE + "300")).limits["node.transfers.pairs"] == {
        "pair_gbs": 300
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SITE + "4500", "4500 is more than what NVIDIA H100 80GB HBM3 can do"),
        (SITE + "30", "30 is next to nothing"),
        ('products = ["NVIDIA H100 80GB HBM4"]\n', "near are NVIDIA H100 80GB HBM3"),
        ("products = 5\n", "line 1: products is not a list"),
        ('machines = [5]\nname = "a"\n', "line 1: machines is not a list"),
        ('[instance."p5.48xlarge"]\n"node.devices.count".expected = 8\n', "a file of its own"),
        ("instance = 5\n", "'instance' holds tables"),
        ("provenance = 5\n", "'provenance' holds tables"),
        ('[provenance]\n"node.devices.count" = 5\n', "'provenance' holds tables"),
        ('[provenance."a.b.c"]\nx = {unit = "s"}\n', "provenance of a.b.c: x: source is missing"),
    ],
)
def test_a_slip_of_a_site_is_refused_in_words(tmp_path, text, says):
    with pytest.raises(SpecError, match=r"site\.toml") as caught:
        spec.load(site(tmp_path, text))
    assert says in str(caught.value)


# --- which one -------------------------------------------------------------------------------

CHOICES = {
    # firmware's name, asset tag, GPUs, how many; the spec
    "Amazon": (("p5.48xlarge", "Amazon EC2", [H100] * 8, 8), "p5.48xlarge"),
    "Amazon with a GPU lost": (("p5.48xlarge", "Amazon EC2", [H100] * 7, 7), "p5.48xlarge"),
    "Amazon without a driver": (("g6e.12xlarge", "Amazon EC2", [], 0), "g6e.12xlarge"),
    "a size that nobody described": (("p5.2xlarge", "", [H100], 1), None),
    "a new size of a known GPU": (("g5.9xlarge", "", [A10G], 1), None),
    "Azure": (("Virtual Machine", AZURE, [H100] * 8, 8), "azure-nd-h100-v5"),
    "Azure with a GPU lost": (("Virtual Machine", AZURE, [H100] * 7, 7), "azure-nd-h100-v5"),
    "another Hyper-V": (("Virtual Machine", "", [H100] * 7, 7), None),
    "Google": (("Google Compute Engine", "", [A100] * 16, 16), "a2-megagpu-16g"),
    "Google with one GPU": (("Google Compute Engine", "", [A100], 1), "a2-highgpu-1g"),
    "Google with a GPU lost": (("Google Compute Engine", "", [A100] * 3, 3), "a2-highgpu-4g"),
    "Google with more than is sold": (("Google Compute Engine", "", [A100] * 17, 17), None),
    "Oracle": (("ORACLE SERVER", "OracleCloud.com", [A100] * 8, 8), "oci-a100-40"),
    "a server of any make": (("PowerEdge XE9680", "", [H100] * 8, 8), "hgx-h100"),
    "the same, given once": (("PowerEdge XE9680", "", [H100], 8), "hgx-h100"),
    "a server with one GPU less": (("PowerEdge XE9680", "", [H100] * 7, 7), None),
    "two kinds of GPUs": (("PowerEdge XE9680", "", [H100, A100], 8), None),
    "a GPU that nobody knows": (("", "", ["NVIDIA device 9999"], 8), None),
    "nothing": (("", "", [], 0), None),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_spec_that_fits_is_chosen(name):
    (machine, tag, products, count), wanted = CHOICES[name]
    choice = choose(machine, products, count, asset_tag=tag)
    assert choice.spec_name == wanted
    assert choice.why
    if wanted:
        assert spec.load(wanted).name == wanted


@pytest.mark.parametrize("name", ["Azure with a GPU lost", "Google with a GPU lost"])
def test_a_missing_gpu_is_said(name):
    (machine, tag, products, count), _ = CHOICES[name]
    assert "GPUs are missing" in choose(machine, products, count, asset_tag=tag).why


def test_an_unknown_machine_is_told_what_comes_near():
    why = choose("PowerEdge XE9680", [H100] * 7, 7).why
    assert "hgx-h100 has 8" in why
    assert "--spec" in why


def test_the_choice_is_between_the_kinds_that_are_given():
    mine = Kind(name="mine", products=(H100,), machines=("rack",), gpus=2, sized=False)
    assert choose("rack", [H100] * 2, 2, kinds=[mine]).spec_name == "mine"
    assert choose("p5.48xlarge", [H100] * 8, 8, kinds=[mine]).spec_name is None


# --- the choice of a run ---------------------------------------------------------------------


def machine(root, *, product="", tag="", devices=()):
    """A node's /sys, as firmware and bus show it."""
    dmi = root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_name").write_text(product + "\n")
    (dmi / "chassis_asset_tag").write_text(tag + "\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for number, device in enumerate(devices):
        slot = bus / f"0000:{number + 16:02x}:00.0"
        slot.mkdir()
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", device)):
            (slot / name).write_text(text + "\n")
    return root


def test_a_run_takes_the_spec_of_its_machine_and_says_why(tmp_path):
    root = machine(tmp_path, product="Google Compute Engine", devices=["0x2330"] * 8)
    told = chosen("auto", host_root=root, rehearsal=False)
    assert told.limits[COUNT]["expected"] == 8
    assert told.summary()["name"].startswith("a3-")
    assert f"auto: 8 x {H100} in Google Compute Engine" in told.summary()["source"]


def test_a_run_on_an_unknown_machine_says_so_and_has_no_spec(tmp_path):
    root = machine(tmp_path, product="Desk", devices=["0x9999"])
    told = chosen("auto", host_root=root, rehearsal=False)
    assert (told.name, dict(told.limits), told.digest) == ("", {}, NO_SPEC.digest)
    assert "NVIDIA device 9999 in Desk is in no shipped spec" in told.summary()["source"]


def test_a_machine_without_a_bus_is_known_by_its_firmware_alone(tmp_path):
    machine(tmp_path, product="p5en.48xlarge")
    (tmp_path / "sys/bus/pci/devices").rmdir()
    assert chosen("auto", host_root=tmp_path, rehearsal=False).name == "p5en.48xlarge"
    assert "unknown" in chosen("auto", host_root=tmp_path / "no", rehearsal=False).source


def test_nothing_fits_a_rehearsal(tmp_path):
    root = machine(tmp_path, product="p5.48xlarge")
    assert chosen("auto", host_root=root, rehearsal=True) is NO_SPEC
    assert chosen("", host_root=root, rehearsal=False) is NO_SPEC
    assert chosen("p4d.24xlarge", host_root=root, rehearsal=False).name == "p4d.24xlarge"


def test_every_spec_has_gpus_that_the_bus_can_name():
    """Otherwise nothing would ever be chosen by them."""
    on_bus = {name for product in physics.shipped() for name in spec_choice.of_bus(product.pci_ids)}
    assert {gpu for kind in spec_choice.shipped() for gpu in kind.products} <= on_bus


def test_gpus_are_known_by_their_device_ids():
    assert spec_choice.of_bus([0x20B0, 0x2330, 0x1234]) == [A100, H100, "NVIDIA device 1234"]
    assert spec_choice.of_bus([0x31C2, 0x3182]) == ["NVIDIA GB300", "NVIDIA B300 SXM6 AC"]


def test_a_device_id_that_two_products_share_names_neither():
    assert spec_choice.of_bus([0x25B6]) == ["NVIDIA device 25b6"]
