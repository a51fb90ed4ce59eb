"""The price file that `specmargin measure vllm` and `specmargin measure llamacpp` write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from specmargin.errors import CatalogError
from specmargin.files import read_text
from specmargin.prices.drafters import DraftTime
from specmargin.prices.measured import MeasuredModel, MeasuredPrices, Rates
from specmargin.prices.model import EngineTime
from specmargin.schema import StrictModel, first_complaint
from specmargin.sources import Source, SourceKind


class ModelFields(StrictModel):
    name: str
    layers: PositiveInt
    hidden: PositiveInt
    experts: int
    experts_per_token: int
    weight_bytes: PositiveFloat


class RateFields(StrictModel):
    weight_bytes_per_second: PositiveFloat
    operations_per_second: PositiveFloat
    kv_bytes_per_second: PositiveFloat
    attention_operations_per_second: PositiveFloat


class EngineFields(StrictModel):
    step_seconds: NonNegativeFloat
    sequence_seconds: NonNegativeFloat
    position_seconds: NonNegativeFloat
    verify_step_seconds: NonNegativeFloat = 0.0
    off_step_seconds: NonNegativeFloat = 0.0
    off_sequence_seconds: NonNegativeFloat = 0.0
    off_floor_layer_seconds: NonNegativeFloat = 0.0
    graph_limit: PositiveInt | None = Field(default=None, alias="captured_positions")
    eager_layer_seconds: NonNegativeFloat = 0.0
    floor_layer_seconds: NonNegativeFloat = 0.0


class DraftFields(StrictModel):
    method: str
    first_seconds: NonNegativeFloat
    first_sequence_seconds: NonNegativeFloat
    later_seconds: NonNegativeFloat
    later_sequence_seconds: NonNegativeFloat


class EvidenceFields(StrictModel):
    """Errors of the fit on its own points, and on one half of the points after a fit to the other half."""

    points: PositiveInt
    median_error: NonNegativeFloat
    worst_error: NonNegativeFloat
    held_out_median_error: NonNegativeFloat
    held_out_worst_error: NonNegativeFloat
    counted_experts: bool
    noisy: bool = False  # other work ran on the machine: lower quartiles were fitted, with a speed per batch


class RowFields(StrictModel):
    """One measured point: medians, with the quartiles of the steps."""

    run: str
    batch: PositiveInt
    depth: int
    kind: Literal["none", "off", "strangers", "alike", "drafted"]
    context: NonNegativeFloat
    prompt: PositiveInt
    seconds: PositiveFloat
    low_seconds: PositiveFloat
    high_seconds: PositiveFloat
    whole_seconds: PositiveFloat
    draft_seconds: NonNegativeFloat
    low_draft_seconds: NonNegativeFloat = 0.0
    committed: NonNegativeFloat
    survival: tuple[NonNegativeFloat, ...] = ()
    steps: PositiveInt
    graph: str
    distinct: NonNegativeFloat | None
    outputs: PositiveInt | None = None  # positions whose logits were wanted; None: all


class PriceFile(StrictModel):
    schema_: Literal["specmargin.measured/1"] = Field(alias="schema")
    conditions: dict[str, str]
    model: ModelFields
    rates: RateFields
    # By CUDA graph mode; the first is the mode the engine was started in. With it also second-async, async and second:
    # model runner and scheduling.
    modes: dict[str, EngineFields]
    drafter: DraftFields | None = None
    ranges: dict[str, tuple[float, float]]  # 5th to 95th percentile over resampled points
    evidence: EvidenceFields
    rows: list[RowFields]


def read_price_file(path: Path) -> PriceFile:
    try:
        return PriceFile.model_validate_json(read_text(path, CatalogError))
    except ValueError as error:
        raise CatalogError(
            f"{path}: {first_complaint(error)}; `specmargin measure vllm` and `measure llamacpp` write such files"
        ) from None


def as_text(file: PriceFile) -> str:
    return rows_by_line(file.model_dump(by_alias=True))


def rows_by_line(values: dict[str, Any]) -> str:
    """JSON with one of its `rows` per line: people read and compare these files."""
    rows = ",\n".join("  " + json.dumps(row) for row in values["rows"])
    head = json.dumps({name: value for name, value in values.items() if name != "rows"}, indent=1, ensure_ascii=False)
    return f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


_SCHEDULINGS = {
    "second-async": "second model runner, async scheduling",
    "async": "first model runner, async scheduling",
    "second": "second model runner, synchronous scheduling",
}


def _described(mode: str, file: PriceFile) -> str:
    graphs = f"{next(iter(file.modes))} graphs"
    return f"{graphs}, {_SCHEDULINGS[mode]}" if mode in _SCHEDULINGS else f"{mode} graphs"


def measured_prices(file: PriceFile, name: str, mode: str = "") -> MeasuredPrices:
    """`mode`: full, piecewise or none, where it was measured; "" for the mode the engine was started in."""
    chosen = mode or next(iter(file.modes))
    if chosen not in file.modes:
        raise CatalogError(f"{name}: no steps were measured in mode {chosen!r}; there are: {', '.join(file.modes)}")
    conditions = file.conditions
    where = ", ".join(conditions[part] for part in ("engine", "machine", "date"))
    setting = f"{name}: {where}, {_described(chosen, file)}"
    evidence = file.evidence
    detail = (
        f"{setting}; {evidence.points} points, held-out error {evidence.held_out_median_error:.1%} "
        f"(worst {evidence.held_out_worst_error:.0%})"
    )
    source = Source(kind=SourceKind.MEASURED, detail=detail)
    draft = None if file.drafter is None else DraftTime(**file.drafter.model_dump(), source=source)
    return MeasuredPrices(
        file=name,
        model=MeasuredModel(**file.model.model_dump()),
        rates=Rates(**file.rates.model_dump()),
        engine_time=EngineTime(**file.modes[chosen].model_dump(), source=source),
        draft_time=draft,
        source=source,
    )
