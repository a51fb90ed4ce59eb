"""Synthetic routing with a given popularity and locality.

Each run has favourites of its own: popularity times a Gamma variate per expert (the wider, the more similar all
positions of the run). In addition, a position keeps each expert of the one before with some probability (neighbours are
more similar than other positions). The two numbers of a layer are fitted so that neighbours share as many experts, and
the longest runs touch as many, as in the profile; base weights are corrected until popularity matches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np

from specmargin.routing.capture import ExpertIds
from specmargin.routing.local import LocalRouting
from specmargin.step import FloatArray, IntArray

_TRIAL_RUNS = 1500
_ROUNDS = 14
_WIDEST, _NARROWEST = 0.05, 200.0  # shapes of the Gamma variate: from one favourite to none


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRouting:
    """Two numbers per layer, and base weights per expert."""

    weight_by_layer_expert: FloatArray
    gamma_shape_by_layer: FloatArray
    keep_by_layer: FloatArray
    experts_per_token: int

    def draw(self, runs: int, run: int, *, seed: int) -> ExpertIds:
        """(runs, run, layers, k) expert ids; every run belongs to a different sequence."""
        generator = np.random.default_rng(seed)
        layers, experts = self.weight_by_layer_expert.shape
        kind = np.uint8 if experts <= 256 else np.uint16
        ids = np.empty((runs, run, layers, self.experts_per_token), dtype=kind)
        for layer in range(layers):
            ids[:, :, layer] = _draw_layer(
                self.weight_by_layer_expert[layer],
                float(self.gamma_shape_by_layer[layer]),
                float(self.keep_by_layer[layer]),
                self.experts_per_token,
                runs,
                run,
                generator,
            )
        return ids


def synthesise(profile: LocalRouting, *, seed: int = 0) -> SyntheticRouting:
    """Routing that reproduces a profile: its popularity, its neighbours and its depth curve."""
    generator = np.random.default_rng(seed)
    fits = [_fit_layer(profile, layer, generator) for layer in range(profile.layers)]
    weights, shapes, keeps = zip(*fits, strict=True)
    return SyntheticRouting(
        weight_by_layer_expert=np.array(weights),
        gamma_shape_by_layer=np.array(shapes),
        keep_by_layer=np.array(keeps),
        experts_per_token=profile.pool.experts_per_token,
    )


def _fit_layer(profile: LocalRouting, layer: int, generator: np.random.Generator) -> tuple[FloatArray, float, float]:
    """Shrinking steps on one number for each of two targets; popularity is corrected in every round."""
    k, longest = profile.pool.experts_per_token, profile.longest_run
    popularity = profile.popularity_by_layer_expert[layer]
    distinct = float(-np.expm1(-profile.log_miss_by_run_layer_expert[-1, layer]).sum())
    overlap = float(profile.neighbour_overlap_by_layer[layer])
    weight = np.maximum(popularity, 1e-9)
    log_shape, keep = 0.5, 0.1
    step_shape, step_keep = 1.5, 0.25
    for _ in range(_ROUNDS):
        drawn = _draw_layer(weight, float(np.exp(log_shape)), keep, k, _TRIAL_RUNS, longest, generator)
        deepest, shared = _distinct(drawn, weight.size), _neighbour_overlap(drawn)
        frequency = np.bincount(drawn.ravel(), minlength=weight.size) / (drawn.size / k)
        weight = weight * (popularity / np.maximum(frequency, 1e-6)).clip(0.5, 2.0) ** 0.5
        log_shape += step_shape * float(np.clip((distinct / deepest - 1.0) * 20.0, -1.0, 1.0))
        log_shape = float(np.clip(log_shape, np.log(_WIDEST), np.log(_NARROWEST)))
        keep += step_keep * float(np.clip((overlap / shared - 1.0) * 2.0, -1.0, 1.0))
        keep = float(np.clip(keep, 0.0, 0.95))
        step_shape, step_keep = 0.8 * step_shape, 0.8 * step_keep
    return weight / weight.sum(), float(np.exp(log_shape)), keep


def _draw_layer(
    weight: FloatArray, shape: float, keep: float, k: int, runs: int, run: int, generator: np.random.Generator
) -> IntArray:
    favour = generator.gamma(shape, 1.0 / shape, size=(runs, weight.size))
    seed = int(generator.integers(0, 2**31))
    return np.asarray(_runs(weight, favour, keep, k, run, seed))


@nb.njit(cache=True)
def _runs(weight, favour, keep, k, run, seed):  # type: ignore[no-untyped-def]  # pragma: no cover (compiled)
    """k distinct experts per position, by weight × favour (Gumbel trick); some from the position before."""
    np.random.seed(seed)  # noqa: NPY002 (Numba's own generator)
    runs, experts = favour.shape
    ids = np.empty((runs, run, k), dtype=np.int64)
    score = np.empty(experts)
    log_weight = np.log(weight)
    taken = np.zeros(experts, dtype=np.bool_)
    for row in range(runs):
        for position in range(run):
            taken[:] = False
            count = 0
            if position > 0:
                for choice in range(k):
                    if np.random.random() < keep:  # noqa: NPY002
                        expert = ids[row, position - 1, choice]
                        ids[row, position, count] = expert
                        taken[expert] = True
                        count += 1
            for expert in range(experts):
                noise = -np.log(-np.log(np.random.random() + 1e-300) + 1e-300)  # noqa: NPY002
                wanted = log_weight[expert] + np.log(favour[row, expert] + 1e-300) + noise
                score[expert] = -np.inf if taken[expert] else wanted
            while count < k:
                best = np.argmax(score)
                ids[row, position, count] = best
                score[best] = -np.inf
                count += 1
    return ids


def _distinct(drawn: IntArray, experts: int) -> float:
    """Mean distinct experts of whole runs."""
    touched = np.zeros((drawn.shape[0], experts), dtype=bool)
    touched[np.arange(drawn.shape[0])[:, np.newaxis], drawn.reshape(drawn.shape[0], -1)] = True
    return float(touched.sum(axis=1).mean())


def _neighbour_overlap(drawn: IntArray) -> float:
    same = drawn[:, :-1, :, np.newaxis] == drawn[:, 1:, np.newaxis, :]
    return float(same.sum(axis=(-1, -2)).mean())
