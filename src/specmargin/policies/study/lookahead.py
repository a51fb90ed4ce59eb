"""Before drafting, what will the gate make of it? Worked out beforehand, on a sample of real survivals.

A look-ahead by mean survival cannot see that at high prices a few sequences are still worth a draft. Here the gate
plays batches drawn from the sample at every depth; what is kept is, by batch size, the depth to draft, the long-run
goodput (the rate at which time is charged) and how much a token in hand is worth beyond itself when drafting pass by
pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from specmargin.policies.kernel.gate import Memory, gate_memory, sample_goodput
from specmargin.policies.tables import PriceTable, to_depth
from specmargin.step import FloatArray, IntArray

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_OPTIONS = tuple(product((1.0, 1.4, 2.0), (1.0, 1.5, 2.2, 3.5)))  # to a sequence, to the whole pass
_ALL_GO_ON = (1e6, 1e6)  # drafting that never stops early
_POSITIONS = 3000  # sequences played for each choice
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """By batch size, from 0 on (0 is not used): the hot path only looks up."""

    depth_by_batch: IntArray
    rate_by_batch: FloatArray  # tokens a second
    option_by_batch: FloatArray  # (batches, 2): what going on is worth over the next token, to a sequence, to the pass
    next_acceptance: FloatArray  # by depth: of the next token, given that all before it are accepted

    def depth(self, batch: int) -> int:
        return int(self.depth_by_batch[min(batch, self.depth_by_batch.size - 1)])

    def rate(self, batch: int) -> float:
        return float(self.rate_by_batch[min(batch, self.rate_by_batch.size - 1)])

    def option(self, batch: int) -> FloatArray:
        return np.asarray(self.option_by_batch[min(batch, self.rate_by_batch.size - 1)])


def look_ahead(table: PriceTable, survival_sample: FloatArray, *, seed: int = 0, early_stop: bool = True) -> LookAhead:
    """`survival_sample`: (rounds, depth) calibrated survivals of real rounds, whatever was accepted. `early_stop`: the
    engine can end the drafts of single sequences between two passes."""
    generator = np.random.default_rng(seed)
    survival_sample = to_depth(survival_sample, table.max_depth)
    next_acceptance = expected_acceptance(survival_sample)
    batches = np.array([batch for batch in BATCHES if batch <= table.max_batch])
    memory = gate_memory(table.max_batch, table.max_depth)
    choices = _choices(table, early_stop=early_stop)
    found = [
        _best(table, survival_sample, int(batch), next_acceptance, memory, generator, choices) for batch in batches
    ]
    depths, rates, options = (np.array(values) for values in zip(*found, strict=True))
    every = np.log(np.maximum(np.arange(table.max_batch + 1), 1))
    nearest = np.abs(every[:, np.newaxis] - np.log(batches)).argmin(axis=1)
    return LookAhead(
        depth_by_batch=depths[nearest],
        rate_by_batch=np.interp(every, np.log(batches), rates),
        option_by_batch=options[nearest],
        next_acceptance=next_acceptance,
    )


def expected_acceptance(survival_sample: FloatArray) -> FloatArray:
    """By depth: how likely the next token is accepted, where all before it were."""
    before = np.concatenate([np.ones((survival_sample.shape[0], 1)), survival_sample[:, :-1]], axis=1)
    return np.asarray(survival_sample.sum(axis=0) / np.maximum(before.sum(axis=0), 1e-12))


def _best(
    table: PriceTable,
    sample: FloatArray,
    batch: int,
    next_acceptance: FloatArray,
    memory: Memory,
    generator: np.random.Generator,
    choices: list[tuple[int, tuple[float, float]]],
) -> tuple[int, float, tuple[float, float]]:
    """Depth, rate and option with the highest goodput. The rate is the one that was played with: drafting that stops
    early is a rule of thumb, and at a slightly higher rate it may not start at all."""
    steps = max(_POSITIONS // batch, 16)
    picked = generator.integers(0, sample.shape[0], (steps, batch))
    prices = table.of_batch(batch)
    plain = batch / table.verify_seconds(np.zeros(batch))
    best, best_goodput = (0, plain, _ALL_GO_ON), plain
    for depth, option in choices:
        rate = best_goodput
        for _ in range(_ROUNDS):
            goodput = sample_goodput(sample, picked, depth, prices, next_acceptance, rate, np.array(option), memory)
            if goodput > best_goodput * 1.0005:
                best, best_goodput = (depth, float(rate), option), float(goodput)
            rate = goodput
    return best


def _choices(table: PriceTable, *, early_stop: bool) -> list[tuple[int, tuple[float, float]]]:
    """Drafts of every depth that all go through with, and for an autoregressive head drafts that stop early."""
    whole = [(depth, _ALL_GO_ON) for depth in range(1, table.max_depth + 1)]
    if not table.draft.by_pass or not early_stop:
        return whole
    depths = sorted({min(depth, table.max_depth) for depth in (1, 2, 4, table.max_depth)})
    return whole + list(product(depths, _OPTIONS))
