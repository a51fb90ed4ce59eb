"""Answers in a terminal: 80 columns in pipes and files, one table style, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any, Literal, assert_never

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, Style, Table, Verbatim
from specmargin.answers.outputs_schema import Outputs

WIDTH = 80
_PATIENCE_SECONDS = 2.0
_STYLES = {
    Style.PLAIN: "",
    Style.BOLD: "bold",
    Style.DIM: "dim",
    Style.WARNING: "yellow",
    Style.ERROR: "red",
    Style.GOOD: "green",
}


def console() -> Console:
    """Terminals keep their width; pipes and files get 80 columns."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def show_answer(answer: Any, outputs: Outputs) -> int:
    """Show one answer, or answers as they come (`watch`); some verbs have none (`explore`)."""
    if answer is None:
        return 0
    if not isinstance(answer, Answer):
        return show_live(answer, as_json=outputs.as_json)
    answer = answer.written(outputs)
    if outputs.as_json:
        show_json(answer.to_dict())
    else:
        show(answer.explained() if getattr(outputs, "explain", False) else answer.blocks())
    return int(answer.exit_code)


def show(blocks: Iterable[Block], out: Console | None = None) -> None:
    out = out or console()
    for block in blocks:
        if isinstance(block, Verbatim):
            print(block.text)  # not through Rich, which wraps
        else:
            out.print(_drawn(block))


def show_live(answers: Iterable[Answer[Any]], *, as_json: bool) -> int:
    """Answers as they come: in place on a terminal, else one after the other. Ctrl-C ends them."""
    out = console()
    with suppress(KeyboardInterrupt):
        if as_json:
            for answer in answers:
                show_json(answer.to_dict())
        elif out.is_terminal:
            from rich.live import Live  # noqa: PLC0415 (only `watch` needs it)

            with Live(console=out, auto_refresh=False) as live:
                for answer in answers:
                    live.update(Group(*map(_drawn, answer.blocks())), refresh=True)
        else:
            for answer in answers:
                show(answer.blocks(), out)
    return 0


def _drawn(block: Block) -> RenderableType:
    match block:
        case Line():
            return Text(block.text, style=_STYLES[block.style])
        case Verbatim():
            return Text(block.text, no_wrap=True, overflow="ignore")
        case Table():
            return drawn(block)
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
        style = _STYLES[column.style]
        shown.add_column(escape(column.name), justify=side, style=style, header_style="dim", no_wrap=index == 0)
    for index, row in enumerate(table.rows):
        style = "dim" if index in table.dim else "bold" if index in table.bold else ""
        shown.add_row(*map(escape, row), style=style)
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
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error for every name that the yielded function is called with; they stay."""
    from rich.progress import (  # noqa: PLC0415 (slow)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Console(stderr=True)
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def watch(name: str, total: int, done: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield watch


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
