"""Options that are not part of a request: what to do with the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmargin.app import request_schema
from specmargin.errors import ScenarioError

OUTPUT = "Output"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Machine-readable output (versioned schema).", rich_help_panel=OUTPUT)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.", rich_help_panel=OUTPUT)]


def check_plot(plot: Path | None, *, force: bool) -> None:
    """Before any work is done: that a figure can be drawn to this file."""
    if plot is not None:
        from specmargin.figures.files import check_target

        check_target(plot, force=force)


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """`1,2,4`, `1-8` or `1,4-6,32` of an option that is not part of a request."""
    try:
        numbers = request_schema.parse_numbers(text)
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
    assert isinstance(numbers, tuple)
    return numbers
