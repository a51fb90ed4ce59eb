"""One run per policy as the terminal, JSON, tables, figures and Python show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Table, bold, dim, left, right, sourced, warned
from specmargin.answers.outputs_schema import Outputs
from specmargin.files import write_columns
from specmargin.verbs.simulate.outputs_schema import SimulateOutputs
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.words import amount, duration, queue_text

if TYPE_CHECKING:
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart
    from specmargin.simulator.results import Result, Slo

_HOURS = 3  # shortest run whose figure compares policies by hour
_ASSUMED = "assumed: the vLLM V1 scheduler; {prefixes}; one round per step"
_INSIDE_GRAPHS = ("schedule", "controller")  # policies that choose no depth without a CUDA graph
_BEFORE_DECODING = ("prefill", "transfer")
_SHOWN_TIMES = (
    ("ttft_seconds", "p50"),
    ("ttft_seconds", "p99"),
    ("tpot_seconds", "p50"),
    ("tpot_seconds", "p99"),
    ("e2e_seconds", "p50"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulateAnswer(Answer[SimulateRequest]):
    """One run per policy, in the order asked for, on the same load."""

    results: tuple[Result, ...]
    policies: tuple[dict[str, Any], ...]  # what is said of each

    schema: ClassVar[str] = "specmargin.simulate/2"

    @property
    def scenario(self) -> Scenario:
        return self.results[0].serving.pricer.scenario

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.policies)

    def table(self) -> list[dict[str, Any]]:
        return [flat(row) for row in self.policies]

    @property
    def verdict(self) -> str:
        rows = self.policies
        served = f"{rows[0]['finished']:,} of {rows[0]['requests']:,} requests served"
        refused = f", {rows[0]['refused']:,} refused (would never fit)" if rows[0]["refused"] else ""
        refused += f", {rows[0]['cancelled']:,} cancelled" if rows[0].get("cancelled") else ""
        if len(rows) == 1:
            return f"{served}{refused}, {rows[0]['committed']:,} tokens in {duration(rows[0]['span_seconds'])}."
        times = [row["tpot_seconds"]["mean"] for row in rows]
        if self.results[0].serving.steady and rows[0]["offered_tokens_per_second"] is not None and None not in times:
            least, name = min(zip(times, (row["policy"] for row in rows), strict=True))
            return f"{served}{refused}; shortest time per token: {name}, {milliseconds(least)} ms."
        best = max(rows, key=lambda row: float(row["busy_tokens_per_second"]))
        rate = best["busy_tokens_per_second"]
        return f"{served}{refused}; highest throughput while busy: {best['policy']}, {rate:,.0f} tokens/s."

    def values(self) -> dict[str, Any]:
        """The first policy at the top level, all of them under `policies`."""
        first, rows = self.results[0].serving, self.rows
        sources = {name: str(source) for name, source in first.pricer.sources.items()}
        return {
            "model": self.request.model,
            "gpu": self.request.gpu,
            **rows[0],
            "policies": rows,
            "warnings": self.warnings,
            "sources": sources | {"rounds": first.bank.source},
        }

    @property
    def warnings(self) -> list[str]:
        """About a load that was shortened, and CUDA graphs that are too small for it."""
        named = ((result.serving.policy, _graph_warning(result)) for result in self.results)
        graphs = [f"{policy}: {text}" for policy, text in named if text is not None]
        shortened = self.results[0].shortened
        return graphs if shortened is None else [shortened, *graphs]

    def to_dict(self) -> dict[str, Any]:
        """The survival is that of the rounds, which a bank may provide."""
        prior = self.results[0].serving.bank.prior[: self.request.depth]
        return Answer.to_dict(self) | {"survival": [float(part) for part in prior]}

    def written(self, outputs: Outputs) -> Self:
        if isinstance(outputs, SimulateOutputs):
            result = self.results[0]
            if outputs.save_requests is not None:
                write_columns(outputs.save_requests, result.request_columns(), force=outputs.force)
            if outputs.save_steps is not None:
                write_columns(outputs.save_steps, result.step_columns(), force=outputs.force)
        return Answer.written(self, outputs)

    def blocks(self) -> Iterator[Block]:
        serving = self.results[0].serving
        yield bold(self.verdict)
        yield from warned(self.warnings)
        yield GAP
        yield self._speeds()
        yield from self._ranks()
        yield from self._pools()
        yield dim(self._measured)
        for row in self.policies:
            if row["queue_growth_per_second"]:
                yield from map(
                    Line, queue_text(row["policy"], row["queue_growth_per_second"], row["goodput_tokens_per_second"])
                )
        yield GAP
        yield self._busy_time()
        yield from self._traffic()
        yield GAP
        yield from sourced({name: source for name, source in serving.pricer.sources.items() if name != "acceptance"})
        yield dim(f"  rounds: {serving.bank.source}")
        yield dim(engine_text(self.results[0]))

    @property
    def _measured(self) -> str:
        row = self.policies[0]
        if self.results[0].serving.steady:
            return f"measured between ramp and drain: {row['measured_requests']:,} of {row['requests']:,} requests"
        return "measured as a whole, with ramp and drain"

    def resolved(self) -> dict[str, Any]:
        """Defaults that depend on the engine."""
        serving = self.results[0].serving
        return {name: getattr(serving.engine, name) for name in ("max_num_seqs", "max_num_batched_tokens")}

    def _speeds(self) -> Table:
        slo, price = "slo_attainment" in self.policies[0], self.request.gpu_hour_price is not None
        names = ["tok/s", "busy", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "batch", "depth", "wasted"]
        names += ["SLO"] * slo + ["cost $"] * price
        return Table(
            title="tokens per second; times in ms; wasted: share of drafts not accepted",
            columns=[*left("policy"), *right(*names)],
            rows=[_speed_cells(row, slo=slo, price=price) for row in self.policies],
        )

    def _ranks(self) -> Iterator[Block]:
        """What ranks behind a router lose to each other."""
        if self.request.router is None:
            return
        yield GAP
        yield Table(
            title=f"{self.policies[0]['ranks']} ranks, {self.request.router}; shares of their busy time",
            columns=[*left("policy"), *right("tok/s per GPU", "imbalance", "padding", "busiest / mean batch")],
            rows=[_rank_cells(row) for row in self.policies],
        )

    def _pools(self) -> Iterator[Block]:
        """What prompts take before they decode, where other instances read them."""
        pools = self.results[0].serving.pools
        if pools is None:
            return
        yield GAP
        yield Table(
            title=f"instances for prefill: {pools.prefill}, for decoding: {pools.decode}; times in ms",
            columns=[
                *left("policy"),
                *right("busy", "prefill p50", "p99", "KV per GPU", "transfer p50", "p99"),
            ],
            rows=[_pools_cells(row) for row in self.policies],
        )
        yield dim("busy: share of the prefill instances' time; prefill: until the prompt is read")
        yield dim(f"transfer: waiting included, at {pools.bytes_per_second / 1e9:,.0f} GB/s per GPU ({pools.network})")

    def _traffic(self) -> Iterator[Block]:
        """What shared prefixes, cancelled requests and priorities did, of each policy."""
        lines = [line for row in self.policies for line in _traffic_lines(row)]
        if lines:
            yield GAP
        for line in lines:
            yield Line(line)
        if "by_priority" in self.policies[0]:
            yield GAP
            yield Table(
                title="by priority; times in ms",
                columns=[
                    *left("policy"),
                    *right("priority", "requests", "TTFT p50", "p99", "TPOT p50", "p99", "preempted"),
                ],
                rows=[_priority_cells(row["policy"], each) for row in self.policies for each in row["by_priority"]],
            )

    def _busy_time(self) -> Table:
        parts = [row["seconds_by_component"] for row in self.policies]
        whole = [max(result.busy_seconds, 1e-12) for result in self.results]
        return Table(
            title="busy time by component",
            columns=[*left("component"), *right(*(result.serving.policy for result in self.results))],
            rows=[
                [name, *(f"{part.get(name, 0.0) / busy:.1%}" for part, busy in zip(parts, whole, strict=True))]
                for name in dict.fromkeys(name for part in parts for name in part)
            ],
        )

    def chart(self) -> Chart:
        """One policy over time, or several side by side."""
        from specmargin.show.figures.simulation import (
            SIMULATOR,
            Run,
            Words,
            day_figure,
            policies_figure,
        )

        title, results = f"{self.request.model} on {self.request.gpu}", self.results
        if len(results) == 1:
            policy, timeline = results[0].serving.policy, results[0].timeline()
            said = f"Policy {policy}, {results[0].requests.size:,} requests."
            run = Run(policy=policy, timeline=timeline, hourly=_in_mid_hour(results[0].hourly()))
            return day_figure(Words(title=title, takeaway=said, source=SIMULATOR), [run]).chart()
        hourly = [row | {"policy": result.serving.policy} for result in results for row in result.hourly()]
        if len({row["hour"] for row in hourly}) < _HOURS:
            hourly = []
        words = Words(title=title, takeaway="Every policy serves the same requests.", source=SIMULATOR)
        return policies_figure(words, [result.policy_row() for result in results], hourly).chart()


def policy_rows(results: Sequence[Result], slo: Slo | None, gpu_hour_price: float | None) -> tuple[dict[str, Any], ...]:
    """What is said of each policy."""
    return tuple(
        {"policy": result.serving.policy}
        | result.summary(slo, gpu_hour_price)
        | {"seconds_by_component": result.seconds_by_component()}
        for result in results
    )


def _graph_warning(result: Result) -> str | None:
    """Of steps beyond the graphs; of policies that stay inside them, of the depth that they give up for it."""
    from specmargin.answers.graphs import beyond_graphs, held_by_graphs

    serving, (share, positions) = result.serving, result.beyond_graphs
    beyond = beyond_graphs(serving.pricer, share=share, positions=positions)
    if beyond is not None or serving.policy not in _INSIDE_GRAPHS:
        return beyond
    batch, depth = max(round(result.mean_batch), 1), round(result.mean_depth)
    return held_by_graphs(serving.pricer, batch=batch, depth=depth, max_depth=serving.max_depth)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row without tables in it: their names are joined by underscores. Lists (`by_priority`) are left out."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            continue
        columns |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return columns


def _speed_cells(row: dict[str, Any], *, slo: bool, price: bool) -> Sequence[str]:
    wasted = row["wasted"] / row["drafted"] if row["drafted"] else 0.0
    return [
        row["policy"],
        f"{row['goodput_tokens_per_second']:,.0f}",
        f"{row['busy_tokens_per_second']:,.0f}",
        *(milliseconds(row[key][quantile]) for key, quantile in _SHOWN_TIMES),
        f"{row['mean_batch']:.1f}",
        f"{row['mean_draft_depth']:.2f}",
        f"{wasted:.0%}",
        *([f"{row['slo_attainment']:.1%}"] if slo else []),
        *([f"{row['cost']:,.2f}"] if price else []),
    ]


def _rank_cells(row: dict[str, Any]) -> Sequence[str]:
    shares = (f"{row[name]:.1%}" for name in ("imbalance_share", "padding_share"))
    return [row["policy"], f"{row['goodput_per_gpu']:,.0f}", *shares, f"{row['busiest_over_mean']:.2f}"]


def _pools_cells(row: dict[str, Any]) -> Sequence[str]:
    times = {name: [milliseconds(row[f"{name}_seconds"][each]) for each in ("p50", "p99")] for name in _BEFORE_DECODING}
    busy, moved = f"{row['prefill_busy_share']:.0%}", amount(row["kv_bytes_per_gpu"], "B")
    return [row["policy"], busy, *times["prefill"], moved, *times["transfer"]]


def engine_text(result: Result) -> str:
    return f"  engine: {_ASSUMED.format(prefixes=_prefixes(result))}"


def _prefixes(result: Result) -> str:
    """What was assumed of the prefix cache."""
    if result.limits.hashed:
        states = "; recurrent states and windows are cached with every block" if result.kv.blocks_per_sequence else ""
        return f"prefix cache by block hashes, least recently used first out{states}"
    if result.limits.kv_arrives:
        return "prompts arrive as KV, of which the last token is computed again"
    if result.limits.prefix_hit > 0.0:
        return f"{result.limits.prefix_hit:.0%} of each prompt cached, blocks not shared"
    return "no prefix cache"


def _traffic_lines(row: dict[str, Any]) -> Iterator[str]:
    if "prefix_hits" in row:
        share, tokens = row["prefix_hit_share"], row["prefix_queries"]
        yield f"  {row['policy']}: {share:.0%} of {tokens:,} prompt tokens from the prefix cache"
    if "cancelled" in row:
        yield (
            f"  {row['policy']}: {row['cancelled']:,} requests cancelled by their clients; "
            f"wasted on them: {row['cancelled_tokens']:,} output tokens and {row['cancelled_drafts']:,} pending drafts"
        )


def _priority_cells(policy: str, row: dict[str, Any]) -> Sequence[str]:
    return [
        policy,
        f"{row['priority']}",
        f"{row['requests']:,}",
        *(milliseconds(row[key][quantile]) for key, quantile in _SHOWN_TIMES[:4]),
        f"{row['preemptions']:,}",
    ]


def milliseconds(seconds: float | None) -> str:
    """Three digits."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _in_mid_hour(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [row | {"hour": row["hour"] + 0.5} for row in rows]
