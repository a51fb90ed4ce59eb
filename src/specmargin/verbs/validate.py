"""Compare your own measurements with predictions: whole steps of a price file against other prices.

The errors of the bundled prices on public measurements are printed by `make lab` in a checkout of the repository;
measured speed-ups are compared by `specmargin validate speedups`.

Examples:

  specmargin validate mine.json laws           steps that you measured, against the bundled laws

  specmargin validate mine.json --plot out.png
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Table, left, right
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import Request, ScenarioRequest, Shown
from specmargin.answers.verb import verb
from specmargin.errors import InputError

if TYPE_CHECKING:
    from specmargin.decisions.grid import Grid
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_DEPTH = 7
_SHOWN = (0, 1, 3, 7)
_IN_THE_LABORATORY = ("kernels", "modules", "steps", "rounds", "scaled", "served")


class ValidateRequest(Request):
    prices: Annotated[
        tuple[str, ...],
        Field(
            description="One or two price sources to compare: a FILE of `specmargin measure`, a bundled one, tables, "
            "laws, datasheet."
        ),
        Shown(argument=True, metavar="[PRICES [PRICES]]"),
    ] = ()
    model: Annotated[
        str | None,
        Field(description="Model of the compared prices."),
        Shown(metavar="MODEL", default="the measured one"),
    ] = None
    gpu: Annotated[str, Field(description="GPU of the compared prices."), Shown(metavar="GPU")] = "h200"


@verb(ValidateRequest, outputs=ChartOutputs)
def validate(request: ValidateRequest) -> ValidateAnswer:
    from specmargin.catalog.prices import measured_file
    from specmargin.decisions.pricer import Pricer
    from specmargin.validation.sources import step_points

    _check(request.prices)
    names = [*request.prices, *(["laws"] if len(request.prices) == 1 else [])]
    measured = {name: file for name in names if (file := measured_file(name)) is not None}
    if request.model is None and not measured:
        given = " ".join(request.prices)
        raise InputError(f"validate {given}: neither is a measurement, so give --model (and --gpu)")
    model = request.model or next(iter(measured.values())).model.name
    scenarios = {name: _scenario(model, request.gpu, name) for name in [*names, "datasheet"]}
    return ValidateAnswer(
        request=request,
        model=model,
        names=names,
        points={name: step_points(file, scenarios[name].architecture, scenarios) for name, file in measured.items()},
        origins={name: f"{file.conditions['engine']}, {file.conditions['machine']}" for name, file in measured.items()},
        grids={name: Pricer(scenario).grid(_BATCHES, _DEPTH) for name, scenario in scenarios.items()},
    )


def _check(prices: Sequence[str]) -> None:
    """Refuse misspelt names before the work."""
    from specmargin.catalog.prices import KINDS, measured_names

    moved = next((name for name in prices if name in _IN_THE_LABORATORY), None)
    if moved is not None:
        raise InputError(
            f"validate {moved} is not in the package: run `python -m lab.validation.{moved}` in a checkout of the "
            "repository, or `make lab` for all parts"
        )
    if not 1 <= len(prices) <= 2:
        raise InputError(
            "validate needs one or two price sources (a FILE of `specmargin measure`), or speedups FILE.csv; "
            "`make lab` in a checkout of the repository compares the bundled prices with public measurements"
        )
    bundled = [*KINDS, *measured_names()]
    for name in prices:
        if name.partition(":")[0] not in bundled and not Path(name.partition(":")[0]).exists():
            raise InputError(
                f"validate: {name!r} is not a price source ({', '.join(bundled)}, or a FILE), nor speedups"
            )


def _scenario(model: str, gpu: str, prices: str) -> Scenario:
    """With a free drafter, so that only the price of steps differs."""
    from specmargin.answers.scenarios import scenario_of

    request = ScenarioRequest(model=model, gpu=gpu, prices=prices, drafter="free", acceptance="0.7", context=520)
    return scenario_of(request)[1]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateAnswer(Answer[ValidateRequest]):
    model: str
    names: Sequence[str]  # of the two sources
    points: Mapping[str, list[dict[str, Any]]]  # by measurement: its steps beside their prices
    origins: Mapping[str, str]  # of the measurements
    grids: Mapping[str, Grid]

    schema: ClassVar[str] = "specmargin.validate-sources/1"

    @property
    def verdict(self) -> str:
        return f"{self.model}: {' and '.join(self.names)} compared"

    @property
    def steps(self) -> dict[str, list[dict[str, Any]]]:
        """Errors by measurement."""
        from specmargin.validation.sources import step_errors

        return {file: step_errors(points) for file, points in self.points.items()}

    @property
    def best_depth(self) -> dict[str, list[int]]:
        """By source and batch."""
        return {name: grid.goodput.argmax(axis=1).tolist() for name, grid in self.grids.items()}

    def table(self) -> list[dict[str, Any]]:
        return [{"file": file, **line} for file, lines in self.steps.items() for line in lines]

    def values(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "batches": list(_BATCHES),
            "depths": list(range(_DEPTH + 1)),
            "step_seconds": {name: grid.verify_seconds.tolist() for name, grid in self.grids.items()},
            "best_depth": self.best_depth,
        }

    def blocks(self) -> Iterator[Block]:
        for file, lines in self.steps.items():
            yield _errors(f"{self.model}, steps measured in {file}: median (worst) error", lines)
        first, second = self.names
        ratio = self.grids[first].verify_seconds / self.grids[second].verify_seconds
        best = self.best_depth
        yield Table(
            title=f"Step time of {first} over {second}; best depth of each at acceptance 0.7, free drafter",
            columns=right("batch", *(f"depth {depth}" for depth in _SHOWN), f"{first} depth", f"{second} depth"),
            rows=[
                [
                    str(batch),
                    *(f"{ratio[index, depth]:.2f}" for depth in _SHOWN),
                    str(best[first][index]),
                    str(best[second][index]),
                ]
                for index, batch in enumerate(_BATCHES)
            ],
        )

    def chart(self) -> Chart:
        from specmargin.show.figures.validation import steps_figure

        if not self.points:
            raise InputError("no measured steps to draw; name a file of `specmargin measure vllm`")
        file, points = next(iter(self.points.items()))
        return steps_figure(points, model=self.model, source=f"{file}: {self.origins[file]}").chart()


def _errors(title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for kind in dict.fromkeys(line["kind"] for line in lines):
        group = [line for line in lines if line["kind"] == kind]
        cells = [f"{line['median_error']:.1%} ({line['worst_error']:.0%})" for line in group]
        rows.append([kind, str(group[0]["points"]), *cells])
    sources = dict.fromkeys(line["source"] for line in lines)
    return Table(title=title, columns=[*left("steps"), *right("points", *sources)], rows=rows)
