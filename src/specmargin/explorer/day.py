"""A simulated day of the page's scenario, and policies compared on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import altair as alt

from specmargin.app.request_schema import ScenarioRequest
from specmargin.caching import made_once
from specmargin.decisions.pricer import Pricer
from specmargin.errors import needs_extra
from specmargin.explorer.view import View
from specmargin.figures.figure import Figure
from specmargin.figures.simulation import day_figure, policies_figure
from specmargin.figures.words import price_source, setting

if TYPE_CHECKING:
    from specmargin.simulator.results import Result

# Low load at night and two peaks, relative to the busiest hour. A day is compressed to two hours to simulate fast.
_HOURS = (0.0, 3.0, 6.0, 8.0, 10.0, 11.5, 13.0, 15.0, 17.0, 19.0, 21.0, 24.0)
_SHAPE = (0.07, 0.03, 0.05, 0.32, 0.82, 1.0, 0.73, 1.0, 0.73, 0.45, 0.23, 0.07)
_SPEED = 12.0
_PROMPT, _OUTPUT = 500, 200  # tokens
_PEAK = 0.8  # of the goodput at the marked batch
_DEEPEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DayKey:
    """The inputs of a simulated day."""

    request: ScenarioRequest
    batch: int
    peak_tokens_per_second: float


def _day_key(view: View) -> DayKey:
    return DayKey(
        request=view.request.scenario_only(),
        batch=view.batch,
        peak_tokens_per_second=view.row.no_spec_tokens_per_second * _PEAK,
    )


def simulated_day(view: View) -> Figure:
    """Load, depth and speed over a day under the plan's schedule, compared in the takeaway with no speculation."""
    no_spec, planned = (_simulated(_day_key(view), view.pricer, policy) for policy in ("none", "schedule"))
    timeline = [row | {"hour": row["hour"] * _SPEED} for row in planned.timeline()]
    before, after = no_spec.summary(), planned.summary()
    return Figure(
        name="day",
        title="A simulated day",
        takeaway=(
            f"{setting(view.scenario)}: {planned.requests.count:,} requests of {_PROMPT} + {_OUTPUT} tokens, a day "
            f"compressed to {24 / _SPEED:.0f} hours. With the plan's schedule the median time between tokens is "
            f"{after['tpot_seconds']['p50'] * 1e3:.2f} ms, without speculation "
            f"{before['tpot_seconds']['p50'] * 1e3:.2f} ms."
        ),
        source=f"Specmargin's simulator (modelled, load assumed); {price_source(view.pricer)}",
        tables={},
        draw=_FixedChart(day_figure("", timeline, hours=24.0)),
        shape=(hash(_day_key(view)),),
    )


def policies(view: View) -> Figure:
    """The same requests under several policies."""
    names = ("none", "off", "fixed:1", f"fixed:{max(view.row.depth, 2)}", "schedule")
    results = [_simulated(_day_key(view), view.pricer, name) for name in dict.fromkeys(names)]
    rows = [result.policy_row() for result in results]
    best = min(rows, key=lambda row: row["tpot_p50_seconds"])
    return Figure(
        name="policies",
        title="Policies on the same simulated day",
        takeaway=(
            f"{setting(view.scenario)}: shortest median time between tokens under {best['policy']} "
            f"({best['tpot_p50_seconds'] * 1e3:.2f} ms). Rounds are drawn from the acceptance curve, without "
            f"confidences; drop a bank to compare policies that use confidence."
        ),
        source=f"Specmargin's simulator (modelled, load assumed); {price_source(view.pricer)}",
        tables={},
        draw=_FixedChart(policies_figure("", rows)),
        shape=(hash(_day_key(view)),),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _FixedChart:
    """A drawing function for a chart that contains its own rows."""

    chart: alt.VConcatChart | alt.HConcatChart

    def __call__(self, *_: object) -> alt.VConcatChart | alt.HConcatChart:
        return self.chart


@made_once(maxsize=32)
def _simulated(key: DayKey, pricer: Pricer, policy: str) -> Result:
    with needs_extra("simulate"):
        from specmargin.simulator.rounds import drawn_rounds  # noqa: PLC0415 (Numba is an extra)
        from specmargin.simulator.run import simulate  # noqa: PLC0415
        from specmargin.simulator.serving import Serving  # noqa: PLC0415
        from specmargin.simulator.workload import FixedLength, RateSchedule, Workload  # noqa: PLC0415

    peak = key.peak_tokens_per_second / _OUTPUT
    arrivals = RateSchedule(
        hours=tuple(hour / _SPEED for hour in _HOURS), requests_per_second=tuple(part * peak for part in _SHAPE)
    )
    depth = min(_DEEPEST, pricer.scenario.drafter.max_depth or _DEEPEST)
    return simulate(
        Serving(
            pricer=pricer,
            workload=Workload(
                arrivals=arrivals, prompt=FixedLength(tokens=_PROMPT), output=FixedLength(tokens=_OUTPUT)
            ),
            bank=drawn_rounds({"all": pricer.scenario.survival}, depth),
            policy=policy,
            max_depth=depth,
        )
    )
