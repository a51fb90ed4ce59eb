"""`specmargin.plan(...)`: what the command line answers, from Python. Same request, same defaults, same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specmargin.app.payload import payload
from specmargin.app.planning import Answer, answers
from specmargin.app.request_schema import read_request
from specmargin.app.verbs_schema import PlanRequest
from specmargin.decisions.rows import PlanRow
from specmargin.decisions.verdict import verdict
from specmargin.errors import needs_extra
from specmargin.formats import find_engine

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What `specmargin plan` answers."""

    request: PlanRequest
    answers: tuple[Answer, ...]  # one per drafter, the best first

    @property
    def verdict(self) -> str:
        return verdict(self.answers[0].plan)

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        """One per batch size, for the best drafter."""
        return self.answers[0].plan.rows

    def flags(self, engine: str | None = None) -> str:
        """The setting to paste, for the engine that was priced or for another one of the same prices."""
        if engine is None or engine == self.request.engine:
            return self.answers[0].config.text
        return plan(**(self.request.model_dump(exclude_unset=True) | {"engine": engine})).flags()

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `specmargin plan --json`."""
        return payload(list(self.answers), find_engine(self.request.engine), self.request.gpu_hour_price)

    def to_frame(self) -> pl.DataFrame:
        """One row per batch size, as in `to_dict()["rows"]`."""
        with needs_extra("routing"):
            import polars as pl  # noqa: PLC0415 (an extra)

        rows = self.to_dict()["rows"]
        return pl.DataFrame([{name: row[name] for name in row if name != "hurdle_by_component"} for row in rows])

    def __str__(self) -> str:
        return self.verdict


def plan(model: str, **options: Any) -> PlanResult:
    """Does speculation pay, how deep at each batch, and the engine's setting.

    Options are those of `specmargin plan`, with underscores: `gpu="h200", gpus=8, acceptance="0.8"`.
    """
    request = read_request(PlanRequest, {"model": model, **options})
    return PlanResult(request=request, answers=tuple(answers(request)))
