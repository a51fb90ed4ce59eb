"""Counting a capture, and the coverage of a ragged batch, each compared with plain NumPy in the same run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.terminal import run
from specmargin.architecture.types import ExpertPool
from specmargin.catalog.routing_profiles import bundled_routing
from specmargin.routing.capture import ExpertIds, open_captures
from specmargin.routing.counts import count
from specmargin.step import FloatArray, IntArray, Step

LAYERS, EXPERTS, K, RUN = 40, 256, 8, 16
POSITIONS = 400_000
LOOPED = 8_000  # positions that the plain loop is timed on


def main() -> None:
    generator = np.random.default_rng(0)
    experts = generator.integers(0, EXPERTS, (POSITIONS, LAYERS, K), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "returned.npy"
        np.save(path, experts)
        captures = open_captures([str(path)])
        count(open_captures([str(path)]), experts=EXPERTS, longest_run=RUN)  # compiles
        seconds = _best(lambda: count(captures, experts=EXPERTS, longest_run=RUN), 3)
    counted = experts.nbytes / seconds / 1e6
    looped = experts[:LOOPED].nbytes / _best(lambda: _plain(experts[:LOOPED]), 1) / 1e6
    print(
        f"counting: {counted:.0f} MB/s on one core, {counted / looped:.0f} times a plain NumPy loop ({looped:.2f} MB/s)"
    )

    profile = bundled_routing("qwen3.6-35b-a3b").local(ExpertPool(experts=EXPERTS, experts_per_token=K))
    depths = generator.integers(0, 9, 256)
    step = Step.ragged(depths=depths.astype(np.float64), contexts=0)
    profile_seconds = _best(lambda: profile.mean_by_layer(step), 50)
    hit = -np.expm1(-profile.log_miss_by_run_layer_expert)
    product_seconds = _best(lambda: _product(hit, depths), 3)
    print(
        f"coverage of 256 ragged sequences, {LAYERS} layers × {EXPERTS} experts: {profile_seconds * 1e6:.0f} µs, "
        f"{product_seconds / profile_seconds:.0f} times as fast as the plain product ({product_seconds * 1e6:.0f} µs)"
    )


def _best(run: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _plain(experts: ExpertIds) -> FloatArray:
    """Hits of every expert within the first 1, 2, … positions of each run, with np.unique."""
    hits = np.zeros((RUN, LAYERS, EXPERTS))
    for start in range(0, experts.shape[0], RUN):
        for layer in range(LAYERS):
            for length in range(1, RUN + 1):
                hits[length - 1, layer, np.unique(experts[start : start + length, layer])] += 1
    return hits


def _product(hit_by_run_layer_expert: FloatArray, depths: IntArray) -> FloatArray:
    missed = np.ones(hit_by_run_layer_expert.shape[1:])
    for depth in depths:
        missed = missed * (1.0 - hit_by_run_layer_expert[depth])
    return np.asarray((1.0 - missed).sum(axis=1))


if __name__ == "__main__":
    run(main, __doc__)
