"""Why MoE changes speculation: one paragraph per effect, with the numbers of the reader's scenario."""

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
from specmargin.decisions.scenario import Scenario
from specmargin.prices.work import Component
from specmargin.show.explorer.view import View, pricer_of
from specmargin.show.figures.roofline import intensity
from specmargin.step import Step
from specmargin.verbs.plan.values import answer_text

TITLE = "Why MoE changes speculation"
LEAD = (
    "On a dense model, verifying a draft token costs almost nothing. On a mixture of experts, every token reads "
    "additional experts. Whether speculation still pays depends on prices, which this page computes for your scenario."
)
_FIXED = (Component.LAYERS, Component.ENGINE, Component.LAUNCHES)


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    id: str
    heading: str
    text: str
    figure: str


def paragraphs(view: View) -> list[Paragraph]:
    return [*_layers(view), _attention(view), _fixed(view), _one_more(view), _policies(view), _ending(view)]


def _layers(view: View) -> Iterator[Paragraph]:
    yield _dense(view)
    if view.scenario.architecture.is_moe:
        yield _tax(view)
        yield _locality(view)


def _dense(view: View) -> Paragraph:
    scenario = view.scenario
    layer = intensity(scenario)
    device = scenario.device
    text = (
        f"A step reads its weights once, however many positions it computes. The {device.title} is balanced at "
        f"{layer.ridge:,.0f} FLOPs per byte, so a dense layer with these weights is memory-bound up to "
        f"{layer.dense_knee:,.0f} positions: extra tokens up to that number add no time, which is what speculative "
        f"decoding relies on."
    )
    if layer.mixture_knee is not None:
        text += (
            f" {scenario.architecture.name} is memory-bound up to {layer.mixture_knee:,.0f} positions, but extra "
            f"tokens are not free there, because each of them reads more experts."
        )
    return Paragraph(id="dense", heading="Dense layers: extra tokens are free", text=text, figure="roofline")


def _depth(view: View) -> int:
    return max(view.row.depth, 1)


def _tax(view: View) -> Paragraph:
    scenario, batch, depth = view.scenario, view.batch, _depth(view)
    pool = scenario.architecture.pools[0]
    split = amdahl(view.pricer, batch=batch, depth=depth)
    plain, deep = (view.pricer.distinct_experts(Step.uniform(batch=batch, depth=d)) for d in (0, depth))
    text = (
        f"{scenario.architecture.name} uses {pool.experts_per_token} of {pool.experts} experts per token. At batch "
        f"{batch} a plain step touches {_number(plain)} of them in a layer; with drafts of {depth} it touches "
        f"{_number(deep)}, {split.expert_ratio:.2f} times as many. Routed experts are {split.expert_share:.0%} of "
        f"that plain step, so by Amdahl's law the step takes {split.predicted_ratio:.2f} times as long; with "
        f"growth of all components, {split.priced_ratio:.2f} times. Accepted draft tokens must pay for this."
    )
    return Paragraph(id="tax", heading="MoE layers: extra tokens read experts", text=text, figure="coverage")


def _locality(view: View) -> Paragraph:
    scenario = view.scenario
    pool, local = scenario.architecture.pools[0], scenario.routing.local(scenario.architecture.pools[0])
    if local is None:
        text = (
            "This scenario routes uniformly: neighbouring tokens choose experts independently. Real routing does not. "
            "Choose the model's own profile above to see the effect of locality."
        )
        return Paragraph(id="locality", heading="Locality reduces the cost", text=text, figure="overlap")
    run = 8.0
    independent = float(local.effective_positions(np.array([run]))[0])
    shared = float(local.neighbour_overlap_by_layer.mean()) / pool.experts_per_token
    text = (
        f"Neighbouring tokens choose similar experts: one shares {shared:.0%} of its experts with the previous one, "
        f"where uniform routing would share {pool.experts_per_token / pool.experts:.0%}. A run of {run:.0f} positions "
        f"therefore touches only as many experts as {independent:.1f} independent tokens. Depth is cheaper than "
        f"width, and a price by token count alone overstates it. {_effect(view)}"
    )
    return Paragraph(id="locality", heading="Locality reduces the cost", text=text, figure="overlap")


def _effect(view: View) -> str:
    effect = view.answer.routing_effect
    return "" if effect is None else f"Here: {effect}."


def _attention(view: View) -> Paragraph:
    scenario, price = view.scenario, view.next_tokens
    share = price.share("attention", -1)
    kinds = _kinds(scenario)
    stops = view.plan["stops_at_context"]
    limit = (
        f"speculation stops paying at about {stops:,} tokens"
        if stops
        else "speculation pays at every supported context"
    )
    text = (
        f"{kinds} At batch {view.batch} and {scenario.context:,.0f} tokens, attention with its projections is "
        f"{share:.0%} of the price of one more draft token, drafting included. At batch "
        f"{view.plan['rows'][0]['batch']}, {limit}."
    )
    return Paragraph(id="attention", heading="Attention", text=text, figure="context")


