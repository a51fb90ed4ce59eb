"""Terminal output: 80 columns, one table style, sources under every table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specmargin.decisions.rows import PlanRow
from specmargin.sources import Source
from specmargin.words import duration

WIDTH = 80
_PATIENCE_SECONDS = 2.0
Item = TypeVar("Item")


def console() -> Console:
    """Terminals keep their width; pipes and files get 80 columns."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def table(title: str, columns: list[tuple[str, str]]) -> Table:
    """`columns`: (heading, justify)."""
    shown = Table(
        title=escape(title) or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, (heading, justify) in enumerate(columns):
        side: Literal["left", "right"] = "right" if justify == "right" else "left"
        shown.add_column(escape(heading), justify=side, header_style="dim", no_wrap=index == 0)  # names are copied
    return shown


def sources(out: Console, source_by_name: Mapping[str, Source]) -> None:
    """The source of each input, one line per source."""
    out.print("sources", style="dim")
    names_by_source: dict[Source, list[str]] = {}
    for name, source in source_by_name.items():
        names_by_source.setdefault(source, []).append(name)
    for source, names in names_by_source.items():
        out.print(f"  {', '.join(names)}: {source}", style="dim", markup=False)


def warnings(out: Console, texts: Sequence[str]) -> None:
    for text in texts:
        out.print(f"warning: {text}", style="yellow", markup=False)


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A transient progress bar on standard error; yields the function that advances it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
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


def tracked(name: str, items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over the items under a progress bar."""
    with progress(name, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


def json_out(payload: dict[str, Any]) -> None:
    if "version" not in payload:
        from specmargin.answers.stamp import stamped

        payload = stamped(payload)
    print(json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False))


def seconds(value: float) -> str:
    return duration(value)


def amount(value: float, unit: str) -> str:
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def hurdle(row: PlanRow) -> str:
    """A probability, or words where it is none."""
    return row.hurdle_note or f"{row.hurdle:.2f}"


def tokens_per_second(value: float) -> str:
    return f"{value:,.0f}"
