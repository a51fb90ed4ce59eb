"""Answers in a terminal: 80 columns in pipes and files, one table style, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, Literal, assert_never

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from specmargin.answers.blocks import Block, Line, Style, Table, Verbatim

WIDTH = 80
_PATIENCE_SECONDS = 2.0
_STYLES = {Style.PLAIN: None, Style.BOLD: "bold", Style.DIM: "dim", Style.WARNING: "yellow"}


def console() -> Console:
    """Terminals keep their width; pipes and files get 80 columns."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def show(blocks: Iterable[Block], out: Console | None = None) -> None:
    out = out or console()
    for block in blocks:
        match block:
            case Line():
                out.print(block.text, style=_STYLES[block.style], markup=False)
            case Verbatim():
                print(block.text)  # not through Rich, which wraps
            case Table():
                out.print(drawn(block))
            case _:
                assert_never(block)


def show_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))


def drawn(table: Table) -> RichTable:
    shown = RichTable(
        title=escape(table.title) or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, column in enumerate(table.columns):
        # The first column has names, which are copied.
        side: Literal["left", "right"] = "right" if column.right else "left"
        shown.add_column(escape(column.name), justify=side, header_style="dim", no_wrap=index == 0)
    for index, row in enumerate(table.rows):
        shown.add_row(*row, style="dim" if index in table.dim else "")
    return shown


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A transient progress bar on standard error; yields the function that advances it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 (slow)

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    shown = Console(stderr=True)
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show the text on standard error, if that is a terminal, while the work takes longer than two seconds."""
    shown = Console(stderr=True)
    status = shown.status(text)
    timer = Timer(_PATIENCE_SECONDS, status.start)
    timer.daemon = True
    if shown.is_terminal:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may be starting the status
        status.stop()
