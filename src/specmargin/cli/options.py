"""Output options, which are not part of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

OUTPUT = "Output"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Machine-readable output (versioned schema).", rich_help_panel=OUTPUT)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.", rich_help_panel=OUTPUT)]

TableOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the table to FILE.csv or FILE.parquet.", rich_help_panel=OUTPUT),
]


def check_table(path: Path | None, *, force: bool) -> None:
    """Check before any work is done that a table can be written to this file."""
    from specmargin.files import check_table

    if path is not None:
        check_table(path, force=force)


def write_rows(path: Path | None, rows: Sequence[Mapping[str, Any]], *, force: bool) -> None:
    from specmargin.files import write_table

    if path is not None:
        write_table(path, rows, force=force)


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Check before any work is done that these files can be written."""
    from specmargin.files import check_new

    for path in paths:
        if path is not None:
            check_new(path, force=force)


def check_plot(plot: Path | None, *, force: bool) -> None:
    """Check before any work is done that a figure can be written to this file."""
    if plot is not None:
        from specmargin.figures.files import check_target

        check_target(plot, force=force)


def save_plot(path: Path, chart: Any) -> None:
    from specmargin.figures.files import save

    save(chart, path)
