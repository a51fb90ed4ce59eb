"""SGLang's own code beside ours: its adaptive ladder, step by step."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specmargin.formats.sglang import graph_batch_sizes
from specmargin.policies.peers import SglangLadder
from specmargin.policies.policy import Outcome
from tests.sglang_source import load


@cache
def _sglang() -> ModuleType:
    return load("srt/speculative/adaptive_spec_params.py")


ROUNDS = st.lists(
    st.tuples(st.sampled_from([1, 2, 7, 8, 9, 30, 31, 32, 60, 61, 64, 200]), st.floats(0.0, 1.0)),
    min_size=1,
    max_size=60,
)


@given(rounds=ROUNDS, initial=st.sampled_from([1, 3, 5, 7]), seed=st.integers(0, 2**32 - 1))
def test_the_ladder_takes_the_steps_of_sglang(rounds: list[tuple[int, float]], initial: int, seed: int) -> None:
    """Random batches and acceptances, with SGLang's default configuration and graph sizes."""
    theirs = _sglang().AdaptiveSpeculativeParams(initial)
    theirs.set_cuda_graph_bs(graph_batch_sizes(512))
    ours, random = SglangLadder(initial_depth=initial), np.random.default_rng(seed)
    for batch, rate in rounds * 3:
        decision = ours.draft(batch)
        assert decision.depth == theirs.get_steps_for_batch(batch)
        accepted = random.binomial(decision.depth, rate, size=batch)
        theirs.on_verify_complete(accepted.tolist(), batch)
        drafted = np.full(batch, decision.depth)
        ours.observe(Outcome(decision=decision, drafted=drafted, verified=drafted, accepted=accepted, seconds=0.01))


def test_the_ladder_has_sglangs_defaults() -> None:
    theirs = _sglang().AdaptiveSpeculativeParams(3)
    theirs.set_cuda_graph_bs(graph_batch_sizes(512))
    ours = SglangLadder()
    for batch in range(1, 513):
        slot = theirs._route(batch)
        assert (list(ours._of(batch).steps), ours._of(batch).down) == (slot.candidate_steps, slot.down_hysteresis)
