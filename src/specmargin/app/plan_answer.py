"""The answer to a `plan` request and its JSON: for the command line and for Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specmargin.answers.request_schema import read_request
from specmargin.answers.stamp import stamped
from specmargin.app.payload import payload
from specmargin.app.planning import Answer, answers, compare
from specmargin.app.unverified import unverified_json
from specmargin.app.verbs_schema import PlanRequest
from specmargin.decisions.compare import Comparison, Side
from specmargin.decisions.unverified import Unverified
from specmargin.formats import find_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    request: PlanRequest
    ranked: tuple[Answer, ...]  # one per drafter, the best first
    compared: Comparison | Unverified | None  # with what `compare` names

    @property
    def best(self) -> Answer:
        return self.ranked[0]


def plan_answer(request: PlanRequest) -> PlanAnswer:
    ranked = tuple(answers(request))
    compared = None if request.compare is None else compare(ranked[0], request, request.compare)
    return PlanAnswer(request=request, ranked=ranked, compared=compared)


def flags_for(answer: PlanAnswer, engine: str) -> str:
    """The setting to paste. Another engine than the one that was priced is priced itself."""
    if engine == answer.request.engine:
        return answer.best.config.text
    options = answer.request.model_dump(exclude_unset=True) | {"engine": engine, "engine_version": None}
    return plan_answer(read_request(PlanRequest, options)).best.config.text


def plan_json(answer: PlanAnswer) -> dict[str, Any]:
    """The JSON of `specmargin plan --json`."""
    request = answer.request
    values = payload(list(answer.ranked), find_engine(request.engine), request.gpu_hour_price)
    if answer.compared is not None:
        values |= _compared_json(answer.compared)
    values = stamped(values, request, answer.best.plan.scenario)
    values["options"]["batch"] = [row.batch for row in answer.best.plan.rows]
    values["options"]["context"] = answer.best.plan.scenario.context
    return values


def _compared_json(compared: Comparison | Unverified) -> dict[str, Any]:
    """The key that `compare` adds."""
    if isinstance(compared, Unverified):
        return {"unverified": unverified_json(compared)}
    return {"comparison": _comparison_json(compared)}


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "prices": comparison.ours.prices.name,
        "other_prices": comparison.other.prices.name,
        "rows": [
            {
                "batch": row.batch,
                "ours": _side(row.ours),
                "other": _side(row.other),
                "differences": [
                    {"name": d.component, "added": d.added, "other_added": d.other_added} for d in row.differences
                ],
            }
            for row in comparison.rows
        ],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "depth": side.depth,
        "speedup": side.speedup,
        "verify_seconds": side.verify_seconds,
        "speedup_of_the_other_depth": side.speedup_of_the_other,
        "regret": side.regret,
    }
