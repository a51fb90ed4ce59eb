"""Shared by the tests of measuring: a surface, and rows as an engine writes them."""

from __future__ import annotations

from typing import Any

from specmargin.measure.points import Surface

SURFACE = Surface(batches=(1, 4, 16, 64, 128), depths=(1, 3, 7), contexts=(512, 4096), long_batches=(1, 16))


def measured_row(run_name: str, point: Any, seconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "record": "row",
        "run": run_name,
        "batch": point.batch,
        "depth": point.depth,
        "kind": str(point.kind),
        "context": float(point.context),
        "prompt": point.context,
        "seconds": seconds,
        "low_seconds": seconds,
        "high_seconds": seconds,
        "whole_seconds": seconds,
        "draft_seconds": 0.0,
        "committed": 1.0,
        "steps": 15,
        "graph": "full",
        "distinct": None,
        **changes,
    }
