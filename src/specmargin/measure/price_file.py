"""The price file of a measurement: which rows are fitted to what, and the conditions of the measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.errors import InputError
from specmargin.measure.fit import (
    Fit,
    Judgement,
    Steps,
    counted_experts,
    draft_seconds,
    eager_layer_seconds,
    fit_drafter,
    fit_steps,
    floor_layer_seconds,
    judge,
    scheduled,
    slowdowns,
    steps_of,
    with_off,
)
from specmargin.measure.points import SCHEDULINGS, scheduling_of
from specmargin.prices.drafters import DraftTime
from specmargin.prices.measured import SCHEMA, MeasuredModel
from specmargin.prices.measured_schema import (
    DraftFields,
    EngineFields,
    EvidenceFields,
    ModelFields,
    PriceFile,
    RateFields,
    RowFields,
)
from specmargin.prices.model import EngineTime

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A price file, and the errors of its fit by row."""

    file: PriceFile
    rows: tuple[Row, ...]  # those that rates and engine time were fitted to
    judgement: Judgement


def price_file(
    rows: Sequence[Row], engines: Mapping[str, Mapping[str, Any]], model: Architecture, *, drafter_method: str = ""
) -> Fitted:
    if not rows:
        raise InputError("nothing was measured yet; run the same command again to continue")
    plain = engines.get("none") or engines.get("steps") or next(iter(engines.values()))
    graph_limit = max(plain["capture_sizes"], default=0) or None
    mode = _mode(plain["graph_mode"])
    noisy = is_noisy(rows) or not plain["gpu"]  # on a CPU other processes always run
    all_rows, others = rows, [row for row in rows if scheduling_of(row["run"])]
    rows = usable(
        [row for row in rows if not scheduling_of(row["run"])],
        model,
        mode,
        noisy=noisy,
        interleaved=bool(plain.get("interleaved")),
    )
    counted = counted_experts(rows)

    def steps(chosen: Sequence[Row]) -> Steps:
        return steps_of(chosen, counted, model)

    base, measured = fitted_rows(rows, model, mode)
    fit = fit_steps(measured)
    judgement = judge(measured, fit)
    time = _engine_time(fit, rows, steps, layers=model.layers, graph_limit=graph_limit)
    modes = {mode: time} | _piecewise_mode(fit, time, rows, steps, layers=model.layers, mode=mode)
    drafted = [row for row in rows if row["run"] == "drafter" and row["depth"] > 0]
    drafted = [row if _is_split(row) else _split(row, fit, steps) for row in drafted]
    draft = fit_drafter(drafted, drafter_method or "draft_model") if drafted else None
    modes |= _scheduled_modes(fit, time, [_quietest(row) for row in others] if noisy else others, steps, draft)
    file = PriceFile(
        schema=SCHEMA,
        conditions=_conditions(plain),
        model=ModelFields(**asdict(MeasuredModel.of(model))),
        rates=RateFields(**_rounded(asdict(fit.rates))),
        modes={name: _engine_fields(value) for name, value in modes.items()},
        drafter=None if draft is None else DraftFields(**_rounded(_without_source(draft))),
        ranges=judgement.ranges,
        evidence=_evidence(judgement, counted=bool(counted), noisy=noisy),
        rows=[RowFields(**{name: row[name] for name in RowFields.model_fields if name in row}) for row in all_rows],
    )
    return Fitted(file=file, rows=tuple(base), judgement=judgement)


def is_noisy(rows: Sequence[Row]) -> bool:
    """Whether the steps of most points differ by a tenth, which means that other work ran on the machine."""
    spreads = [row["high_seconds"] / row["low_seconds"] - 1.0 for row in rows]
    return bool(spreads) and float(np.median(spreads)) > _NOISY


_NOISY = 0.1


