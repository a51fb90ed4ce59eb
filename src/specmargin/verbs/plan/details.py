"""`plan --explain`: bottlenecks by batch, how to read the table, the effect of routing, and every source."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specmargin.answers.blocks import GAP, Block, Line, Table, Verbatim, bold, dim, left, right, sourced
from specmargin.decisions.next_token import next_token
from specmargin.decisions.plan import Plan
from specmargin.decisions.rows import PlanRow
from specmargin.prices.model import Resource
from specmargin.verbs.plan.commands import capacity_command, check_json, pools_command, serve_json
from specmargin.verbs.plan.drafter_plan import DrafterPlan
from specmargin.verbs.plan.main_memory import main_memory_blocks
from specmargin.verbs.plan.memory import memory_blocks
from specmargin.verbs.plan.values import further_facts

_LEGEND = (
    "likely: the 80% range of the speed-up",
    "draft: draft tokens per sequence and step with these flags",
    "better: a depth that would be faster by more than --min-gain; none: no speculation",
    "tok/s: tokens per second over all sequences with these flags; plain: without speculation",
    "ms/token: time between tokens of one sequence",
    "break-even: per-token acceptance at which this depth breaks even",
    "accept length: break-even in tokens per round, including the bonus token, as engines report it",
    "one more token: what it would add to tok/s, its drafting included; -: no graph of the engine holds its step",
    "experts/GPU: distinct experts per layer that a step reads on the busiest GPU",
    "comm: share of the step spent in communication between GPUs",
    "bottleneck: component, and its limiting resource, that one more position waits for",
)


def details(best: DrafterPlan) -> Iterator[Block]:
    yield from map(Line, further_facts(best))
    yield GAP
    for note in best.config.notes:
        yield dim(note)
    yield from _commands(best)
    yield _bottlenecks(best.plan)
    yield GAP
    for line in _LEGEND:
        yield dim(line)
    yield GAP
    yield from main_memory_blocks(best.plan)
    yield from memory_blocks(best.plan)
    yield GAP
    effect = best.routing_effect
    if effect is not None:
        yield Line(str(effect))
        yield GAP
    yield from sourced(best.plan.pricer.sources)


def _commands(best: DrafterPlan) -> Iterator[Block]:
    """The whole command, and the benchmark that checks the first row that fits, or the load."""
    serve, check = serve_json(best), check_json(best, *best.headline)
    yield bold("start the server:")
    yield Verbatim(serve["command"])
    yield from map(dim, serve["notes"])
    if serve["file_text"] and serve["file_name"] != best.config.file_name:
        yield Verbatim(f"{serve['file_name']}:\n{serve['file_text']}".removesuffix("\n"))
    yield bold("check the prediction on it:")
    yield Verbatim(check["command"])
    expected = f"{check['metric']} {check['predicted']:.2f}"
    if best.config.text:
        expected += f"; without speculation {check['predicted_without_speculation']:.2f}"
    yield Line(f"expected: {expected}")
    if check["note"]:
        yield dim(check["note"])
    if best.request.qps is not None:
        apart = best.request.decode_only
        yield bold("simulate it with instances for prefill:" if apart else "find the largest rate that meets a target:")
        yield Verbatim(pools_command(best) if apart else capacity_command(best))
    yield GAP


def _bottlenecks(plan: Plan) -> Table:
    scenario, depths = plan.scenario, np.array([row.depth for row in plan.rows])
    more = next_token(plan.pricer, [row.batch for row in plan.rows], depths, plan.setting).gain_in_graphs.tolist()
    several, moe = scenario.layout.gpus > 1, scenario.architecture.is_moe
    columns = ["batch", "plain ms", "accept length", "one more token"]
    columns += [*(["experts/GPU"] if moe else []), *(["comm"] if several else [])]
    return Table(
        title=f"weights {scenario.weight_names}, KV {scenario.kv_precision.name}, {scenario.prices.name} prices",
        columns=[*right(*columns), *left("bottleneck")],
        rows=[
            [
                f"{row.batch:,}",
                f"{row.no_spec_tpot_seconds * 1e3:.2f}",
                "never" if row.break_even_accept_length is None else f"{row.break_even_accept_length:.2f}",
                f"{gain:+.1%}" if gain else "-",
                *([f"{row.distinct_experts:.0f}"] if moe else []),
                *([f"{row.communication_share:.0%}"] if several else []),
                _bottleneck(row),
            ]
            for row, gain in zip(plan.rows, more, strict=True)
        ],
    )


def _bottleneck(row: PlanRow) -> str:
    if row.bound_resource is Resource.COLLECTIVES:
        return str(row.bound_component)
    return f"{row.bound_component} ({row.bound_resource})"
