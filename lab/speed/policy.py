"""Time of one decision of the ragged gate in microseconds, compared with plain NumPy, and as a share of a 5 ms step.

python -m lab.speed.policy
"""

from __future__ import annotations

import time

import numpy as np

from lab.terminal import run
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import RaggedGate
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray, IntArray

DEPTH, STEP_SECONDS = 8, 5e-3


def main() -> None:
    generator = np.random.default_rng(0)
    table = study_table(by_pass=False)
    sample = np.asarray(np.cumprod(generator.beta(2.0, 1.0, (500, DEPTH)), axis=1), dtype=np.float64)
    gate = RaggedGate(table=table, look_ahead=look_ahead(table, sample))
    for batch, repeats in ((1, 20_000), (256, 5_000)):
        survival = np.asarray(np.cumprod(generator.beta(2.0, 1.0, (50, batch, DEPTH)), axis=2), dtype=np.float64)
        drafted = np.full(batch, DEPTH)

        def decide(n: int, s: FloatArray = survival, d: IntArray = drafted) -> None:
            gate.verify(gate.draft(d.size), s[n % 50], d)

        decide(0)
        seconds = np.empty(repeats)
        for n in range(repeats):
            start = time.perf_counter()
            decide(n)
            seconds[n] = time.perf_counter() - start
        start = time.perf_counter()
        for n in range(20):
            plain(table, gate.look_ahead.rate(batch), survival[n])
        plain_seconds = (time.perf_counter() - start) / 20
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e6
        print(
            f"{batch} sequences × {DEPTH}: median {p50:.1f} µs, 99th percentile {p99:.1f} µs, "
            f"{p99 * 1e-6 / STEP_SECONDS:.2%} of a 5 ms step; plain NumPy {plain_seconds * 1e6:.0f} µs "
            f"({plain_seconds * 1e6 / p50:.0f} times)"
        )


def plain(table: PriceTable, rate: float, survival: FloatArray) -> IntArray:
    """The same decision with sorting and cumulative sums."""
    batch, d = survival.shape
    flat = survival.ravel()
    order = np.argsort(-flat, kind="stable")
    extra = np.arange(flat.size + 1.0)
    rest = np.interp(extra / batch, np.arange(table.max_depth + 1), table.rest_seconds[batch, :, 0])
    step = np.diff(table.effective_by_depth)[order % d]
    positions = (batch + np.concatenate([[0.0], np.cumsum(step)])) / table.expert_step
    experts = np.interp(positions, np.arange(table.expert_seconds.size), table.expert_seconds)
    verified = int((np.concatenate([[0.0], np.cumsum(flat[order])]) - rate * (rest + experts)).argmax())
    return np.bincount(order[:verified] // d, minlength=batch)


if __name__ == "__main__":
    run(main, __doc__)
