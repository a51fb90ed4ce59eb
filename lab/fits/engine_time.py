"""Fit the engine time beyond kernels, and write it to the catalog.

    python -m lab.fits.engine_time            # needs: pip install 'specmargin[tables]' scipy

Four sources: whole rounds of vLLM 0.32 on an H200, with and without speculation (`validation/rounds.py`); its steps
that read prompts (`validation/prompts.py`); served
measurements of aiconfigurator-core (many models, GPUs and hosts; no speculation); and verify steps of vLLM 0.26 on one
slow host. Fit the laws first: engine time is what they leave unexplained.

SGLang and TensorRT-LLM have no measured rounds here. Their plain steps are fitted to served rows; what a speculative
round adds is taken from vLLM, from synchronous scheduling where the engine gives up overlapped scheduling to speculate.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from rich.progress import track

from lab import CATALOG
from lab.terminal import run
from lab.validation.rounds.measured import TERMS, MeasuredRounds, fitted_engine_time, measured_rounds
from lab.validation.rounds.prompts import with_host_launches
from lab.validation.served.engine_time import EngineFit, engine_fits
from lab.validation.served.rows import served_rows
from lab.validation.served.tpot import predict
from lab.validation.steps import MeasuredTime, measured_engine_time, piecewise_engine_time
from specmargin.prices.model import EngineTime

TARGET = CATALOG / "engine_times.json"


def main() -> None:
    entries: list[dict[str, Any]] = []
    rows = served_rows()
    for prices in ("laws", "tables"):
        predictions = predict(rows, prices, progress=lambda part: track(part, description="served rows"))
        slow = measured_engine_time(prices)
        rounds, sync = fitted_engine_time(prices), fitted_engine_time(prices, measured_rounds(async_scheduling=False))
        launch_seconds = with_host_launches(prices, replace(rounds, graph_limit=None)).kernel_launch_seconds
        entries.append(_rounds("vllm", prices, rounds, "async scheduling", measured_rounds()))
        entries.append(
            _rounds("vllm:sync", prices, sync, "synchronous scheduling", measured_rounds(async_scheduling=False))
        )
        entries += [_served(fit, prices, rounds, sync) for fit in engine_fits(predictions.rows)]
        slow_host = _measured("vllm:slow-host", prices, slow.time, _slow_host_detail(slow))
        entries.append(_with_launches(slow_host, launch_seconds))
        pieces = piecewise_engine_time(slow.time)
        floor = f"piecewise graphs: no step under {pieces.floor_layer_seconds * 1e3:.2f} ms per layer; else "
        entries.append(_measured("vllm:piecewise", prices, pieces, floor + _slow_host_detail(slow)))
    body = ",\n".join("    " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    TARGET.write_text(
        f'{{\n  "schema": "specmargin.engine-times/1",\n  "times": [\n{body}\n  ]\n}}\n', encoding="utf-8"
    )


def _rounds(name: str, prices: str, time: EngineTime, scheduling: str, engines: list[MeasuredRounds]) -> dict[str, Any]:
    count = sum(int(engine.captured.sum()) for engine in engines)
    models = len({engine.model for engine in engines})
    detail = (
        f"vLLM 0.32, second model runner, {scheduling}, full graphs: {_micro(time.step_seconds)} per step, "
        f"{_micro(time.sequence_seconds)} per sequence, {_micro(time.verify_step_seconds)} per verify step, "
        f"{_micro(time.verify_sequence_seconds)} per verified sequence, {_micro(time.verify_token_seconds)} per draft "
        f"token, {_micro(time.draft_pass_seconds)} per draft pass; while disabled {_micro(time.off_step_seconds)} per "
        f"step and {_micro(time.off_sequence_seconds)} per sequence; fitted to {count} rounds of "
        f"{models} {'model' if models == 1 else 'models'} on an H200 (python -m lab.validation.rounds)"
    )
    values = {term: _rounded(getattr(time, term)) for term in TERMS}
    return {
        "name": name,
        "prices": prices,
        **values,
        "layer_seconds": 0.0,
        "kind": "measured",
        "source": detail,
    }


def _with_launches(entry: dict[str, Any], seconds: float) -> dict[str, Any]:
    launched = (
        f"; {seconds * 1e6:.0f} µs per kernel that the host launches, fitted to steps of vLLM 0.32 without a CUDA "
        "graph on such a host"
    )
    return entry | {"kernel_launch_seconds": _rounded(seconds), "source": entry["source"] + launched}


def _served(fit: EngineFit, prices: str, rounds: EngineTime, sync: EngineTime) -> dict[str, Any]:
    low, high = fit.lowest, fit.highest
    terms, round_detail = _round_terms(fit.engine, rounds, sync)
    detail = (
        f"{fit.engine}: {_micro(fit.layer_seconds)} per layer ({low[2] * 1e6:.0f} to {high[2] * 1e6:.0f}), "
        f"{_micro(fit.sequence_seconds)} per sequence ({low[1] * 1e6:.0f} to {high[1] * 1e6:.0f}), "
        f"{_micro(fit.step_seconds)} per step, fitted to {fit.rows} served measurements "
        f"(ranges: any one model on one GPU left out); {round_detail}"
        + ("" if fit.engine == "vllm" else "; steps without a graph not measured")
    )
    return {
        "name": "vllm:0.24" if fit.engine == "vllm" else fit.engine,
        "prices": prices,
        "step_seconds": _rounded(fit.step_seconds),
        "sequence_seconds": _rounded(fit.sequence_seconds),
        "layer_seconds": _rounded(fit.layer_seconds),
        **{name: _rounded(value) for name, value in terms.items()},
        "kind": "silicon",
        "source": detail,
    }


def _round_terms(engine: str, rounds: EngineTime, sync: EngineTime) -> tuple[dict[str, float], str]:
    """What a speculative round adds to a plain step, where no round of the engine was measured."""
    if engine != "sglang":  # what releases of vLLM wait more for the host: `catalog/engine_times.py`
        terms = {name: getattr(rounds, name) for name in _ROUND_TERMS}
        return terms, "rounds assumed as in vLLM 0.32 with async scheduling"
    # Plain steps overlap with scheduling, rounds do not: SGLang v0.5.6 server_args.py disables the overlap scheduler
    # with speculation unless SpecV2 is enabled.
    terms = {
        "verify_step_seconds": sync.step_seconds + sync.verify_step_seconds - rounds.step_seconds,
        "verify_sequence_seconds": sync.sequence_seconds + sync.verify_sequence_seconds - rounds.sequence_seconds,
        "verify_token_seconds": sync.verify_token_seconds,
        "draft_pass_seconds": rounds.draft_pass_seconds,
    }
    return terms, "rounds assumed as in vLLM 0.32 with synchronous scheduling, which speculation forces"


_ROUND_TERMS = ("verify_step_seconds", "verify_sequence_seconds", "verify_token_seconds", "draft_pass_seconds")


def _slow_host_detail(measured: MeasuredTime) -> str:
    time, step, sequence = measured.time, measured.step_range, measured.sequence_range
    return (
        f"{time.step_seconds * 1e3:.1f} ms per step ({step[0] * 1e3:.1f} to {step[1] * 1e3:.1f}) and "
        f"{time.sequence_seconds * 1e6:.0f} µs per sequence ({sequence[0] * 1e6:.0f} to {sequence[1] * 1e6:.0f}), "
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
        "source": detail,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


if __name__ == "__main__":
    run(main, __doc__)
