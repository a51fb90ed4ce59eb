"""The front table: models × GPUs with the speed-up at three batches and the batch where it stops paying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import law_book
from specmargin.decisions.advice import Advice
from specmargin.decisions.certainty import SpeedupRange
from specmargin.decisions.rows import PlanRow
from specmargin.errors import InputError
from specmargin.prices.kernels import store
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest

BATCHES = (1, 16, 64)
Kind = Literal["pays", "uncertain", "off", "loses", "full", "unsupported"]
_DIGITS = 3  # of speed-ups: two are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The plan at one batch; the numbers are None where it does not fit."""

    kind: Kind
    speedup: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontCell:
    """A model on the fewest GPUs of a kind, in one engine with one drafter; refused: why there is no plan."""

    gpus: int = 0
    drafter: str = ""
    marks: tuple[Mark, ...] = ()
    stops: int | None = None  # the batch from which on it does not pay; None: it pays as far as it fits
    fits: int = 0  # sequences, with drafts
    refused: str | None = None

    def values(self) -> str | list[Any]:
        """For JSON, as short as it can be: thousands of cells are bundled."""
        if self.refused is not None:
            return self.refused
        marks = [[mark.kind, mark.speedup, mark.low, mark.high] for mark in self.marks]
        return [self.gpus, self.drafter, marks, self.stops, self.fits]


def cell_from(values: str | list[Any]) -> FrontCell:
    if isinstance(values, str):
        return FrontCell(refused=values)
    gpus, drafter, marks, stops, fits = values
    found = tuple(Mark(kind=kind, speedup=at, low=low, high=high) for kind, at, low, high in marks)
    return FrontCell(gpus=gpus, drafter=drafter, marks=found, stops=stops, fits=fits)


def front_cell(request: PlanRequest) -> FrontCell:
    """What `plan` answers, at the batches of the table."""
    try:
        best = drafter_plans(request)[0]
    except InputError as error:
        return FrontCell(refused=str(error))
    rows = {row.batch: (row, sure) for row, sure in zip(best.plan.rows, best.ranges, strict=True)}
    return FrontCell(
        gpus=request.gpus,
        drafter=best.choice.kind,
        marks=tuple(_mark(best, rows.get(batch)) for batch in BATCHES),
        stops=best.plan.stops_at_batch,
        fits=best.plan.largest_batch,
    )


def _mark(best: DrafterPlan, pair: tuple[PlanRow, SpeedupRange] | None) -> Mark:
    if pair is None or not pair[0].fits:
        return Mark(kind="full")
    row, sure = pair
    judged = best.judgement
    if row.depth == 0 and not best.plan.setting.configured and judged.advice is Advice.UNCERTAIN:
        sure = judged.range  # of the draft that was refused: it may pay
    numbers = {"speedup": row.speedup, "low": sure.low, "high": sure.high}
    rounded = {name: round(value, _DIGITS) for name, value in numbers.items()}
    return Mark(kind=_kind(row, sure, supported=best.advice is not Advice.UNSUPPORTED), **rounded)


def _kind(row: PlanRow, sure: SpeedupRange, *, supported: bool) -> Kind:
    """As the verdict says it: a range that spans 1 is uncertain."""
    if not supported:
        return "unsupported"
    if sure.low < sure.high and sure.low <= 1.0 <= sure.high:
        return "uncertain"
    if row.depth == 0:
        return "off" if row.speedup > 1.0 - 1e-3 else "loses"
    return "pays" if row.speedup > 1.0 else "loses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model of the table."""

    model: str
    billions: float
    experts: int | None
    cells: Mapping[str, FrontCell]  # by GPU; one that is missing was not planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """One table: all models and GPUs in one engine, with one drafter."""

    engine: str
    drafter: str
    gpus: Sequence[tuple[str, str]]  # names and titles
    rows: Sequence[Row]
    link: Callable[[str, str, FrontCell], str]  # of a model, a GPU and its cell


def bundled() -> dict[str, Any]:
    """The cells that `scripts/update_front.py` wrote."""
    found: dict[str, Any] = read_bundled("front.json")
    return found


def bundled_prices(gpu: str) -> str | None:
    """Prices that every installation has: laws, where the GPU has some."""
    return "laws" if law_book(find_device(gpu)) is not None else None


def bundled_front(engine: str, drafter: str) -> Front:
    data = bundled()
    for what, name, known in (("engine", engine, data["engines"]), ("drafter", drafter, data["drafters"])):
        if name not in known:
            raise InputError(f"the table has no {what} {name[:40]!r}; it has {', '.join(known)}")

    def link(model: str, gpu: str, cell: FrontCell) -> str:
        fields = {"model": model, "gpu": gpu, "gpus": str(cell.gpus), "engine": engine}
        fields |= {} if drafter == "own" else {"drafter": drafter}
        prices = bundled_prices(gpu) if store.available() else None  # installed tables would give other numbers
        return f"./?{urlencode(fields | ({} if prices is None else {'prices': prices}))}"

    cells: dict[str, dict[str, dict[str, dict[str, Any]]]] = data["cells"]
    rows = [
        Row(
            model=name,
            billions=billions,
            experts=experts,
            cells={
                gpu: cell_from(by_engine[engine][drafter])
                for gpu, by_engine in cells[name].items()
                if engine in by_engine
            },
        )
        for name, billions, experts in data["models"]
    ]
    return Front(engine=engine, drafter=drafter, gpus=data["gpus"], rows=rows, link=link)
