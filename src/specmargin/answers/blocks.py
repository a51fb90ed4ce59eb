"""What an answer shows, apart from how it is drawn: lines, tables, and text to copy. `show/terminal.py` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specmargin.sources import Source


class Style(StrEnum):
    PLAIN = "plain"
    BOLD = "bold"
    DIM = "dim"
    WARNING = "warning"
    ERROR = "error"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph, wrapped to the width of the terminal."""

    text: str = ""
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text to copy: never wrapped, and without a style."""

    text: str


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    right: bool = False
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    dim: frozenset[int] = frozenset()  # rows that are shown dimmed
    bold: frozenset[int] = frozenset()


Block = Line | Verbatim | Table
GAP = Line()


def bold(text: str) -> Line:
    return Line(text, Style.BOLD)


def dim(text: str) -> Line:
    return Line(text, Style.DIM)


def left(*names: str) -> list[Column]:
    """Columns of text."""
    return [Column(name) for name in names]


def right(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, right=True) for name in names]


def warned(texts: Sequence[str]) -> Iterator[Line]:
    for text in texts:
        yield Line(f"warning: {text}", Style.WARNING)


def sourced(source_by_name: Mapping[str, Source]) -> Iterator[Line]:
    """The source of each input, one line per source."""
    yield dim("sources")
    names_by_source: dict[Source, list[str]] = {}
    for name, source in source_by_name.items():
        names_by_source.setdefault(source, []).append(name)
    for source, names in names_by_source.items():
        yield dim(f"  {', '.join(names)}: {source}")


def owned(source_by_name: Mapping[str, Source]) -> Iterator[Line]:
    """The user's own entries, and those that replace bundled ones."""
    own = [name for name, source in source_by_name.items() if source.file and not source.overrides]
    if own:
        yield dim(f"yours: {', '.join(own)}")
    replaced = {name: source.file for name, source in source_by_name.items() if source.overrides}
    yield from warned([f"{name}: your {file} replaces the bundled entry" for name, file in replaced.items()])
