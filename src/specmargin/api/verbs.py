"""The verbs as functions. Arguments are the options of the command line, with underscores, checked by the same request.

import specmargin
plan = specmargin.plan("qwen3.6-35b-a3b", gpu="h200")
plan.to_frame()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specmargin.answers.request_schema import read_request
from specmargin.api.results import SimulateResult, SweepResult
from specmargin.app.verbs_schema import SimulateRequest
from specmargin.errors import needs_extra
from specmargin.files import check_new

if TYPE_CHECKING:
    from specmargin.verbs.coverage import CoverageAnswer, GroupingAnswer
    from specmargin.verbs.duel import DuelAnswer
    from specmargin.verbs.plan import PlanAnswer
    from specmargin.verbs.price import PriceAnswer


def plan(model: str, **options: Any) -> PlanAnswer:
    """Whether speculation pays, the draft depth per batch size, and the engine configuration.

    Options are those of `specmargin plan`, with underscores: `gpu="h200", gpus=8, acceptance="0.8"`.
    """
    from specmargin.verbs.plan import plan as verb  # noqa: PLC0415

    return verb.ask(model=model, **options)


def price(model: str, **options: Any) -> PriceAnswer:
    """The ledger of one step: seconds, bytes and FLOPs by component. Options are those of `specmargin price`."""
    from specmargin.verbs.price import price as verb  # noqa: PLC0415

    return verb.ask(model=model, **options)


def coverage(model: str, **options: Any) -> CoverageAnswer | GroupingAnswer:
    """Distinct experts by number of positions. Options are those of `specmargin coverage`."""
    from specmargin.verbs.coverage import coverage as verb  # noqa: PLC0415

    return verb.ask(model=model, **options)


def duel(model: str, **options: Any) -> DuelAnswer:
    """One more sequence against one more draft token. Options are those of `specmargin duel`; `alpha` is required."""
    from specmargin.verbs.duel import duel as verb  # noqa: PLC0415

    return verb.ask(model=model, **options)


def simulate(model: str, **options: Any) -> SimulateResult:
    """A workload served under one policy or several. Options are those of `specmargin simulate`."""
    with needs_extra("simulate"):
        from specmargin.app.simulating import simulated  # noqa: PLC0415

    return SimulateResult(simulated(read_request(SimulateRequest, {"model": model, **options})))


def sweep(grid: str | Path | Mapping[str, Any], *, output: str | Path | None = None, workers: int = 1) -> SweepResult:
    """Every cell of a grid: a TOML file as `specmargin sweep` takes it, or the same as a dictionary.

    `output`: the file of finished cells, which are not run again; without it nothing is kept. With several `workers`, a
    script needs the usual `if __name__ == "__main__":`, because they are processes.
    """
    with needs_extra("simulate"):
        from specmargin.app.sweeping import cells_of, runner_of, swept  # noqa: PLC0415

    source = grid if isinstance(grid, Mapping) else Path(grid)
    cells = cells_of(source)
    folder = Path() if isinstance(source, Mapping) else source.parent
    if output is not None:
        check_new(Path(output), force=True)  # cells in it are kept
        return SweepResult(swept(cells, Path(output), folder, runner_of(workers)))
    with TemporaryDirectory() as temporary:
        return SweepResult(swept(cells, Path(temporary) / "cells.jsonl", folder, runner_of(workers)))
