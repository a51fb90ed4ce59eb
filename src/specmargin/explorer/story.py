"""Why MoE changes speculation: the field's argument, each paragraph with the numbers of the reader's own scenario."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from specmargin.decisions.amdahl import amdahl
from specmargin.decisions.grid import best_depths
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.verdict import verdict
from specmargin.explorer.view import View, pricer_of
from specmargin.figures.roofline import intensity
from specmargin.prices.work import Component
from specmargin.step import Step

TITLE = "Why MoE changes speculation"
LEAD = (
    "On a dense model a draft token that is verified costs next to nothing. On a mixture of experts every token brings "
    "experts of its own. Whether speculation still pays is a matter of price, and prices can be worked out. These "
    "are yours."
)
_FIXED = (Component.LAYERS, Component.ENGINE, Component.LAUNCHES)


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    id: str
    heading: str
    text: str
    figure: str


def paragraphs(view: View) -> list[Paragraph]:
    return [*_layers(view), _attention(view), _fixed(view), _hurdle(view), _policies(view), _ending(view)]


def _layers(view: View) -> Iterator[Paragraph]:
    yield _dense(view)
    if view.scenario.architecture.is_moe:
        yield _tax(view)
        yield _locality(view)


def _dense(view: View) -> Paragraph:
    scenario = view.scenario
    found = intensity(scenario)
    device = scenario.device
    text = (
        f"A step reads its weights once, however many positions it computes. A {device.title} is balanced at "
        f"{found.ridge:,.0f} FLOPs a byte, so a dense layer with these weights would be waiting for memory up to "
        f"{found.dense_knee:,.0f} positions: tokens computed meanwhile are free, and that is where speculative "
        f"decoding comes from."
    )
    if found.mixture_knee is not None:
        text += (
            f" {scenario.architecture.name} is bound by memory much longer, up to {found.mixture_knee:,.0f} "
            f"positions. But that is no gift: it is bound because it keeps reading more."
        )
    return Paragraph(id="dense", heading="The dense bargain", text=text, figure="roofline")


def _depth(view: View) -> int:
    return max(view.row.depth, 1)


def _tax(view: View) -> Paragraph:
    scenario, batch, depth = view.scenario, view.batch, _depth(view)
    pool = scenario.architecture.pools[0]
    split = amdahl(view.pricer, batch=batch, depth=depth)
    plain, deep = (view.pricer.distinct_experts(Step.uniform(batch=batch, depth=at)) for at in (0, depth))
    text = (
        f"{scenario.architecture.name} asks {pool.experts_per_token} of {pool.experts} experts a token. At batch "
        f"{batch} a plain step touches {_number(plain)} of them in a layer; with drafts of {depth} it touches "
        f"{_number(deep)}, {split.expert_ratio:.2f} times as many. Routed experts are {split.expert_share:.0%} of "
        f"that plain step, so by Amdahl's rule the step takes {split.predicted_ratio:.2f} times as long; with "
        f"everything that grows, {split.priced_ratio:.2f} times. That is the expert tax, and a draft token has to "
        f"earn it."
    )
    return Paragraph(id="tax", heading="The expert tax", text=text, figure="coverage")


def _locality(view: View) -> Paragraph:
    scenario = view.scenario
    pool, local = scenario.architecture.pools[0], scenario.routing.local(scenario.architecture.pools[0])
    if local is None:
        text = (
            "This scenario routes uniformly: neighbours choose as independently as strangers. Real routing does not. "
            "Choose the model's own profile above to see what locality gives back."
        )
        return Paragraph(id="locality", heading="Locality gives some back", text=text, figure="overlap")
    run = 8.0
    like = float(local.effective_positions(np.array([run]))[0])
    shared = float(local.neighbour_overlap_by_layer.mean()) / pool.experts_per_token
    text = (
        f"Neighbouring tokens choose alike: a position shares {shared:.0%} of its experts with the one before it, "
        f"where uniform draws would share {pool.experts_per_token / pool.experts:.0%}. A run of {run:.0f} positions "
        f"therefore touches only as many experts as {like:.1f} strangers. Depth is cheaper than width, and a price "
        f"that knows only token counts overstates it. {_effect(view)}"
    )
    return Paragraph(id="locality", heading="Locality gives some back", text=text, figure="overlap")


def _effect(view: View) -> str:
    effect = view.answer.routing_effect
    return "" if effect is None else f"Here: {effect}."


def _attention(view: View) -> Paragraph:
    scenario, batch, depth = view.scenario, view.batch, _depth(view)
    step = Step.uniform(batch=batch, depth=depth, context=scenario.context)
    now, more = view.pricer.marginal(step)
    seconds = {line.component: float(line.seconds) for line in now.components}
    later = {line.component: float(line.seconds) for line in more.components}
    added = {name: later.get(name, 0.0) - value for name, value in seconds.items()}
    share = added.get(Component.ATTENTION, 0.0) / max(sum(added.values()), 1e-30)
    kinds = _kinds(scenario)
    stops = view.plan["stops_at_context"]
    until = (
        f"speculation stops paying at about {stops:,} tokens" if stops else "no context that the model allows ends it"
    )
    text = (
        f"{kinds} At batch {batch} and {scenario.context:,.0f} tokens, attention is {share:.0%} of what one more draft "
        f"position costs. At batch {view.plan['rows'][0]['batch']}, {until}."
    )
    return Paragraph(id="attention", heading="Attention sends its own bill", text=text, figure="context")


_ATTENTION: dict[type, str] = {
    GroupedAttention: "grouped-query attention reads a sequence's cache once a step, however deep the draft, so drafts "
    "ride along",
    LatentAttention: "latent attention reads a compressed cache, and is so dense in arithmetic that a second query "
    "already computes longer than it reads",
    CompressedAttention: "compressed attention reads little, but each query selects its own tokens, so what is read "
    "grows with the draft",
    LinearAttention: "linear attention keeps a state instead of a cache, and must write one for every draft position, "
    "because a rejected one is rolled back",
}


def _kinds(scenario: Scenario) -> str:
    """What the model's layers are made of, most of them first."""
    counts: dict[type, int] = {}
    for group in scenario.architecture.groups:
        kind: Attention | None = group.layer.attention
        if kind is not None:
            counts[type(kind)] = counts.get(type(kind), 0) + group.count
    order = sorted(counts, key=lambda kind: -counts[kind])
    parts = [f"in {counts[kind]} of {scenario.architecture.layers} layers {_ATTENTION[kind]}" for kind in order]
    return f"{'; '.join(parts).capitalize()}." if parts else "This model has no attention."