_ATTENTION: dict[type, str] = {
    GroupedAttention: "grouped-query attention reads a sequence's cache once per step at any depth, so drafts "
    "add little",
    LatentAttention: "latent attention reads a compressed cache and is compute-bound from about two queries per "
    "sequence",
    CompressedAttention: "compressed attention reads little, but each query selects its own tokens, so the bytes read "
    "grow with depth",
    LinearAttention: "linear attention keeps a state instead of a cache, and writes one per draft position, "
    "because rejected positions are rolled back",
}


def _kinds(scenario: Scenario) -> str:
    """The kinds of attention, the most frequent first."""
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
    sheet = _datasheet_comparison(view)
    text = (
        f"At batch 1 a plain step takes {total * 1e3:.2f} ms, of which {(own + kernels) / total:.0%} is fixed "
        f"time, independent of bytes and FLOPs: fixed kernel time and engine overhead. It is paid once per step, "
        f"however many tokens the step commits, so it favours speculation. Datasheet prices omit it. {sheet}"
    )
    return Paragraph(id="fixed", heading="Fixed time per step", text=text, figure="ledger")


def _datasheet_comparison(view: View) -> str:
    if view.scenario.prices.name == "datasheet":
        return "These are datasheet prices: choose measured ones above to see the fixed time."
    _, other = pricer_of(view.request.scenario_only().model_copy(update={"prices": "datasheet"}))
    depth = view.plan["rows"][0]["depth"]
    grid = other.grid([1], view.setting.max_depth)
    datasheet_depth = int(view.setting.best_depths(grid)[0])
    gain = float(grid.goodput[0, datasheet_depth] / grid.no_spec_goodput[0])
    speedup = view.plan["rows"][0]["speedup"]
    return (
        f"At batch {view.plan['rows'][0]['batch']} datasheet prices give depth {datasheet_depth} and {gain:.2f}×, "
        f"{view.scenario.prices.name} prices depth {depth} and {speedup:.2f}×."
    )


def _one_more(view: View) -> Paragraph:
    row, survival, price = view.row, view.scenario.survival, view.next_tokens
    needed, reached = float(price.hurdle[-1]), float(price.survival[-1])
    pays = _compared(needed, reached, float(price.gain_in_graphs[-1]))
    even = row.break_even_acceptance
    needs = (
        f"drafts of {row.break_even_depth} break even at a per-token acceptance of {even:.2f}"
        if even is not None
        else f"drafts of {row.break_even_depth} would not pay even if every token were accepted"
    )
    text = (
        f"At batch {row.batch} and depth {row.depth}, one more draft token takes the time of {needed:.2f} committed "
        f"tokens, drafting included. {pays} As a whole, {needs}; your drafter's first token is "
        f"accepted with {survival.first_acceptance:.2f}. Compare an acceptance rate with the break-even."
    )
    return Paragraph(id="hurdle", heading="One more draft token", text=text, figure="survival")


def _compared(needed: float, reached: float, gain: float) -> str:
    if needed <= 0.0:
        return f"It costs nothing, so it always pays; it survives with probability {reached:.2f}."
    if needed > 1.0:
        return f"No token survives with more than probability 1, so it never pays; this one has {reached:.2f}."
    deeper = f", and going deeper would add {gain:.1%}" if gain >= 0.001 else ""
    return f"To pay, it must survive with at least that probability; it has {reached:.2f}{deeper}."


def _policies(view: View) -> Paragraph:
    depth = max(view.max_depth, 1)
    grid = view.pricer.grid([1], depth)
    best = float(grid.goodput[0].max())
    curve = np.concatenate([[1.0], view.scenario.survival.up_to(depth), [0.0]])
    share = curve[:-1] - curve[1:]
    oracle = float((share * np.arange(1, depth + 2)).sum() / (share * grid.round_seconds[0]).sum())
    text = (
        f"A fixed depth is a compromise: {share[0]:.0%} of rounds keep no draft token and {share[-1]:.0%} keep all "
        f"{depth}. An oracle that knows each outcome changes goodput by {oracle / best - 1:+.0%} at batch 1 over "
        f"the best fixed depth. Calibrated confidence predicts part of the outcome: on replayed banks, the gate of "
        f"Specmargin reaches about half of the oracle's gain (docs/results/policies.md). Drop a bank of your own "
        f"rounds on the page to see your gain."
    )
    return Paragraph(id="policies", heading="Gain of adaptive policies", text=text, figure="histogram")


def _ending(view: View) -> Paragraph:
    return Paragraph(id="verdict", heading="Verdict", text=answer_text(view.answer), figure="speedup")


def _number(value: object) -> str:
    return f"{float(str(value)):.0f}"
