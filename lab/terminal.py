"""What all commands of the laboratory share: options, tables, progress, and errors in one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from specmargin.errors import SpecmarginError

_WIDTH = 100
Item = TypeVar("Item")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Its help is the module's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def run(main: Callable[[], object], doc: str | None = None) -> None:
    """Run a command: expected errors are one sentence. `doc` is the help of a command without options."""
    if doc is not None:
        parser(doc).parse_args()
    try:
        main()
    except SpecmarginError as error:
        sys.exit(f"error: {error}")


def console() -> Console:
    """Terminals keep their width; pipes and files get 100 columns."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)


def table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Columns of words, then columns of numbers, which never wrap."""
    shown = Table(
        title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    sides: tuple[tuple[Literal["left", "right"], Sequence[str]], ...] = (("left", left), ("right", right))
    for side, headings in sides:
        for heading in headings:
            shown.add_column(escape(heading), justify=side, header_style="dim", no_wrap=side == "right")
    return shown


def note(out: Console, text: str) -> None:
    out.print(text, style="dim", markup=False)


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A transient bar on standard error; yields the function that advances it. Without a terminal, one line."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        print(f"{name} …", file=sys.stderr, flush=True)
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def tracked(name: str, items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over the items under a progress bar."""
    with progress(name, len(items)) as advance:
        for item in items:
            yield item
            advance(1)
