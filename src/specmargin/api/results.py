"""The answers as Python objects: `verdict`, `rows`, `to_dict()`, `to_frame()`, `plot()` and a view in notebooks.

Every object is the command line's answer to the same request: `to_dict()` is what `--json` prints.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specmargin.errors import needs_extra

if TYPE_CHECKING:
    import polars as pl

    from specmargin.app.simulating import Simulated
    from specmargin.app.sweeping import Swept
    from specmargin.figures.figure import Chart

_SHOWN_ROWS, _SHOWN_COLUMNS = 12, 8  # of a notebook's table


class Result(ABC):
    """What every answer has."""

    __slots__ = ()

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The answer in a sentence or two."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints on the command line."""

    @abstractmethod
    def _table(self) -> list[dict[str, Any]]:
        """The rows of `to_frame`."""

    @abstractmethod
    def plot(self) -> Chart:
        """An Altair chart, the one of `--plot`; needs `specmargin[figures]`."""

    def to_frame(self) -> pl.DataFrame:
        """The rows as a Polars table, without values that are tables of their own; needs `specmargin[notebook]`."""
        with needs_extra("notebook"):
            import polars as pl  # noqa: PLC0415 (an extra)

        return pl.DataFrame(plain_rows(self._table()), infer_schema_length=None)

    def __str__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        """For notebooks: the verdict and the first rows and columns."""
        rows = plain_rows(self._table())
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


@dataclass(frozen=True, slots=True, repr=False)
class SimulateResult(Result):
    """What `specmargin simulate` answers: one row per policy."""

    simulated: Simulated

    @property
    def verdict(self) -> str:
        return self.simulated.verdict

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.simulated.rows

    def to_dict(self) -> dict[str, Any]:
        from specmargin.app.simulating import simulated_json  # noqa: PLC0415

        return simulated_json(self.simulated)

    def _table(self) -> list[dict[str, Any]]:
        return self.simulated.flat_rows

    def plot(self) -> Chart:
        with needs_extra("figures"):
            from specmargin.api.charts import simulation_chart  # noqa: PLC0415
        return simulation_chart(self.simulated)


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult(Result):
    """What `specmargin sweep` answers: one row per cell."""

    swept: Swept

    @property
    def verdict(self) -> str:
        return self.swept.verdict

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.swept.rows

    def to_dict(self) -> dict[str, Any]:
        from specmargin.app.sweeping import swept_json  # noqa: PLC0415

        return swept_json(self.swept)

    def _table(self) -> list[dict[str, Any]]:
        return self.rows

    def plot(self) -> Chart:
        with needs_extra("figures"):
            from specmargin.api.charts import sweep_chart  # noqa: PLC0415
        return sweep_chart(self.swept)
