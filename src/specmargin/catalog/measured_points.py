"""Measured decoding speeds of bundled models and GPUs, with engine, date and source: shown beside predictions."""

from __future__ import annotations

from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.prices.measured_point import MeasuredPoint


def all_measured_points() -> list[MeasuredPoint]:
    points = []
    for series in read_bundled("measured_points.json"):
        shared: dict[str, Any] = {name: value for name, value in series.items() if name != "points"}
        points += [MeasuredPoint(**shared, batch=b, plain=p, speculative=s) for b, p, s in series["points"]]
    return points


def measured_points(model: str, gpu: str, gpus: int, weights: str, drafter: str) -> list[MeasuredPoint]:
    """Of this machine; the speculative side of another drafter is left out."""
    return [
        point
        for point in all_measured_points()
        if (point.model, point.gpu, point.gpus, point.weights) == (model, gpu, gpus, weights)
        and point.drafter in (None, drafter.split(" ", maxsplit=1)[0].split(":", maxsplit=1)[0])
    ]
