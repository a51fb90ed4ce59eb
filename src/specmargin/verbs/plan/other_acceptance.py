"""`plan --compare acceptance:…`: the same drafter with another acceptance, planned anew and shown beside the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specmargin.acceptance.survival import Survival
from specmargin.answers.blocks import Block, Table, Verbatim, bold, dim, left, right
from specmargin.answers.scenarios import early_stop_of
from specmargin.catalog.drafters import find_acceptance
from specmargin.decisions.rows import PlanRow
from specmargin.errors import AcceptanceError
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plan

_MOST_TIMES = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAcceptance:
    """The plan, and the plan of the same drafter if its tokens were accepted otherwise."""

    meaning: str  # of what was asked
    plan: DrafterPlan
    other: DrafterPlan

    @property
    def rows(self) -> list[tuple[PlanRow, PlanRow]]:
        """Both plans at the batches of the first, each with its own flags."""
        return [(row, self.other.plan.row_at(row.batch)) for row in self.plan.plan.rows]


def compare_acceptance(best: DrafterPlan, spec: str) -> OtherAcceptance:
    """`spec`: what `--acceptance` takes, or `x2`, a drafter twice as good."""
    scenario, times = best.plan.scenario, _times(spec)
    if times is None:
        survival = find_acceptance(spec, best.choice, scenario.architecture)
        meaning = f"acceptance {spec}"
    else:
        survival, meaning = scenario.survival.rejecting_less(times), _said(times)
    request = best.request.model_copy(update={"compare": None} | ({} if times is not None else {"acceptance": spec}))
    own_stop = request if times is None else request.model_copy(update={"acceptance": None})  # not a bank's own
    stop = early_stop_of(own_stop, best.choice, survival)
    other = drafter_plan(best.choice, best.plan.pricer.with_survival(survival, stop), request)
    return OtherAcceptance(meaning=meaning, plan=best, other=other)


def _times(spec: str) -> float | None:
    """The factor of `x2`; None for an acceptance."""
    if not spec.lower().startswith("x"):
        return None
    try:
        times = float(spec[1:])
    except ValueError:
        times = 0.0
    if not 0.0 < times <= _MOST_TIMES:
        raise AcceptanceError(
            f"--compare acceptance:{spec}: give xN with N above 0 (x2: half as many rejections at every position), or "
            "what --acceptance takes"
        )
    return times


def _said(times: float) -> str:
    if times == 2.0:
        return "twice as good: half as many rejections at every position"
    return f"{times:g} times as good: 1/{times:g} of the rejections at every position"


# --- in the terminal and as JSON ---


def other_acceptance_blocks(of: OtherAcceptance) -> Iterator[Block]:
    yield bold(f"the same drafter, {of.meaning}")
    yield Table(
        columns=[*right("batch", "plan", "tok/s"), *right("this", "tok/s", "gain")],
        rows=[
            [
                f"{row.batch:,}",
                _gain(row),
                f"{row.goodput_tokens_per_second:,.0f}",
                _gain(other),
                f"{other.goodput_tokens_per_second:,.0f}",
                f"{other.goodput_tokens_per_second / row.goodput_tokens_per_second - 1.0:+.0%}",
            ]
            for row, other in of.rows
        ],
    )
    depth = max(of.plan.plan.setting.max_depth, 1)
    first, other = (_accepted(each.plan.scenario.survival, depth) for each in (of.plan, of.other))
    yield dim(f"plan: {first}; this: {other}")
    yield from _services(of)
    if of.other.config.text != of.plan.config.text:
        yield bold("flags with this acceptance:")
        yield Verbatim(of.other.config.text or "none: leave speculation off")


def _services(of: OtherAcceptance) -> Iterator[Block]:
    sides = {"plan": of.plan.service, "this": of.other.service}
    served = {name: service for name, service in sides.items() if service is not None}
    if served:
        yield Table(
            columns=[*left("service"), *right("speed-up", "tok/s", "ms/token")],
            rows=[
                [
                    name,
                    f"{service.speedup:.2f}×",
                    f"{service.speculating.tokens_per_second:,.0f}",
                    f"{(service.speculating.tpot_seconds or 0.0) * 1e3:.2f}",
                ]
                for name, service in served.items()
            ],
        )


def _gain(row: PlanRow) -> str:
    return f"{row.depth} {row.speedup:.2f}×" if row.fits else f"({row.depth} {row.speedup:.2f}×)"


def _accepted(survival: Survival, depth: int) -> str:
    accepted = float(survival.accepted_by_depth(depth)[-1])
    return f"{survival.first_acceptance:.2f} for the first token, {accepted:.2f} accepted of drafts of {depth}"


def other_acceptance_values(of: OtherAcceptance) -> dict[str, Any]:
    """The key that `--compare acceptance:…` adds."""
    depth = max(of.plan.plan.setting.max_depth, 1)
    values: dict[str, Any] = {
        "meaning": of.meaning,
        "survival": [float(part) for part in of.other.plan.scenario.survival.up_to(depth)],
        "rows": [_row_values(row, other) for row, other in of.rows],
        "config": of.other.config.text,
        "schedule": [[r.first, r.last, r.depth] for r in of.other.config.schedule.ranges],
    }
    if of.other.service is not None and of.other.service_range is not None:
        values["service"] = of.other.service.values(*of.other.service_range)
    return {"other_acceptance": values}


def _row_values(row: PlanRow, other: PlanRow) -> dict[str, Any]:
    return {
        "batch": row.batch,
        "depth": row.depth,
        "speedup": row.speedup,
        "tokens_per_second": row.goodput_tokens_per_second,
        "other_depth": other.depth,
        "other_speedup": other.speedup,
        "other_tokens_per_second": other.goodput_tokens_per_second,
        "other_fits": other.fits,
        "gain": other.goodput_tokens_per_second / row.goodput_tokens_per_second - 1.0,
    }
