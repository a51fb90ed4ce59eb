"""`specmargin validate`: your own measurements against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.cli import options as o
from specmargin.errors import InputError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_IN_THE_LABORATORY = ("kernels", "modules", "steps", "rounds", "scaled", "served")

WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRICES [PRICES] | speedups FILE.csv]",
        help="One or two price sources to compare: a FILE of `specmargin measure`, a bundled one, tables, laws, "
        "datasheet. Or speedups FILE.csv: measured speed-ups, published or yours (columns: docs/reference/files.md).",
    ),
]
FigureOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw predicted against measured: FILE.png, .svg, .html or .json.")
]


@app.command()
def validate(
    what: WhatArgument = None,
    figure: FigureOption = None,
    model: Annotated[str | None, typer.Option(help="Model of the compared prices. Default: the measured one.")] = None,
    gpu: Annotated[str, typer.Option(help="GPU of the compared prices.")] = "h200",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the figure.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Compare your own measurements with predictions: whole steps, or speed-ups of speculation.

    The errors of the bundled prices on public measurements are printed by `make lab` in a checkout of the repository.
    Examples:

      specmargin validate mine.json laws           steps that you measured, against the bundled laws

      specmargin validate mine.json --plot out.png

      specmargin validate speedups mine.csv        speed-ups that you measured
    """
    given = what or []
    if given[:1] == ["speedups"]:
        from specmargin.cli.validate_speedups import validate_speedups

        return validate_speedups(given[1:], figure=figure, force=force, json=json)
    _check_sources(given)
    from specmargin.cli.validate_sources import compare_sources

    return compare_sources(given, model=model, gpu=gpu, figure=figure, force=force, json=json)


def _check_sources(given: list[str]) -> None:
    for name in given:
        if name in _IN_THE_LABORATORY:
            raise InputError(
                f"validate {name} is not in the package: run `python -m lab.validation.{name}` in a checkout of the "
                "repository, or `make lab` for all parts"
            )
    if not 1 <= len(given) <= 2:
        raise InputError(
            "validate needs one or two price sources (a FILE of `specmargin measure`), or speedups FILE.csv; "
            "`make lab` in a checkout of the repository compares the bundled prices with public measurements"
        )