def _fixed(view: View) -> Paragraph:
    plain = view.pricer.verify(Step.uniform(batch=1, depth=0, context=view.scenario.context))
    total = float(plain.total_seconds)
    own = sum(float(line.seconds) for line in plain.components if line.component in _FIXED)
    kernels = sum(float(line.fixed_seconds) for line in plain.components if line.component not in _FIXED)
    sheet = _on_datasheet(view)
    text = (
        f"At batch 1 a plain step takes {total * 1e3:.2f} ms, of which {(own + kernels) / total:.0%} is time that "
        f"no byte and no FLOP accounts for: the fixed part of kernels, and the engine between them. A verified "
        f"draft shares it with the token before it, so fixed time makes speculation look better, and a datasheet "
        f"leaves it out. {sheet}"
    )
    return Paragraph(id="fixed", heading="Time that nobody lists", text=text, figure="ledger")


def _on_datasheet(view: View) -> str:
    if view.scenario.prices.name == "datasheet":
        return "These are datasheet prices: choose measured ones above to see it."
    _, other = pricer_of(view.request.scenario_only().model_copy(update={"prices": "datasheet"}))
    depth = view.plan["rows"][0]["depth"]
    grid = other.grid([1], max(view.max_depth, depth, 1))
    theirs = int(best_depths(grid, view.graph_limit)[0])
    gain = float(grid.goodput[0, theirs] / grid.no_spec_goodput[0])
    ours = view.plan["rows"][0]["speedup"]
    return (
        f"At batch {view.plan['rows'][0]['batch']} the datasheet says draft {theirs} for {gain:.2f}×; measured "
        f"prices say draft {depth} for {ours:.2f}×."
    )


def _hurdle(view: View) -> Paragraph:
    row, survival = view.row, view.scenario.survival
    reached = float(survival.at(row.depth + 1)[row.depth])
    even = row.break_even_acceptance
    needs = (
        f"drafts of {row.break_even_depth} break even at an acceptance of {even:.2f} a token"
        if even is not None
        else f"drafts of {row.break_even_depth} would not pay even if every token were accepted"
    )
    text = (
        f"Put together, at batch {row.batch} the next draft token must survive with probability {row.hurdle:.2f} to "
        f"be worth verifying, drafting aside: the hurdle. After {row.depth} it survives with {reached:.2f}. As a "
        f"whole, {needs}; your drafter's first token is accepted with {survival.first_acceptance:.2f}. An "
        f"acceptance rate means nothing without this number beside it."
    )
    return Paragraph(id="hurdle", heading="The hurdle", text=text, figure="survival")


def _policies(view: View) -> Paragraph:
    depth = max(view.max_depth, 1)
    grid = view.pricer.grid([1], depth)
    best = float(grid.goodput[0].max())
    curve = np.concatenate([[1.0], view.scenario.survival.at(depth), [0.0]])
    share = curve[:-1] - curve[1:]
    knowing = float((share * np.arange(1, depth + 2)).sum() / (share * grid.round_seconds[0]).sum())
    text = (
        f"One depth for everybody is a compromise: {share[0]:.0%} of rounds keep nothing and {share[-1]:.0%} keep all "
        f"{depth}. A policy that knew each outcome beforehand would give {knowing / best - 1:+.0%} at batch 1 over "
        f"the best fixed depth. Nobody knows it, but a drafter's confidence, calibrated, tells part of it: on "
        f"replayed banks our gate wins about half of what knowing would (docs/policies.md). Drop a bank of your own "
        f"rounds on the page to see yours."
    )
    return Paragraph(id="policies", heading="What adaptive policies win", text=text, figure="histogram")


def _ending(view: View) -> Paragraph:
    return Paragraph(id="verdict", heading="So, does it pay?", text=verdict(view.answer.plan), figure="speedup")


def _number(value: object) -> str:
    return f"{float(str(value)):.0f}"