def usable(rows: Sequence[Row], model: Architecture, mode: str, *, noisy: bool, interleaved: bool = False) -> list[Row]:
    """The rows unchanged; if noisy, their lower quartile, with each group rescaled to the machine's mean speed.

    Interleaved points were all timed in turns, so that other work slowed them alike.
    """
    if not noisy:
        return list(rows)
    quiet = [_quietest(row) for row in rows]
    if interleaved:
        return quiet
    base, steps = fitted_rows(quiet, model, mode)
    slowdown_by_group = slowdowns(steps, [_group(row) for row in base])
    return [_rescaled(row, slowdown_by_group.get(_group(row), 1.0)) for row in quiet]


def _group(row: Row) -> str:
    """Points with the same value are measured in turns."""
    return f"{row['run']} {row['batch']} {row['prompt']}"


def _quietest(row: Row) -> Row:
    """The lower quartile of the steps: other work only ever adds time."""
    draft = row.get("low_draft_seconds") or row["draft_seconds"]
    return {**row, "seconds": row["low_seconds"], "draft_seconds": draft}


def _rescaled(row: Row, slowdown: float) -> Row:
    return {**row, "seconds": row["seconds"] / slowdown, "draft_seconds": row["draft_seconds"] / slowdown}


def fitted_rows(rows: Sequence[Row], model: Architecture, mode: str) -> tuple[list[Row], Steps]:
    """Steps of the target in the engine's default graph mode, with the work of each."""
    counted = counted_experts(rows)
    base = [row for row in rows if _is_base(row, mode, counted, routes=model.is_moe)]
    return base, steps_of(base, counted, model)


def _mode(graph_mode: str) -> str:
    if "full" in graph_mode:
        return "full"
    return "piecewise" if "piecewise" in graph_mode else "none"


def _is_base(row: Row, mode: str, counted: Mapping[Any, float], *, routes: bool) -> bool:
    """Whether rates and engine time are fitted to this row. Repeated tokens need counted experts to be usable.

    Without graphs and without a drafter, decoding with speculation off is plain decoding.
    """
    plain_off = row["run"] == "forced" and mode == "none"
    if row["graph"] != mode or row["run"] == "pieces" or not _is_split(row) or (row["kind"] == "off" and not plain_off):
        return False
    return not (routes and row["kind"] == "alike" and (row["batch"], row["depth"], "alike") not in counted)


def _is_split(row: Row) -> bool:
    """Whether the drafter's passes were timed apart from the target's step; llama.cpp's rounds come whole."""
    return bool(row["kind"] != "drafted" or row["draft_seconds"])


def _split(row: Row, fit: Fit, steps: StepsOf) -> Row:
    """The passes are what the round takes beyond a fitted step of the target."""
    verified = float(fit.seconds(steps([row]))[0])
    return {**row, "draft_seconds": max(row["seconds"] - verified, 0.01 * row["seconds"])}


StepsOf = Callable[[Sequence[Row]], Steps]


def _engine_time(fit: Fit, rows: Sequence[Row], steps: StepsOf, *, layers: int, graph_limit: int | None) -> EngineTime:
    """Engine time with the extra time beyond the graph limit and the cost of speculation that is off."""
    time = replace(fit.time, graph_limit=graph_limit)
    beyond = [r for r in rows if graph_limit and r["batch"] * (r["depth"] + 1) > graph_limit and r["graph"] == "none"]
    if beyond:
        time = replace(time, eager_layer_seconds=eager_layer_seconds(fit, steps(beyond), layers))
    off = [row for row in rows if row["kind"] == "off" and row["run"] != "pieces"]
    with_drafter = [row for row in off if row["run"] == "drafter"]  # its passes run even at depth 0
    chosen = with_drafter or off
    if chosen:
        whole = steps([{**row, "draft_seconds": 0.0} for row in chosen])
        passes = np.array([row["draft_seconds"] for row in chosen])
        in_pieces = all(row["graph"] == "piecewise" for row in chosen)
        time = with_off(time, fit, whole, layers, passes=passes, in_pieces=in_pieces)
    return time


