"""What voting gains on 8 to 64 data-parallel ranks, by load and by how unequal the ranks are. Simulated.

    python -m lab.studies.fleet [--plot docs/figures/fleet.png]

DeepSeek-V3 on H200 at the prices of measured kernels, one GPU per rank, experts over all of them, InfiniBand between
nodes of eight: decode instances, whose prompts arrive as KV. Requests of a closed loop go to ranks in turn, or to the
least busy one. Prints ratios of tokens per second, medians over seeds; static depths are `none` and 1 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import altair as alt

from lab.terminal import parser, run
from specmargin.answers.request_schema import read_request
from specmargin.show.figures.files import check_target, save
from specmargin.simulator.fleet.results import FleetResult
from specmargin.simulator.fleet.run import simulate_fleet
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.simulate.serving import serving_of

RANKS = (8, 16, 32, 64)
USERS = (2, 8, 32, 128)  # per rank: the phases of a load that swings
DEPTH = 4
STATIC = ("none", *(f"fixed:{depth}" for depth in range(1, DEPTH + 1)))
POLICIES = (*STATIC, "vote", "each-rank")
GENERATIONS = 8  # requests per user; the first quarter and the last ones are not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    name: str
    router: str
    osl: Mapping[str, float] | int


EQUAL = Traffic(name="equal answers, least requests", router="least-requests", osl=500)
VARIED = {"ln_mean": 5.9, "ln_sd": 0.8, "most": 4000}
TRAFFIC = (
    EQUAL,
    Traffic(name="varied answers, least requests", router="least-requests", osl=VARIED),
    Traffic(name="varied answers, in turn", router="round-robin", osl=VARIED),
    Traffic(name="few long answers, in turn", router="round-robin", osl={"ln_mean": 5.5, "ln_sd": 1.2, "most": 4000}),
)
DRAWN = TRAFFIC[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One traffic at one load: results by policy, one for each seed."""

    ranks: int
    traffic: Traffic
    users: int
    results: Mapping[str, Sequence[FleetResult]]

    def goodput(self, policy: str) -> float:
        """Per GPU, the median of the seeds."""
        return median(result.goodput_per_gpu for result in self.results[policy])

    @property
    def best(self) -> str:
        return max(STATIC, key=self.goodput)

    def ratio(self, policy: str, to: str) -> float:
        pairs = zip(self.results[policy], self.results[to], strict=True)
        return median(one.goodput_per_gpu / other.goodput_per_gpu for one, other in pairs)


def played(ranks: int, traffic: Traffic, users: int, seeds: int) -> Cell:
    asked: dict[str, Any] = {
        "model": "deepseek-v3",
        "gpu": "h200",
        "dp": ranks,
        "ep": True,
        "fabric": "infiniband-ndr" if ranks > 8 else None,
        "isl": 2000,
        "osl": traffic.osl,
        "range_ratio": 0.0 if traffic is EQUAL else 0.5,
        "prefix_hit": 1.0 - 1e-9,  # all but the last token, as of a decode instance
        "concurrency": users * ranks,
        "router": traffic.router,
        "depth": DEPTH,
    }
    serving = serving_of(read_request(SimulateRequest, asked).check_complete(), Path())
    serving = serving.with_requests(ranks * users * GENERATIONS)
    results = {
        policy: [simulate_fleet(replace(serving, policy=policy, seed=seed)) for seed in range(seeds)]
        for policy in POLICIES
    }
    return Cell(ranks=ranks, traffic=traffic, users=users, results=results)


def swing(cells: Sequence[Cell]) -> tuple[str, float, float]:
    """Over the loads, each weighted alike: the best single static depth, vote over it, and each rank over the vote."""
    best = max(STATIC, key=lambda policy: geometric_mean([cell.goodput(policy) for cell in cells]))
    vote, each = (
        geometric_mean([cell.ratio(*pair) for cell in cells]) for pair in (("vote", best), ("each-rank", "vote"))
    )
    return best, vote, each


def rows_of(cells: Sequence[Cell]) -> list[str]:
    """A row of the table: one number of ranks and one traffic."""
    first, best = cells[0], swing(cells)
    unequal = "–".join(
        f"{median(result.busiest_over_mean for result in cell.results['vote']):.2f}" for cell in (cells[-1], first)
    )
    lost = max(
        median(result.imbalance_share + result.padding_share for result in cell.results["vote"]) for cell in cells
    )
    by_load = [f"{cell.ratio('vote', cell.best):.3f} ({_depth(cell.best)})" for cell in cells]
    name, gain, each = best
    return [
        str(first.ranks),
        first.traffic.name,
        unequal,
        f"{lost:.0%}",
        *by_load,
        f"{gain:.2f} ({_depth(name)})",
        f"{each:.3f}",
    ]


def _depth(policy: str) -> str:
    return policy.removeprefix("fixed:")


def figure(cells: Sequence[Cell]) -> alt.FacetChart:
    rows = [
        {"ranks": cell.ranks, "users": cell.users, "policy": policy, "gain": cell.ratio(policy, "none")}
        for cell in cells
        for policy in DRAWN_POLICIES
    ]
    users = alt.X("users:Q", title="users per rank", axis=alt.Axis(values=list(USERS), grid=False))
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point=True)
        .encode(
            x=users.scale(type="log", nice=False, padding=12),
            y=alt.Y("gain:Q", title="tokens/s over no speculation", scale=alt.Scale(zero=False)),
            color=alt.Color("policy:N", title=None, scale=alt.Scale(domain=DRAWN_POLICIES, range=_COLOURS)),
        )
        .properties(width=190, height=230)
    )
    title = alt.TitleParams(
        "One depth for all ranks, voted for, against static depths",
        subtitle=f"DeepSeek-V3 on H200, dp-ep, decode instances, {DRAWN.name}; simulated: python -m lab.studies.fleet",
        anchor="start",
    )
    faceted: alt.FacetChart = chart.facet(alt.Facet("ranks:O", title="data-parallel ranks")).properties(title=title)
    return faceted


DRAWN_POLICIES = POLICIES[:-1]
_COLOURS = ("#8a929c", "#bdd7e7", "#8bbfdd", "#4f9bcb", "#2171b5", "#d95f02")


def every(seeds: int) -> Iterator[list[Cell]]:
    for ranks in RANKS:
        for traffic in TRAFFIC:
            yield [played(ranks, traffic, users, seeds) for users in USERS]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--plot", type=Path, metavar="FILE")
    options.add_argument("--force", action="store_true", help="overwrite the figure")
    chosen = options.parse_args()
    if chosen.plot is not None:
        check_target(chosen.plot, force=chosen.force)
    print(
        "| ranks | traffic | busiest / mean | lost, at most | "
        + " | ".join(f"{users} users" for users in USERS)
        + " | swing | each rank / vote |"
    )
    print("| ---: | --- | ---: | ---: | " + "---: | " * (len(USERS) + 2))
    drawn: list[Cell] = []
    for cells in every(chosen.seeds):
        print("| " + " | ".join(rows_of(cells)) + " |", flush=True)
        drawn += [cell for cell in cells if cell.traffic is DRAWN]
    if chosen.plot is not None:
        save(figure(drawn), chosen.plot)


if __name__ == "__main__":
    run(main)
