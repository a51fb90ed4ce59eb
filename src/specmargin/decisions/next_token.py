"""The price of one more draft token for every sequence of a batch, by kind of work, drafting included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.prices.work import ROUTED, Component
from specmargin.step import BoolArray, FloatArray, IntArray, Step

DRAFTING = "drafting"
# The components of a ledger in six kinds, and drafting: as many as colours can distinguish.
KINDS = {
    "routed experts": (*ROUTED, Component.ROUTER, Component.HOST_LINK),
    "attention": (Component.ATTENTION, Component.ATTENTION_PROJECTIONS),
    "dense and shared": (Component.DENSE_FFN, Component.SHARED_EXPERTS),
    "head, sampling": (Component.LM_HEAD, Component.SAMPLING),
    "collectives": (Component.COLLECTIVES,),
    "engine": (Component.LAYERS, Component.ENGINE, Component.LAUNCHES),
    DRAFTING: (),
}
_KIND_OF = {component: kind for kind, components in KINDS.items() for component in components}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """By batch: from the setting's depth to one token deeper, per added token.

    Every sequence drafts one token more, so a price is the mean over the next `batch` positions: the steps in which
    kernels pad positions to tiles, which one position may or may not cross, are averaged out. Both steps run in CUDA
    graphs or neither does; `has_graph` says where the deeper one has none.
    """

    batches: IntArray
    depths: IntArray
    seconds_by_kind: dict[str, FloatArray]
    goodput: FloatArray  # tokens per second at the setting's depth
    committed: FloatArray  # tokens per sequence and round at that depth
    survival: FloatArray  # probability that the added token is accepted
    has_graph: BoolArray

    @property
    def seconds(self) -> FloatArray:
        return np.asarray(np.sum(list(self.seconds_by_kind.values()), axis=0))

    @property
    def hurdle(self) -> FloatArray:
        """In committed tokens: going deeper raises goodput exactly where `survival` exceeds it; may exceed 1."""
        return self.seconds * self.goodput

    @property
    def gain(self) -> FloatArray:
        """Relative goodput that one token deeper adds: positive exactly where `survival` exceeds `hurdle`."""
        return (self.committed + self.survival) / (self.committed + self.hurdle) - 1.0

    @property
    def gain_in_graphs(self) -> FloatArray:
        """The gain, zero where the deeper step has no CUDA graph."""
        return np.where(self.has_graph, self.gain, 0.0)

    def share(self, kind: str, i: int) -> float:
        return float(self.seconds_by_kind[kind][i] / max(float(self.seconds[i]), 1e-30))


def next_token(pricer: Pricer, batches: Sequence[int], depths: IntArray, setting: Setting) -> NextToken:
    """At each batch and its depth, which may be shallower than the setting's where that does not fit in memory."""
    deeper = int(depths.max()) + 1
    whole = pricer.grid(batches, deeper)  # with the engine's graphs: the goodput that the plan shows
    same = pricer.with_every_graph().grid(batches, deeper)
    rows = np.arange(len(batches))
    before = np.where(setting.configured, same.full_round_seconds[rows, depths], same.no_spec_seconds)
    added = (same.full_round_seconds[rows, depths + 1] - before) / whole.batches
    by_kind = _verify_by_kind(pricer.with_every_graph(), whole.batches, depths)
    by_kind[DRAFTING] = added - np.sum(list(by_kind.values()), axis=0)
    return NextToken(
        batches=np.asarray(batches),
        depths=depths,
        seconds_by_kind=by_kind,
        goodput=setting.goodput_at(whole, depths),
        committed=np.where(setting.configured, whole.committed[depths], 1.0),
        survival=pricer.scenario.survival.up_to(deeper)[depths],
        has_graph=setting.in_graphs(whole)[rows, depths + 1],
    )


def _verify_by_kind(pricer: Pricer, batches: FloatArray, depths: IntArray) -> dict[str, FloatArray]:
    now, more = (
        pricer.verify(Step.uniform(batch=batches, depth=depths + extra, context=pricer.scenario.context))
        for extra in (0, 1)
    )
    before, later = ({line.component: line.seconds for line in price.components} for price in (now, more))
    seconds: dict[str, FloatArray] = {kind: np.zeros(batches.size) for kind in KINDS}
    for component in before | later:
        added = np.asarray(later.get(component, 0.0) - before.get(component, 0.0)) / batches
        seconds[_KIND_OF[component]] = seconds[_KIND_OF[component]] + added
    return seconds
