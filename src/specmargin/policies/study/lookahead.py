"""The depth to draft before confidences are available, computed in advance from a sample of survivals.

Mean survival does not show that at high prices drafting still pays for a few sequences. Here the gate is run on batches
drawn from the sample, at every depth. The result, by batch size: the depth to draft, the long-run goodput (the rate at
which time is charged), and the value of continuing to draft relative to that of the next token.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from specmargin.policies.kernel.gate import EarlyStop, Scratch, sample_goodput
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.tables import to_depth
from specmargin.step import FloatArray, IntArray

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Factors for a sequence and for the whole pass that are tried: from "the next token alone counts" to several tokens.
_OPTIONS = tuple(product((1.0, 1.4, 2.0), (1.0, 1.5, 2.2, 3.5)))
_NEVER_STOP = (1e6, 1e6)
_STOPPED_DEPTHS = (1, 2, 4)  # at which early stops are tried, and the deepest: few, since options are many
_SEQUENCES, _LEAST_STEPS = 3000, 16  # sampled per batch size, the same for every choice, so that chance hardly decides
_ROUNDS = 3  # towards the rate that is the goodput it leads to
_BETTER = 1.0005  # less is chance, and would prefer more complicated choices

Option = tuple[float, float]


def look_ahead(table: PriceTable, survival_sample: FloatArray, *, seed: int = 0, early_stop: bool = True) -> LookAhead:
    """`survival_sample`: (rounds, depth) calibrated survivals of recorded rounds, accepted or not. `early_stop`: the
    engine can end the drafts of single sequences between two passes."""
    import numba  # noqa: F401, PLC0415 (uncompiled it takes an hour, and with fewer samples it is another policy)

    study = _Study(table, survival_sample, np.random.default_rng(seed))
    batches = np.array([batch for batch in BATCHES if batch <= table.max_batch])
    choices = _choices(table, early_stop=early_stop)
    best = [study.best(int(batch), choices) for batch in batches]
    depths, rates, options = (np.array(values) for values in zip(*best, strict=True))
    log_batch = np.log(np.maximum(np.arange(table.max_batch + 1), 1))
    nearest = np.abs(log_batch[:, np.newaxis] - np.log(batches)).argmin(axis=1)
    return LookAhead(
        depth_by_batch=depths[nearest],
        rate_by_batch=np.interp(log_batch, np.log(batches), rates),
        option_by_batch=options[nearest],
        next_acceptance=study.next_acceptance,
    )


def expected_acceptance(survival_sample: FloatArray) -> FloatArray:
    """By depth: the probability that the next token is accepted, given that all before it were."""
    before = np.concatenate([np.ones((survival_sample.shape[0], 1)), survival_sample[:, :-1]], axis=1)
    return np.asarray(survival_sample.sum(axis=0) / np.maximum(before.sum(axis=0), 1e-12))


class _Study:
    def __init__(self, table: PriceTable, sample: FloatArray, generator: np.random.Generator) -> None:
        self.table, self.generator = table, generator
        self.sample = to_depth(sample, table.max_depth)
        self.next_acceptance = expected_acceptance(self.sample)
        self.scratch = Scratch.of(table.max_batch, table.max_depth)

    def best(self, batch: int, choices: list[tuple[int, Option]]) -> tuple[int, float, Option]:
        """Depth, rate and option with the highest goodput. The rate is the one used in the run: the early stop is a
        heuristic, and at a slightly higher rate it may draft nothing at all."""
        steps = max(_SEQUENCES // batch, _LEAST_STEPS)
        picked = self.generator.integers(0, self.sample.shape[0], (steps, batch))
        plain = batch / self.table.verify_seconds(np.zeros(batch, dtype=np.int64))
        best, best_goodput = (0, plain, _NEVER_STOP), plain
        for depth, option in choices:
            rate = best_goodput
            for _ in range(_ROUNDS):
                goodput = self._goodput(picked, depth, EarlyStop(rate, *option))
                if goodput > best_goodput * _BETTER:
                    best, best_goodput = (depth, rate, option), goodput
                rate = goodput
        return best

    def _goodput(self, picked: IntArray, depth: int, stop: EarlyStop) -> float:
        return sample_goodput(self.table, self.sample, picked, depth, self.next_acceptance, stop, self.scratch)


def _choices(table: PriceTable, *, early_stop: bool) -> list[tuple[int, Option]]:
    """Whole drafts of every depth, and for an autoregressive head drafts that stop early."""
    whole = [(depth, _NEVER_STOP) for depth in range(1, table.max_depth + 1)]
    if not table.by_pass or not early_stop:
        return whole
    depths = sorted({min(depth, table.max_depth) for depth in (*_STOPPED_DEPTHS, table.max_depth)})
    return whole + list(product(depths, _OPTIONS))
