"""Random loads of a small engine, for properties of the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from specmargin.errors import ScenarioError
from specmargin.modes import POLICIES as NAMES
from specmargin.simulator.engine import BLOCK_TOKENS, EngineSettings
from specmargin.simulator.results import Result
from specmargin.simulator.rounds import RoundBank, captured_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.traffic import traffic_of
from specmargin.simulator.workload import Arrivals, ClosedLoop, Poisson, UniformLength
from tests.simulations import serving

POLICIES = ("fixed:1", *(name.replace(":K", ":4") for name in NAMES))


@cache
def signals() -> RoundBank:
    """Rounds of sequences that differ, with an informative signal."""
    generator = np.random.default_rng(3)
    sequences, rounds, depth = 40, 25, 4
    skill = np.repeat(generator.beta(3.0, 1.5, sequences), rounds)
    accepted = np.minimum(generator.geometric(1.0 - skill) - 1, depth)
    noisy = np.clip(skill + generator.normal(0.0, 0.05, skill.size), 0.01, 0.99)
    survival = np.asarray(np.cumprod(np.repeat(noisy[:, np.newaxis], depth, axis=1), axis=1), dtype=np.float64)
    return captured_rounds(["all"] * skill.size, np.repeat(np.arange(sequences), rounds), accepted, survival, "drawn")


@cache
def small(max_seqs: int = 8, tokens: int = 96) -> Serving:
    engine = EngineSettings(max_num_seqs=max_seqs, max_num_batched_tokens=tokens, kv_blocks=60)
    return serving(engine=engine, bank=signals(), drafter="eagle")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The parameters of a serving."""

    arrivals: Arrivals
    longest: tuple[int, int]  # prompt and output
    limits: tuple[int, int]  # sequences and tokens of a step
    blocks: int
    policy: str
    seed: int

    def serving(self, **changes: Any) -> Serving:
        base = small(*self.limits)
        workload = replace(
            base.workload,
            arrivals=self.arrivals,
            prompt=UniformLength(least=1, most=self.longest[0]),
            output=UniformLength(least=1, most=self.longest[1]),
        )
        drawn = replace(
            base,
            workload=workload,
            engine=replace(base.engine, kv_blocks=self.blocks),
            policy=self.policy,
            seed=self.seed,
        )
        return replace(drawn, **changes)


_closed = st.builds(ClosedLoop, users=st.integers(1, 12), requests=st.integers(1, 40))
_open = st.builds(
    Poisson,
    requests_per_second=st.sampled_from((0.5, 20.0, 5000.0)),
    requests=st.integers(1, 40),
    burst=st.integers(1, 5),
)
loads = st.builds(
    Drawn,
    arrivals=st.one_of(_closed, _open),
    longest=st.tuples(st.integers(1, 900), st.integers(1, 90)),
    limits=st.sampled_from(((1, 96), (8, 96), (8, 16), (8, 700))),
    blocks=st.sampled_from((24, 60, 5000)),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 5),
)


def served(load: Drawn, **changes: Any) -> Result:
    """The result of a load. One of which no request fits is refused, and another is drawn."""
    serving = load.serving(**changes)
    try:
        return simulate(serving, log_steps=True)
    except ScenarioError:
        requests = traffic_of(serving.workload, serving.seed).requests
        whole_blocks = load.blocks - 1  # drafts take less than one
        assert (requests["prompt_tokens"] + requests["output_tokens"]).min() > whole_blocks * BLOCK_TOKENS
        reject()
