"""Time of one policy decision: calibrating the confidences of a batch and gating its drafts, in microseconds.

Compared with plain NumPy, and as a share of a step of 5 ms.
"""

from __future__ import annotations

import time

import numpy as np

from specmargin.acceptance.calibration import KNOTS, Logistic, hats, logit, sigmoid
from specmargin.acceptance.compiled import CompiledCalibrator
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.policy import RaggedGate
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import study_table
from specmargin.step import FloatArray, IntArray

DEPTH, STEP_SECONDS = 8, 5e-3


def main() -> None:
    generator = np.random.default_rng(0)
    table = study_table(by_pass=False)
    model = Logistic(weights=0.2 * generator.normal(size=2 * DEPTH + 1 + KNOTS.size + 4), depths=DEPTH, rich=True)
    calibrator = CompiledCalibrator(model, table.max_batch)
    sample = np.asarray(np.cumprod(generator.beta(2.0, 1.0, (500, DEPTH)), axis=1), dtype=np.float64)
    gate = RaggedGate(table=table, look_ahead=look_ahead(table, sample))
    for batch, repeats in ((1, 20_000), (256, 5_000)):
        confidence = generator.beta(2.0, 1.0, (50, batch, DEPTH))
        history = generator.normal(0.0, 1.0, (50, batch))
        drafted = np.full(batch, DEPTH)

        def decide(n: int, c: FloatArray = confidence, h: FloatArray = history, d: IntArray = drafted) -> None:
            gate.verify(gate.draft(d.size), calibrator.survival(c[n % 50], h[n % 50]), d)

        decide(0)
        seconds = np.empty(repeats)
        for n in range(repeats):
            start = time.perf_counter()
            decide(n)
            seconds[n] = time.perf_counter() - start
        start = time.perf_counter()
        for n in range(20):
            plain(model, table, gate.look_ahead.rate(batch), confidence[n], history[n])
        plain_seconds = (time.perf_counter() - start) / 20
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e6
        print(
            f"{batch} sequences × {DEPTH}: median {p50:.1f} µs, 99th percentile {p99:.1f} µs, "
            f"{p99 * 1e-6 / STEP_SECONDS:.2%} of a 5 ms step; plain NumPy {plain_seconds * 1e6:.0f} µs "
            f"({plain_seconds * 1e6 / p50:.0f} times)"
        )


def plain(model: Logistic, table: PriceTable, rate: float, confidence: FloatArray, history: FloatArray) -> IntArray:
    """The same decision with sorting and cumulative sums."""
    logits = logit(confidence)
    d, w = model.depths, model.weights
    z = w[:d] + (w[d] + w[d + 1 : 2 * d + 1]) * logits / 4.0
    z = z + (hats(logits.ravel()) @ w[2 * d + 1 : -4]).reshape(logits.shape) + history[:, np.newaxis] * w[-4]
    survival = np.cumprod(sigmoid(z), axis=1)
    flat = survival.ravel()
    order = np.argsort(-flat, kind="stable")
    batch = confidence.shape[0]
    extra = np.arange(flat.size + 1.0)
    rest = np.interp(extra / batch, np.arange(table.max_depth + 1), table.rest_seconds[batch, :, 0])
    step = np.diff(table.effective_by_depth)[order % d]
    positions = (batch + np.concatenate([[0.0], np.cumsum(step)])) / table.expert_step
    experts = np.interp(positions, np.arange(table.expert_seconds.size), table.expert_seconds)
    verified = int((np.concatenate([[0.0], np.cumsum(flat[order])]) - rate * (rest + experts)).argmax())
    return np.bincount(order[:verified] // d, minlength=batch)


if __name__ == "__main__":
    main()
