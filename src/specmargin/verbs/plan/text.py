"""A plan in the terminal, in 80 columns: verdict, table, flags, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specmargin.answers.blocks import GAP, Block, Line, Table, Verbatim, bold, dim, left, right, warned
from specmargin.decisions.certainty import inputs_text
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.verbs.plan.comparison import Compared, compared_blocks
from specmargin.verbs.plan.decode_only import arrival_of
from specmargin.verbs.plan.details import details
from specmargin.verbs.plan.drafter_plan import DrafterPlan, Settled, Target
from specmargin.verbs.plan.values import answer_text
from specmargin.words import duration, queue_text

if TYPE_CHECKING:
    from specmargin.simulator.service import Service
    from specmargin.simulator.steady import Steady

_WIDTH = 80
_BATCHES_ACROSS = 6  # columns of the tables with one column per batch


def plan_blocks(ranked: Sequence[DrafterPlan], compared: Compared | None, *, explain: bool) -> Iterator[Block]:
    best = ranked[0]
    answer, *rest = answer_text(best).splitlines()
    yield bold(answer)
    yield from map(Line, rest)
    yield GAP
    yield from _loaded(best)
    if len(ranked) > 1:
        yield from _ranking(ranked)
    yield from _rows(best.plan, _given_price(best))
    yield from _assumed_costs(best)
    if best.warnings:
        yield from warned(best.warnings)
    yield GAP
    if compared is not None:
        yield from compared_blocks(compared)
    if best.by_context:
        yield from _contexts(best)
    yield from _config(best)
    if best.request.decode_only:
        yield dim(arrival_of(best.plan, best.request.isl).text)
    if explain:
        yield GAP
        yield from details(best)
    else:
        yield from _provenance(best)


# --- by batch ---


def _title(plan: Plan) -> str:
    scenario = plan.scenario
    where, gpus = scenario.device.title, scenario.layout.gpus
    if gpus > 1:
        where = f"{gpus} × {scenario.device.name} ({scenario.layout.name})"
    subject = f"{scenario.architecture.name} with {scenario.drafter.name}"
    return f"{subject} on {where}, context {scenario.context:,.0f}"


def _rows(plan: Plan, price: float | None) -> Iterator[Block]:
    better = any(row.better_depth is not None for row in plan.rows)
    yield bold(_title(plan))  # not as the table's title, which wraps at the table's width
    yield Table(
        columns=[
            *right("batch", "draft", "speed-up", *(["better"] if better else []), "tok/s", "plain", "ms/token"),
            *right("break-even", *([] if price is None else ["$/Mtok", "plain $"])),
        ],
        rows=[_cells(row, price, better=better) for row in plan.rows],
        dim=frozenset(index for index, row in enumerate(plan.rows) if not row.fits),
    )
    if plan.scenario.layout.gpus > 1:
        yield dim("(batch and tok/s over all GPUs)")
    if any(not row.fits for row in plan.rows):
        yield dim(_memory(plan))


def _cells(row: PlanRow, price: float | None, *, better: bool) -> list[str]:
    return [
        f"{row.batch:,}",
        str(row.depth) if row.fits else f"({row.depth})",
        f"{row.speedup:.2f}×",
        *([_better(row)] if better else []),
        f"{row.goodput_tokens_per_second:,.0f}",
        f"{row.no_spec_tokens_per_second:,.0f}",
        f"{row.tpot_seconds * 1e3:.2f}",
        "never" if row.break_even_acceptance is None else f"{row.break_even_acceptance:.2f}",
        *([] if price is None else _costs(row, price)),
    ]


def _costs(row: PlanRow, price: float) -> list[str]:
    """Per million tokens, with these flags and without speculation."""
    cost = row.gpu_hours_per_million_tokens * price
    return [f"{cost:.3f}", f"{cost * row.speedup:.3f}"]


def _given_price(best: DrafterPlan) -> float | None:
    """Columns of dollars are for a price that the user gave."""
    return None if best.gpu_hour is None or best.gpu_hour.assumed else best.gpu_hour.usd


def _assumed_costs(best: DrafterPlan) -> Iterator[Line]:
    """At a list price, one line: what a million tokens cost at a usual batch, or of the service."""
    price, service = best.gpu_hour, best.service
    if price is None or not price.assumed:
        return
    if service is not None:
        sides = service.speculating, service.plain
        cost, plain = (service.cost_per_million_tokens(side, price.usd) for side in sides)
        at = "under this load"
    else:
        row = best.usual_row
        cost = row.gpu_hours_per_million_tokens * price.usd
        plain, at = cost * row.speedup, f"at batch {row.batch:,}"
    assumed = f"assumed ${price.usd:g}/GPU-h ({price.source} {price.month})"
    yield dim(f"$/Mtok {at}: {cost:.3f}, plain {plain:.3f}; {assumed}")


def _better(row: PlanRow) -> str:
    """Another depth that is faster by more than `--min-gain`."""
    if row.better_depth is None:
        return ""
    return f"{row.better_depth or 'none'}: {row.better_speedup:.2f}×"


def _memory(plan: Plan) -> str:
    if not plan.setting.configured:
        return f"(parentheses: does not fit in memory; {plan.largest_batch:,} sequences fit)"
    return (
        f"(parentheses: does not fit in memory; {plan.largest_batch:,} sequences fit at depth {plan.held_depth}, "
        f"{plan.no_spec_largest_batch:,} plain)"
    )


def _spread(plan: Plan) -> list[int]:
    """Indices of the rows shown as columns: first, last, and evenly spaced ones between."""
    count = len(plan.rows)
    if count <= _BATCHES_ACROSS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_BATCHES_ACROSS - 1)) for i in range(_BATCHES_ACROSS)})


def _gain(row: PlanRow) -> str:
    return f"{row.depth} {row.speedup:.2f}×" if row.fits else f"({row.depth} {row.speedup:.2f}×)"


def _ranking(ranked: Sequence[DrafterPlan]) -> Iterator[Block]:
    batches = [[row.batch for row in each.plan.rows] for each in ranked]
    same = all(each == batches[0] for each in batches)
    chosen = _spread(ranked[0].plan) if same else [0]
    headings = [f"batch {batches[0][i]:,}" for i in chosen] if same else ["own batch"]
    yield bold("drafters, best first: draft and speed-up")
    yield Table(
        columns=[*left("drafter"), *right(*headings)],
        rows=[[each.plan.scenario.drafter.name, *(_gain(each.plan.rows[i]) for i in chosen)] for each in ranked],
    )
    for each in ranked:
        yield dim(f"  {each.plan.scenario.drafter.name}: {each.plan.scenario.survival.source}")
    yield GAP


def _contexts(best: DrafterPlan) -> Iterator[Block]:
    chosen = _spread(best.plan)
    yield bold("by context, with the same flags: draft and speed-up (parentheses: does not fit)")
    yield Table(
        columns=right("context", *(f"batch {best.plan.rows[i].batch:,}" for i in chosen)),
        rows=[[f"{tokens:,}", *(_gain(rows[i]) for i in chosen)] for tokens, rows in best.by_context.items()],
    )
    yield GAP


# --- under a load ---


def _loaded(best: DrafterPlan) -> Iterator[Block]:
    if best.service is not None:
        assumed = "range_ratio" not in best.request.model_fields_set
        yield from _service(best.service, _given_price(best), range_assumed=assumed)
        if best.target is not None:
            yield Line(_target(best.target))
            yield dim("largest rate that meets it: simulate --find qps (--explain has the command)")
        yield GAP
    elif best.settled is not None:
        yield from _settled(best.settled)


def _service(service: Service, price: float | None, *, range_assumed: bool) -> Iterator[Block]:
    sides = {"no speculation": service.plain, "with these flags": service.speculating}
    yield bold(_requests(service, range_assumed=range_assumed))
    yield Table(
        columns=[
            *left(""),
            *right("tok/s", "per GPU", "ms/token", "TTFT", "batch", "draft", "prefill"),
            *right(*([] if price is None else ["$/Mtok"])),
        ],
        rows=[[name, *_service_cells(steady, service, price)] for name, steady in sides.items()],
    )
    counted = "from the arrival of a request's KV on" if service.load.kv_arrives else "including prefill and queueing"
    yield dim(f"means, {counted}; ms/token: after the first token;")
    yield dim("batch: sequences that decode at once (the rows below); prefill: share of time")
    for name, steady in sides.items():
        if steady.queue_growth_per_second:
            yield from map(Line, queue_text(name, steady.queue_growth_per_second, steady.tokens_per_second))


def _target(target: Target) -> str:
    """Whether the time between tokens stays below the target, on both sides."""
    drafting, plain, seconds = target.tpot_seconds, target.no_spec_tpot_seconds, target.seconds
    met, plainly = ("met" if each else "missed" for each in (target.is_met, target.is_met_without))
    joined = " and" if met == plainly else f", {plainly}"
    return (
        f"target of {seconds * 1e3:g} ms per token: {met} with these flags ({drafting * 1e3:.1f} ms){joined} without "
        f"({plain * 1e3:.1f} ms)"
    )


def _requests(service: Service, *, range_assumed: bool) -> str:
    load = service.load
    asked = f"{load.requests_per_second:g} requests/s" if load.users is None else f"{load.users:,} concurrent requests"
    spread = f" (±{load.range_ratio:.0%}{', assumed' if range_assumed else ''})" if load.range_ratio else ""
    return f"{asked} of {load.prompt_tokens:,} input and {load.output_tokens:,} output tokens{spread}"


def _service_cells(steady: Steady, service: Service, price: float | None) -> list[str]:
    return [
        f"{steady.tokens_per_second:,.0f}",
        f"{steady.tokens_per_second / service.gpus:,.0f}",
        "" if steady.tpot_seconds is None else f"{steady.tpot_seconds * 1e3:.2f}",
        "grows" if steady.queue_growth_per_second else duration(steady.ttft_seconds),
        f"{steady.sequences:.0f}",
        f"{steady.depth:.1f}",
        f"{steady.prefill_share:.0%}",
        *([] if price is None else [f"{service.cost_per_million_tokens(steady, price):.3f}"]),
    ]


def _settled(settled: Settled) -> Iterator[Block]:
    load = settled.load
    tokens, target = f"{load.prompt_tokens} + {load.output_tokens} tokens", load.tpot_target_seconds
    yield bold(f"{load.requests_per_second:g} requests/s of {tokens} (times include prefill of other requests)")
    rows = []
    sides = {"no speculation": settled.no_spec, "with these flags": settled.speculating}
    for name, point in sides.items():
        cells = [name, str(point.batch), str(point.depth), f"{point.tpot_seconds * 1e3:.2f}"]
        cells.append(f"{point.prefill_share:.0%}")
        if target is not None:
            cells.append("met" if point.meets_target else f"missed ({target * 1e3:g} ms)")
        rows.append(cells)
    columns = [*left(""), *right("batch", "draft", "ms/token", "prefill"), *left(*(["target"] if target else []))]
    yield Table(columns=columns, rows=rows)
    for name, point in sides.items():
        if not point.keeps_up:
            yield Line(f"{name}: more arrives than is served, {point.capacity_requests_per_second:.3g} requests/s")
    yield GAP


# --- flags and sources ---


def _config(best: DrafterPlan) -> Iterator[Block]:
    config, engine = best.config, best.engine
    if not config.text:
        yield Line(f"{engine.title}: {'; '.join(config.notes)}")
    else:
        yield bold(f"{engine.title} flags (for {config.needs}):")
        yield Verbatim(config.text)
        if config.limits:
            yield dim(f"({'; '.join(config.limits)})")
        if config.unpriced:
            yield dim(f"({config.unpriced})")
    if config.file_text:
        yield Verbatim(f"{config.file_name}: {config.file_text}")


def _provenance(best: DrafterPlan) -> Iterator[Line]:
    """What was understood of `--acceptance`, and what kind of evidence the main inputs are."""
    scenario = best.plan.scenario
    if best.request.acceptance is not None:
        yield dim(f"acceptance: {scenario.survival.source.detail}".replace(", given by the user", ""))
    kinds = f"prices: {scenario.prices.name}" if best.headline_range is None else inputs_text(best.headline_range)
    yield dim(f"{kinds} (--explain)")
    names_by_file: dict[str, list[str]] = {}
    for name, source in scenario.input_sources.items():
        if source.file:
            names_by_file.setdefault(source.file, []).append(name)
    for file, names in names_by_file.items():
        yield dim(f"{', '.join(names)}: yours, {file}")
