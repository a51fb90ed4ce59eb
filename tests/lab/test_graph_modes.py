"""Launches by graph mode, as counted for prices, against steps of one host (vllm-0.32-h200-graph-modes.json)."""

from __future__ import annotations

import json
from statistics import median

import pytest

from lab import DATA
from specmargin.catalog.lookup import bundled_model
from specmargin.prices.launches import Graph, launches

_MODES = {"piecewise": Graph.PIECEWISE, "none": Graph.COMPILED, "eager": Graph.EAGER}
_HOST_BOUND = 0.7  # kernels take less than this share of the step


def seconds_per_launch(model: str, mode: str) -> float:
    """Median over plain steps that wait for the host."""
    document = json.loads((DATA / "measurements" / "vllm-0.32-h200-graph-modes.json").read_text(encoding="utf-8"))
    counted = launches(_MODES[mode], bundled_model(model).layer_counts)
    steps = [
        row["round_ms"] * 1e-3 / counted
        for engine in document["engines"]
        for row in engine["rows"]
        if engine["model"] == model and row["mode"] == mode and row["depth"] == 0 and row["batch"] > 0
        if row["kernel_ms"] < _HOST_BOUND * row["round_ms"]
    ]
    return float(median(steps))


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ("llama-3.1-8b", "piecewise"),
        ("llama-3.1-8b", "eager"),
        ("qwen3-30b-a3b", "piecewise"),
        ("qwen3-30b-a3b", "none"),
    ],
)
def test_one_time_per_launch_explains_all_modes_of_one_host(model: str, mode: str) -> None:
    """Within a third: the host's own speed changed by 1.8 between two readings."""
    unit = seconds_per_launch("llama-3.1-8b", "none")
    assert seconds_per_launch(model, mode) == pytest.approx(unit, rel=0.35)
    assert 55e-6 < unit < 70e-6