def _piecewise_mode(
    fit: Fit, time: EngineTime, rows: Sequence[Row], steps: StepsOf, *, layers: int, mode: str
) -> dict[str, EngineTime]:
    """The same engine with piecewise graphs only, where that was measured."""
    pieces = [row for row in rows if row["graph"] == "piecewise" and row["run"] == "pieces"]
    if mode == "piecewise" or not pieces:
        return {}
    floor = floor_layer_seconds(fit, steps(pieces), layers)
    plain = replace(time, off_step_seconds=0.0, off_sequence_seconds=0.0, off_floor_layer_seconds=0.0)
    return {"piecewise": replace(plain, floor_layer_seconds=floor)}


def _scheduled_modes(
    fit: Fit, time: EngineTime, rows: Sequence[Row], steps: StepsOf, draft: DraftTime | None
) -> dict[str, EngineTime]:
    """The same engine on the second model runner or with async scheduling: what a step takes beside its kernels.

    Rounds need the passes of the drafter, which are timed with synchronous scheduling.
    """
    modes = {}
    for name in SCHEDULINGS:
        chosen = [row for row in rows if scheduling_of(row["run"]) == name and _in_a_graph(row, time.graph_limit)]
        plain, drafted = ([row for row in chosen if (row["depth"] > 0) is rounds] for rounds in (False, True))
        if len(plain) < 2:
            continue
        rounds = steps(drafted) if drafted and draft is not None else None
        passes = np.zeros(0) if rounds is None or draft is None else draft_seconds(draft, rounds.batch, rounds.depth)
        beside = scheduled(fit, steps(plain), rounds, passes)
        modes[name] = replace(beside, graph_limit=time.graph_limit, eager_layer_seconds=time.eager_layer_seconds)
    return modes


def _in_a_graph(row: Row, graph_limit: int | None) -> bool:
    return graph_limit is None or row["batch"] * (row["depth"] + 1) <= graph_limit


def _evidence(judgement: Judgement, *, counted: bool, noisy: bool) -> EvidenceFields:
    own, held_out = judgement.errors, judgement.held_out_errors
    return EvidenceFields(
        points=int(own.size),
        median_error=round(float(np.median(own)), 4),
        worst_error=round(float(own.max()), 4),
        held_out_median_error=round(float(np.median(held_out)), 4),
        held_out_worst_error=round(float(held_out.max()), 4),
        counted_experts=counted,
        noisy=noisy,
    )


def _conditions(engine: Mapping[str, Any]) -> dict[str, str]:
    if "conditions" in engine:
        return dict(engine["conditions"])
    clocks = engine.get("clocks", "")
    machine = engine["gpu"] or "CPU"
    return {
        "engine": f"vLLM {engine['vllm']}, {engine['graph_mode']} graphs, async scheduling "
        f"{'on' if engine['async_scheduling'] else 'off'}, {engine['attention']} attention",
        "machine": machine + (f", driver {engine['driver']}, CUDA {engine['cuda']}" if engine["gpu"] else ""),
        "clocks": clocks,
        "host": engine["host"],
        "clock": {"cpu": "processor time", "wall": "wall clock"}[engine.get("clock", "wall")],
        "software": f"torch {engine['torch']}, Python {engine['python']}",
        "weights": f"{engine['weights']}, {engine['dtype']}",
        "captured": f"{len(engine['capture_sizes'])} sizes up to {max(engine['capture_sizes'], default=0)} positions",
        "date": engine["date"],
    }


def _engine_fields(time: EngineTime) -> EngineFields:
    values = {field.alias or name: getattr(time, name) for name, field in EngineFields.model_fields.items()}
    return EngineFields(**_rounded(values))


def _without_source(value: Any) -> dict[str, Any]:
    return {name: field for name, field in asdict(value).items() if name != "source"}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in values.items()}
