"""Devices: the bundled ones, and a user's own file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specmargin.catalog.entries import template
from specmargin.catalog.lookup import (
    _device_aliases,
    _device_tables,
    bundled_device,
    bundled_device_name,
    device_names,
    find_device,
)
from specmargin.catalog.machines import find_links
from specmargin.errors import CatalogError, HardwareError, InputError
from specmargin.hardware.device import read_device
from specmargin.hardware.schema import DeviceTable

MINE = """
title = "My card"
memory_bytes = 24e9
bandwidth_bytes_per_second = 1e12
operations_per_second = { bf16 = 100e12 }
link_bytes_per_second = 32e9
link_latency_seconds = 15e-6
gpus_per_node = 2
source = "its datasheet"
"""


@pytest.mark.parametrize("name", device_names())
def test_bundled_devices_hold_together(name: str) -> None:
    device = bundled_device(name)
    assert device == read_device(name, _device_tables()[name], name)  # checked, not only read
    assert device.source.detail
    rates = device.operations_per_second
    assert rates.get("fp4", 1e18) >= rates.get("fp8", 0) >= 0  # type: ignore[call-overload]
    ridge = device.rate("bf16") / device.bandwidth_bytes_per_second  # type: ignore[arg-type]
    assert 10 < ridge < 600  # FLOPs a byte: outside of this a digit is wrong


def test_the_issue_names_them() -> None:
    wanted = """a100 h100 h100-pcie h200 h20 l40s b200 b300 gb200 gb300 rtx-4090 rtx-5090 rtx-pro-6000 dgx-spark
    mi300x mi325x mi350x mi355x vr200 m3-ultra m4-max strix-halo
    rtx-3090 rtx-3090-ti rtx-a6000 rtx-6000-ada l4 a10 rx-7900-xtx r9700 v100
    gtx-1080-ti rtx-2080-super rtx-5060-ti arc-pro-b60 arc-pro-b70 m1-max m1-ultra m3-max m5-max"""
    assert set(wanted.split()) <= set(device_names())


@pytest.mark.parametrize("name", device_names())
def test_every_device_has_a_generation(name: str) -> None:
    """Engines choose kernels by it, so none may be missing."""
    assert re.fullmatch(r"sm_\d{2,3}|gfx[0-9a-f]{3,4}|bmg_g\d\d|apple\d{1,2}", bundled_device(name).architecture or "")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("RTX 4090", "rtx-4090"),
        ("nvidia h200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Ryzen AI Max+ 395", "strix-halo"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("Apple M4 Max", "m4-max"),
    ],
)
def test_full_names_as_drivers_write_them(given: str, name: str) -> None:
    assert find_device(given).name == name


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("NVIDIA A100-SXM4-40GB", r"could be a100 \(80 GB\)"),  # another memory is another GPU
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "unknown GPU"),
        ("RTX 4060", r"could be rtx-4060-ti"),
        ("RTX PRO", r"could be rtx-pro-6000 .*, rtx-pro-6000-workstation .*, rtx-pro-6000-max-q"),
        ("NVIDIA", "specmargin gpus"),
    ],
)
def test_names_of_another_or_of_several_gpus_are_refused(given: str, hint: str) -> None:
    with pytest.raises(CatalogError, match=hint):
        find_device(given)


def test_aliases() -> None:
    assert find_device("H100_SXM") == bundled_device("h100")
    assert find_device("gb10") == bundled_device("dgx-spark")
    assert find_device("A6000") == bundled_device("rtx-a6000")
    assert find_device("3090ti") == bundled_device("rtx-3090-ti")


def test_no_alias_hides_a_device() -> None:
    assert len(_device_aliases()) == sum(len(table.get("aliases", ())) for table in _device_tables().values())
    assert not set(_device_aliases()) & set(device_names())


@pytest.mark.parametrize("name", device_names())
def test_the_template_is_the_device_that_it_starts_from(name: str, tmp_path: Path) -> None:
    """Written, read back and equal: every figure and no other."""
    file = tmp_path / f"{name}.toml"
    file.write_text(template("gpu", name))
    assert find_device(str(file)) == bundled_device(name)


def test_the_template_explains_every_field() -> None:
    comments = {name: field.description or "" for name, field in DeviceTable.model_fields.items()}
    assert all(comments.values())
    text = re.sub(r"\n# (?=\S)", " ", template("gpu", "rtx-4090"))
    for name in _device_tables()["rtx-4090"]:
        assert f"{comments[name]}\n{name} = " in text
    assert "Other fields (`specmargin models --schema gpu` explains them): " in text
    with pytest.raises(CatalogError, match="unknown GPU 'h20o'"):
        bundled_device_name("h20o")
    assert f'\n# {comments["architecture"]}\narchitecture = "gfx1151"' in template("gpu", "strix-halo")


def test_unknown_gpu_suggests_the_nearest() -> None:
    with pytest.raises(CatalogError, match=r"unknown GPU 'h20o'; nearest: h20"):
        find_device("h20o")


def test_a_device_of_your_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    device = find_device(str(file))
    assert (device.name, device.title, device.memory_bytes) == ("mine", "My card", 24e9)
    file.write_text("[card]\n" + MINE)
    assert find_device(str(file)).name == "card"


def test_a_file_about_a_bundled_gpu_need_not_repeat_its_generation(tmp_path: Path) -> None:
    """By its name or an alias; what the file says stays, and other names get nothing."""
    file = tmp_path / "rtx-3090ti.toml"
    file.write_text(MINE)
    device = find_device(str(file))
    assert (device.architecture, device.multiprocessors, device.memory_bytes) == ("sm_86", 84, 24e9)
    file.write_text(MINE + 'architecture = "sm_80"\n')
    assert (find_device(str(file)).architecture, find_device(str(file)).multiprocessors) == ("sm_80", None)
    other = tmp_path / "mine.toml"
    other.write_text(MINE)
    assert find_device(str(other)).architecture is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("memory_bytes = 24e9", ""), "memory_bytes is missing"),
        (("memory_bytes = 24e9", "memory_bytes = inf"), "memory_bytes must be a finite number"),
        (("memory_bytes = 24e9", "memory_bytes = -1"), "memory_bytes must be above 0, got -1"),
        (("memory_bytes", "memory_byte"), "memory_byte"),
        (("bf16 = 100e12", "fp8 = 100e12"), "needs at least bf16"),
        (("title", "title = ["), "not valid TOML"),
    ],
)
def test_bad_device_files(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE.replace(*change))
    with pytest.raises(InputError, match=complaint):
        find_device(str(file))


def test_missing_device_file(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="cannot be read"):
        find_device(str(tmp_path / "none.toml"))


def test_a_collective_over_nodes_needs_a_network() -> None:
    with pytest.raises(HardwareError, match="need a network"):
        bundled_device("m4-max").fabric.bytes_per_second(2)


@pytest.mark.parametrize("name", device_names())
def test_links_with_measured_collectives_name_their_fabric(name: str) -> None:
    """By what is known of the card: GeForce has no peer access, GB10 no GPUDirect, Instinct other kernels."""
    device = bundled_device(name)
    measured = {"sm_121": "roce-gb10", "gfx942": "instinct", "gfx950": "instinct"}.get(device.architecture or "")
    assert device.fabric.collectives == ("pcie-host-memory" if "GeForce" in device.title else measured)


#: Microseconds of NCCL among eight RTX PRO 6000 with peer access, on three other hosts than the fabric's
#: (local-inference-lab/rtx6kpro: luke's switches, WRX90, dual Turin with a topology file): message, times.
OTHER_HOSTS = [(65_536, (24.1, 18.1, 25.6)), (262_144, (28.0, 25.1, 37.3)), (1_048_576, (80.0,))]


@pytest.mark.parametrize(("message", "microseconds"), OTHER_HOSTS)
def test_a_gpu_file_chooses_its_fabric(tmp_path: Path, message: int, microseconds: tuple[float, ...]) -> None:
    file = tmp_path / "peer.toml"
    table = _device_tables()["rtx-pro-6000"]
    needed = ("memory_bytes", "bandwidth_bytes_per_second", "link_bytes_per_second", "link_latency_seconds")
    numbers = "".join(f"{name} = {table[name]!r}\n" for name in (*needed, "gpus_per_node"))
    file.write_text(
        '[rtx-pro-6000]\ntitle = "Ours"\nfabric = "pcie-peer"\nsource = "it"\n'
        f"operations_per_second = {{ bf16 = 467.8e12 }}\n{numbers}"
    )
    links = find_links(find_device(str(file)))
    assert links is not None and find_links(bundled_device("rtx-pro-6000")) is None
    found = links.collective("vllm", "all-reduce", 8)
    assert found is not None
    seconds = float(found[0].seconds(np.asarray(float(message))))
    low, high = min(microseconds) * 1e-6, max(microseconds) * 1e-6
    assert low * 0.7 < seconds < high * 1.3
