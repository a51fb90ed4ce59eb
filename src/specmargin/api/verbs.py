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

if TYPE_CHECKING:
    from specmargin.verbs.coverage import CoverageAnswer, GroupingAnswer
    from specmargin.verbs.duel import DuelAnswer
    from specmargin.verbs.plan import PlanAnswer
    from specmargin.verbs.price import PriceAnswer
    from specmargin.verbs.simulate import SimulateAnswer
    from specmargin.verbs.sweep import SweepAnswer


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


def simulate(model: str, **options: Any) -> SimulateAnswer:
    """A workload served under one policy or several. Options are those of `specmargin simulate`."""
    from specmargin.verbs.simulate import simulate as verb  # noqa: PLC0415

    return verb.ask(model=model, **options)


def sweep(grid: str | Path | Mapping[str, Any], *, output: str | Path | None = None, workers: int = 1) -> SweepAnswer:
    """Every cell of a grid: a TOML file as `specmargin sweep` takes it, or the same as a dictionary.

    `output`: the file of finished cells, which are not run again; without it nothing is kept. With several `workers`, a
    script needs the usual `if __name__ == "__main__":`, because they are processes.
    """
    from specmargin.verbs.sweep import SweepOutputs, SweepRequest, swept  # noqa: PLC0415

    given = dict(grid) if isinstance(grid, Mapping) else str(grid)
    request = read_request(SweepRequest, {"grid": given, "workers": workers})
    with TemporaryDirectory() as temporary:
        cells = Path(temporary) / "cells.jsonl" if output is None else Path(output)
        return swept(request, outputs=SweepOutputs(output=cells))
