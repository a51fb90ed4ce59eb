"""`specmargin validate A B`: two price sources on measured steps and on a common grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.prices import KINDS, measured_file, measured_names
from specmargin.cli import render
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError, needs_extra
from specmargin.prices.measured_schema import PriceFile

if TYPE_CHECKING:
    from specmargin.validation.sources import CommonGrid, StepErrors

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_DEPTH = 7
_SHOWN = (0, 1, 3, 7)


def compare_sources(
    sources: Sequence[str], *, model: str | None, gpu: str, figure: Path | None, force: bool, json: bool
) -> None:
    with needs_extra("measure"):
        from specmargin.validation.sources import common_grid, step_errors
    if figure is not None:
        from specmargin.figures.files import check_target

        check_target(figure, force=force)
    for name in sources:
        _check_source(name)
    names = [*sources, *(["laws"] if len(sources) == 1 else [])]
    measured = {name: file for name in names if (file := measured_file(name)) is not None}
    if model is None and not measured:
        raise InputError(f"validate {' '.join(sources)}: neither is a measurement, so give --model (and --gpu)")
    model = model or next(iter(measured.values())).model.name
    scenarios = {name: _scenario(model, gpu, name) for name in [*names, "datasheet"]}
    steps = {name: step_errors(file, scenarios[name].architecture, scenarios) for name, file in measured.items()}
    grid = common_grid(scenarios, _BATCHES, _DEPTH)
    if figure is not None:
        _draw(measured, scenarios, figure)
    if json:
        render.json_out(_payload(steps, grid))
    else:
        _show(steps, grid, names, model)


def _check_source(name: str) -> None:
    """Refuse misspelt names before the work."""
    bundled = [*KINDS, *measured_names()]
    if name.partition(":")[0] not in bundled and not Path(name.partition(":")[0]).exists():
        raise InputError(f"validate: {name!r} is not a price source ({', '.join(bundled)}, or a FILE), nor speedups")


def _scenario(model: str, gpu: str, prices: str) -> Scenario:
    """With a free drafter, so that only the price of steps differs."""
    request = ScenarioRequest(model=model, gpu=gpu, prices=prices, drafter="free", acceptance="0.7", context=520)
    return scenario_of(request)[1]


def _show(steps: Mapping[str, list[StepErrors]], grid: CommonGrid, names: Sequence[str], model: str) -> None:
    out = render.console()
    for file, lines in steps.items():
        sources = list(dict.fromkeys(line.source for line in lines))
        columns = [("steps", "left"), ("points", "right"), *((source, "right") for source in sources)]
        shown = render.table(f"{model}, steps measured in {file}: median (worst) error", columns)
        for kind in dict.fromkeys(line.kind for line in lines):
            group = [line for line in lines if line.kind == kind]
            cells = [f"{line.median_error:.1%} ({line.worst_error:.0%})" for line in group]
            shown.add_row(kind, str(group[0].points), *cells)
        out.print(shown)
    _show_grid(out, grid, names)


def _show_grid(out: Console, grid: CommonGrid, names: Sequence[str]) -> None:
    first, second = names
    columns = [("batch", "right"), *((f"depth {d}", "right") for d in _SHOWN)]
    columns += [(f"{first} depth", "right"), (f"{second} depth", "right")]
    shown = render.table(
        f"Step time of {first} over {second}; best depth of each at acceptance 0.7, free drafter", columns
    )
    ratio = grid.seconds[first] / grid.seconds[second]
    for index, batch in enumerate(grid.batches):
        cells = [f"{ratio[index, depth]:.2f}" for depth in _SHOWN]
        shown.add_row(str(batch), *cells, str(grid.best_depth[first][index]), str(grid.best_depth[second][index]))
    out.print(shown)


def _payload(steps: Mapping[str, list[StepErrors]], grid: CommonGrid) -> dict[str, Any]:
    return {
        "schema": "specmargin.validate-sources/1",
        "steps": {file: [asdict(line) for line in lines] for file, lines in steps.items()},
        "batches": grid.batches.tolist(),
        "depths": grid.depths.tolist(),
        "step_seconds": {name: seconds.tolist() for name, seconds in grid.seconds.items()},
        "best_depth": {name: best.tolist() for name, best in grid.best_depth.items()},
    }


def _draw(measured: Mapping[str, PriceFile], scenarios: Mapping[str, Scenario], path: Path) -> None:
    if not measured:
        raise InputError(f"{path}: no measured steps to draw; name a file of `specmargin measure vllm`")
    from specmargin.figures.files import save
    from specmargin.figures.measured import residual_figure

    file = next(iter(measured))
    save(residual_figure(measured[file], scenarios[file].architecture, scenarios), path)
