"""Fit the engine time beyond kernels, and write it to the catalog.

    python scripts/fit_engine_time.py            # needs: pip install 'specmargin[silicon]' scipy

Two sources: served measurements of aiconfigurator-core (many models, GPUs and hosts; no speculation), and the verify
steps in the catalog, of one engine on one slow host. Fit the laws first: engine time is what they leave unexplained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.progress import track

from specmargin.prices.model import EngineTime
from specmargin.validation.engine_time import EngineFit, engine_fits
from specmargin.validation.served import served_rows
from specmargin.validation.steps import MeasuredTime, measured_engine_time, piecewise_engine_time
from specmargin.validation.tpot import predict

TARGET = Path(__file__).resolve().parents[1] / "src" / "specmargin" / "catalog" / "engine_times.json"


def main() -> None:
    entries: list[dict[str, Any]] = []
    rows = served_rows()
    for prices in ("laws", "tables"):
        predictions = predict(rows, prices, progress=lambda part: track(part, description="served rows"))
        slow = measured_engine_time(prices)
        entries += [_served(fit, prices, slow.time) for fit in engine_fits(predictions.rows)]
        entries.append(_measured("vllm:slow-host", prices, slow.time, _slow_host_detail(slow)))
        pieces = piecewise_engine_time(slow.time)
        floor = f"graphs of pieces: no step under {pieces.floor_layer_seconds * 1e3:.2f} ms a layer; else "
        entries.append(_measured("vllm:piecewise", prices, pieces, floor + _slow_host_detail(slow)))
    body = ",\n".join("    " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    TARGET.write_text(
        f'{{\n  "schema": "specmargin.engine-times/1",\n  "times": [\n{body}\n  ]\n}}\n', encoding="utf-8"
    )


def _served(fit: EngineFit, prices: str, slow: EngineTime) -> dict[str, Any]:
    low, high = fit.lowest, fit.highest
    detail = (
        f"{fit.engine}: {_micro(fit.layer_seconds)} a layer ({low[2] * 1e6:.0f} to {high[2] * 1e6:.0f}), "
        f"{_micro(fit.sequence_seconds)} a sequence ({low[1] * 1e6:.0f} to {high[1] * 1e6:.0f}), "
        f"{_micro(fit.step_seconds)} a step, fitted to {fit.rows} served measurements "
        f"(ranges: any one model on one GPU left out); {_eager_detail(fit, slow)}"
    )
    return {
        "name": fit.engine,
        "prices": prices,
        "step_seconds": _rounded(fit.step_seconds),
        "sequence_seconds": _rounded(fit.sequence_seconds),
        "layer_seconds": _rounded(fit.layer_seconds),
        "eager_layer_seconds": _rounded(slow.eager_layer_seconds) if fit.engine == "vllm" else 0.0,
        "kind": "silicon",
        "detail": detail,
    }


def _eager_detail(fit: EngineFit, slow: EngineTime) -> str:
    """Served rows do not contain the cost of a step without a graph."""
    if fit.engine == "vllm":
        return f"without a graph {slow.eager_layer_seconds * 1e3:.2f} ms a layer, measured on one slow host"
    return "steps without a graph not measured"


def _slow_host_detail(measured: MeasuredTime) -> str:
    time, step, sequence = measured.time, measured.step_range, measured.sequence_range
    return (
        f"{time.step_seconds * 1e3:.1f} ms a step ({step[0] * 1e3:.1f} to {step[1] * 1e3:.1f}) and "
        f"{time.sequence_seconds * 1e6:.0f} µs a sequence ({sequence[0] * 1e6:.0f} to {sequence[1] * 1e6:.0f}), "
        "fitted to verify steps of vLLM 0.26.0 on an H200 behind a slow virtual CPU (ranges: any one batch left out)"
    )


def _measured(name: str, prices: str, time: EngineTime, detail: str) -> dict[str, Any]:
    return {
        "name": name,
        "prices": prices,
        "step_seconds": _rounded(time.step_seconds),
        "sequence_seconds": _rounded(time.sequence_seconds),
        "layer_seconds": 0.0,
        "eager_layer_seconds": _rounded(time.eager_layer_seconds),
        "floor_layer_seconds": _rounded(time.floor_layer_seconds),
        "kind": "measured",
        "detail": detail,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


if __name__ == "__main__":
    main()
