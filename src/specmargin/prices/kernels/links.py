"""Collectives over links that no table has, from an entry of the catalog's fabrics (`catalog/fabrics.toml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.law import Curve, Evidence
from specmargin.prices.work import CollectiveKind
from specmargin.sources import SourceKind

_KIND = str(CollectiveKind.ALL_REDUCE)
_ENGINES = ("vllm", "sglang", "trtllm")
_SIZES = tuple(2.0**exponent for exponent in range(10, 27))


def fabric_book(device: Device, fabric: Mapping[str, Any], file: str = "") -> LawBook:
    """Curves of all-reduces among so many of this GPU. `file`: the user's, where the fabric is."""
    curves = _curves(device, fabric)
    return LawBook(
        gpu=device.name,
        release=fabric["title"] + (f" (yours: {file})" if file else ""),
        laws={},
        curves={(engine, _KIND, "bfloat16", ranks): curve for engine in _ENGINES for ranks, curve in curves.items()},
        kind=SourceKind.PUBLISHED,
        spreads={_KIND: fabric["spread"]},
    )


def _curves(device: Device, fabric: Mapping[str, Any]) -> dict[str, Curve]:
    link = device.fabric.link_bytes_per_second
    measured = fabric.get("all_reduce_seconds")
    if measured is None:
        return {str(ranks): _through_host(fabric, ranks, link) for ranks in fabric["gpus"]}
    ratio = link / (fabric.get("measured_link_bytes_per_second") or link)
    return {
        str(ranks): _curve([(size * ratio, seconds) for size, seconds in points]) for ranks, points in measured.items()
    }


def _through_host(fabric: Mapping[str, Any], ranks: int, link: float) -> Curve:
    """So much per GPU, and each byte of a ring at a share of the link."""
    sent = 2.0 * (ranks - 1) / ranks / (fabric["link_share"] * link)
    return _curve([(size, fabric["seconds_per_gpu"] * ranks + sent * size) for size in _SIZES])


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    sizes, seconds = zip(*points, strict=True)
    evidence = Evidence(version="published measurements", rows=0, shapes=0, median_error=0.0, p90_error=0.0)
    return Curve(sizes=sizes, seconds_at=seconds, evidence=evidence)
