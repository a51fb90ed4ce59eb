"""Output options, which are not part of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OUTPUT = "Output"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Machine-readable output (versioned schema).", rich_help_panel=OUTPUT)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.", rich_help_panel=OUTPUT)]


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
