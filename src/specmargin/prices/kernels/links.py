"""Collectives over links that no table has, from published measurements.

GeForce cards have no peer access over PCIe: vLLM's and SGLang's own all-reduce needs it (custom_all_reduce.py:277 in
vLLM 0.32), and NCCL goes through host memory. Eight RTX 4090 take 42 µs for a few bytes (github.com/NVIDIA/nccl,
issue 1530), where eight RTX PRO 6000 with peer access take 24.6 µs (NCCL 2.29 in aiconfigurator-core 0.12.0: 3.1 µs
per GPU): 1.7 times as long. Large messages move at about 0.45 of the link (eight RTX 5090: 28 GB/s, four 35 GB/s:
nccl issue 1639).

DGX Sparks are nodes of one GPU: NCCL over RoCE stays on the host, because GB10 has no GPUDirect. Two of them: 31 µs
for 8 to 16 KB, 38 for 32, 66 for 64 (github.com/NVIDIA/dgx-spark-playbooks, pull request 103), 21 GB/s for gigabytes
(issue 25). Four: 54 to 64 µs for 48 KB (github.com/local-inference-lab/b12x, pull request 295). Another pair measured
41 µs for 8 KB and 105 to 127 µs for 64 KB (MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks, issue 22).

AMD Instinct: vLLM's custom all-reduce among eight MI355X (github.com/vllm-project/vllm, pull request 39080, before
it). Fewer GPUs are taken to be as fast, an MI300X or MI325X by the ratio of the links.
"""

from __future__ import annotations

from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.law import Curve, Evidence
from specmargin.prices.work import CollectiveKind
from specmargin.sources import SourceKind

_RANKS = (2, 4, 8)
_KIND = str(CollectiveKind.ALL_REDUCE)
_ENGINES = ("vllm", "sglang", "trtllm")
_HOST_SECONDS_PER_GPU = 1.7 * 3.1e-6
_HOST_SHARE = 0.45  # of the link
_SIZES = tuple(2.0**exponent for exponent in range(10, 27))
_INSTINCT = {24e3: 6.3, 48e3: 6.7, 96e3: 7.6, 192e3: 10.0, 384e3: 13.1, 768e3: 16.0, 1.5e6: 24.2}  # µs
_INSTINCT_LINK = 537e9
_SPARKS = {
    2: {8e3: 31.0, 16e3: 31.0, 32e3: 38.0, 64e3: 66.0, 1e9: 48e3},
    4: {8e3: 45.0, 48e3: 59.0, 1e9: 72e3},
}


def published_links(device: Device) -> LawBook | None:
    """Curves of all-reduces among so many of this GPU; None where tables or the datasheet have to do."""
    if "GeForce" in device.title:
        return _book(
            device, {ranks: _through_host(device, ranks) for ranks in _RANKS}, "NCCL through host memory", 0.35
        )
    if device.architecture == "sm_121":
        return _book(device, {ranks: _curve(points) for ranks, points in _SPARKS.items()}, "NCCL over RoCE", 0.4)
    if (device.architecture or "").startswith(("gfx942", "gfx950")):
        link = device.fabric.link_bytes_per_second / _INSTINCT_LINK
        curve = _curve({size * link: micros for size, micros in _INSTINCT.items()})
        return _book(device, dict.fromkeys(_RANKS, curve), "vLLM's all-reduce among eight MI355X", 0.3)
    return None


def _through_host(device: Device, ranks: int) -> Curve:
    sent = 2.0 * (ranks - 1) / ranks / (_HOST_SHARE * device.fabric.link_bytes_per_second)
    return _curve({size: 1e6 * (_HOST_SECONDS_PER_GPU * ranks + sent * size) for size in _SIZES})


def _curve(micros_by_size: dict[float, float]) -> Curve:
    return Curve(
        sizes=tuple(micros_by_size),
        seconds_at=tuple(micros * 1e-6 for micros in micros_by_size.values()),
        evidence=Evidence(version="published measurements", rows=0, shapes=0, median_error=0.0, p90_error=0.0),
    )


def _book(device: Device, curves: dict[int, Curve], what: str, spread: float) -> LawBook:
    return LawBook(
        gpu=device.name,
        release=what,
        laws={},
        curves={
            (engine, _KIND, "bfloat16", str(ranks)): curve for engine in _ENGINES for ranks, curve in curves.items()
        },
        kind=SourceKind.PUBLISHED,
        spreads={_KIND: spread},
    )
