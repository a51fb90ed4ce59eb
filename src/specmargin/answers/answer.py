"""The answer of a verb: what the terminal, JSON, a table, a chart and Python show of it."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from specmargin.answers.blocks import Block
from specmargin.answers.outputs_schema import FileOutputs, Outputs, PlotOutputs, TableOutputs
from specmargin.answers.request_schema import Request
from specmargin.errors import InputError, needs_extra
from specmargin.files import write_table, write_text

if TYPE_CHECKING:
    import polars as pl

    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart

RequestKind = TypeVar("RequestKind", bound=Request)
_SHOWN_ROWS, _SHOWN_COLUMNS = 12, 8  # of a notebook's table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(ABC, Generic[RequestKind]):
    """A verb defines `schema`, `verdict`, `values` and `blocks`; `rows` and `chart` where it has them."""

    request: RequestKind

    schema: ClassVar[str]

    # --- what a verb defines ---

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The answer in a sentence or two."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The JSON, without what every answer adds to it."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """What the terminal shows."""

    def explained(self) -> Iterator[Block]:
        """The same with all details (`--explain`)."""
        yield from self.blocks()

    @property
    def rows(self) -> Sequence[Any]:
        return self.table()

    def table(self) -> list[dict[str, Any]]:
        """The rows of `-o FILE.csv` and `to_frame()`."""
        return []

    def file_text(self) -> str:
        """The file of `-o`, of an answer that is one."""
        raise InputError("there is no file of this answer")

    def chart(self) -> Chart:
        raise InputError("there is no chart of this answer")

    @property
    def scenario(self) -> Scenario | None:
        """Whose resolved options the JSON gives."""
        return None

    def resolved(self) -> dict[str, Any]:
        """Options whose value was chosen by the verb, and not by the scenario."""
        return {}

    # --- what follows from it ---

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        from specmargin.answers.stamp import stamped  # noqa: PLC0415 (NumPy, which a help page does not need)

        values = stamped({"schema": self.schema} | self.values(), self.request, self.scenario)
        return values | ({"options": values["options"] | self.resolved()} if "options" in values else {})

    def to_frame(self) -> pl.DataFrame:
        """The rows as a Polars table, without values that are tables of their own; needs `specmargin[fast]`."""
        with needs_extra():
            import polars as pl  # noqa: PLC0415 (an extra)

        return pl.DataFrame(plain_rows(self.table()), infer_schema_length=None)

    def plot(self) -> Chart:
        """An Altair chart, the one of `--plot`; needs `specmargin[page]`."""
        with needs_extra():
            return self.chart()

    def written(self, outputs: Outputs) -> Self:
        """Write the files that were asked for; what is then shown may name them."""
        if isinstance(outputs, TableOutputs) and outputs.output is not None:
            write_table(outputs.output, self.table(), force=outputs.force)
        if isinstance(outputs, FileOutputs) and outputs.output is not None:
            write_text(outputs.output, self.file_text(), force=outputs.overwrites)
        if isinstance(outputs, PlotOutputs) and outputs.plot is not None:
            from specmargin.show.figures.files import save  # noqa: PLC0415 (an extra)

            save(self.plot(), outputs.plot)
        return self

    @property
    def exit_code(self) -> int:
        return 0

    def __str__(self) -> str:
        return self.verdict

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the verdict and the first rows and columns."""
        rows = plain_rows(self.table())
        names = list(rows[0])[:_SHOWN_COLUMNS] if rows else []
        head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_cell(row.get(name)))}</td>' for name in names)}</tr>"
            for row in rows[:_SHOWN_ROWS]
        )
        more = f"<p>{len(rows) - _SHOWN_ROWS} more rows</p>" if len(rows) > _SHOWN_ROWS else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p><b>{html.escape(self.verdict)}</b></p>{table}{more}"


def plain_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    nested = {name for row in rows for name, value in row.items() if isinstance(value, list | dict | tuple)}
    return [{name: value for name, value in row.items() if name not in nested} for row in rows]


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
