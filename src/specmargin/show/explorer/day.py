"""A simulated day of the page's scenario, and policies compared on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.caches import made_once
from specmargin.decisions.pricer import Pricer
from specmargin.show.explorer.view import View
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.simulation import Run, Words, day_figure, policies_figure
from specmargin.show.figures.words import described, price_source

if TYPE_CHECKING:
    from specmargin.simulator.results import Result

# Low load at night and two peaks, relative to the busiest hour. A day is compressed to half an hour to simulate fast.
_HOURS = (0.0, 3.0, 6.0, 8.0, 10.0, 11.5, 13.0, 15.0, 17.0, 19.0, 21.0, 24.0)
_SHAPE = (0.07, 0.03, 0.05, 0.32, 0.82, 1.0, 0.73, 1.0, 0.73, 0.45, 0.23, 0.07)
_SPEED = 48.0
_PROMPT, _OUTPUT = 500, 200  # tokens
_LOADS = (0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)  # of the rate at which decoding and prompts alone fill the memory limit
_LARGEST = 256  # sequences of vLLM's default limit
_QUEUE_SECONDS = 1.0  # a longer wait of one request in a hundred is a queue
_COMPARED = ("none", "controller", "schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The inputs of a simulated day."""

    request: ScenarioRequest
    depth: int  # the deepest draft of the plan: what the engine reserves memory for
    requests_per_second: float  # in the busiest hour

    @property
    def hour_seconds(self) -> float:
        return 3600.0 / _SPEED


def _day(view: View) -> Day:
    """The busiest hour takes the highest load of a few at which the plan's schedule has no queue.

    Batches then range from one sequence to as many as the machine serves, and with them the depth.
    """
    return _busiest(view.request.scenario_only(), view.pricer, max(view.answer.config.schedule.max_depth, 1))


@made_once(maxsize=32)
def _busiest(request: ScenarioRequest, pricer: Pricer, depth: int) -> Day:
    full = max(min(pricer.largest_batch(depth), _LARGEST), 1)
    decode_seconds = _OUTPUT / float(pricer.grid([full], depth).goodput[0].max())
    prompt_seconds = pricer.prefill_seconds(_PROMPT, speculating=True)
    days = [
        Day(request=request, depth=depth, requests_per_second=load / (decode_seconds + prompt_seconds))
        for load in _LOADS
    ]
    best = days[0]
    for day in days:
        wait = _simulated(day, pricer, "schedule").summary()["ttft_seconds"]["p99"]
        if wait is None or wait > _QUEUE_SECONDS + 2.0 * prompt_seconds:
            break
        best = day
    return best


def simulated_day(view: View) -> Figure:
    """Load, depth and times over a day: the plan's schedule, the controller, and no speculation."""
    day = _day(view)
    results = {policy: _simulated(day, view.pricer, policy) for policy in _COMPARED}
    planned, no_spec = results["schedule"], results["none"]
    depths = [row["depth"] for row in planned.timeline()]
    most = max(row["batch"] for row in planned.timeline())
    return day_figure(
        Words(
            title="A simulated day",
            takeaway=(
                f"{described(view.scenario)}: {planned.requests.size:,} requests of {_PROMPT} + {_OUTPUT} tokens; the "
                f"peak ({most:.0f} sequences) is the highest load that the schedule serves without a queue. It drafts "
                f"{max(depths):.0f} tokens at low load and {min(depths):.0f} at the peak. Median time between tokens "
                f"{_medians(planned)}; without speculation {_medians(no_spec)}."
            ),
            source=f"Specmargin's simulator (modelled, load assumed); {price_source(view.pricer)}",
        ),
        [_run(policy, result, day) for policy, result in results.items()],
        hours=24.0,
    )


def _medians(result: Result) -> str:
    summary = result.summary()
    tpot, ttft = (summary[name]["p50"] * 1e3 for name in ("tpot_seconds", "ttft_seconds"))
    return f"{tpot:.1f} ms, to the first token {ttft:,.0f} ms"


def _run(policy: str, result: Result, day: Day) -> Run:
    return Run(
        policy=policy,
        timeline=[row | {"hour": row["hour"] * _SPEED} for row in _thinned(result.timeline())],
        hourly=[
            row | {"hour": row["hour"] + 0.5} for row in result.hourly(seconds=day.hour_seconds) if row["hour"] < 24
        ],
    )


def _thinned(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Means of neighbouring rows: about 150, as many as a line of this width shows."""
    size = max(len(rows) // 150, 1)
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [{key: sum(row[key] for row in group) / len(group) for key in group[0]} for group in groups]


def policies(view: View) -> Figure:
    """The same requests under several policies."""
    day = _day(view)
    names = ("none", "off", "fixed:1", f"fixed:{day.depth}", "schedule", "controller")
    rows = [_simulated(day, view.pricer, name).policy_row() for name in dict.fromkeys(names)]
    best = min(rows, key=lambda row: row["tpot_p50_seconds"])
    return policies_figure(
        Words(
            title="Policies on the same simulated day",
            takeaway=(
                f"{described(view.scenario)}: shortest median time between tokens under {best['policy']} "
                f"({best['tpot_p50_seconds'] * 1e3:.2f} ms). Rounds are drawn from the acceptance curve, without "
                f"confidences; drop a bank to compare policies that use confidence."
            ),
            source=f"Specmargin's simulator (modelled, load assumed); {price_source(view.pricer)}",
        ),
        rows,
    )


@made_once(maxsize=64)
def _simulated(day: Day, pricer: Pricer, policy: str) -> Result:
    from specmargin.simulator.rounds import drawn_rounds  # noqa: PLC0415 (Numba is an extra)
    from specmargin.simulator.run import simulate  # noqa: PLC0415
    from specmargin.simulator.serving import Serving  # noqa: PLC0415
    from specmargin.simulator.workload import FixedLength, RateSchedule, Workload  # noqa: PLC0415

    arrivals = RateSchedule(
        hours=tuple(hour / _SPEED for hour in _HOURS),
        requests_per_second=tuple(part * day.requests_per_second for part in _SHAPE),
    )
    return simulate(
        Serving(
            pricer=pricer,
            workload=Workload(
                arrivals=arrivals, prompt=FixedLength(tokens=_PROMPT), output=FixedLength(tokens=_OUTPUT)
            ),
            bank=drawn_rounds({"all": pricer.scenario.survival}, day.depth),
            policy=policy,
            max_depth=day.depth,
        )
    )
