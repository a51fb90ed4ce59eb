"""From a request rate to its steady-state batch: planning by traffic instead of by batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.errors import ScenarioError
from specmargin.step import FloatArray, IntArray, Step

_LARGEST_BATCH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A steady stream of requests."""

    requests_per_second: float
    prompt_tokens: int
    output_tokens: int
    tpot_target_seconds: float | None = None
    reads_prompts: bool = True  # False: their KV arrives from another instance

    def __post_init__(self) -> None:
        if not self.requests_per_second > 0:
            raise ScenarioError(f"--qps must be positive, got {self.requests_per_second:g}")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ScenarioError("--isl and --osl must be at least 1")
        if self.tpot_target_seconds is not None and not self.tpot_target_seconds > 0:
            raise ScenarioError(f"--tpot-slo must be positive, got {self.tpot_target_seconds:g}")

    @property
    def mean_context(self) -> float:
        """Tokens in the cache of a decoding sequence, on average over its life."""
        return self.prompt_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """The steady state of a load; of one that does not keep up, at the most requests per second."""

    batch: int
    depth: int
    tpot_seconds: float
    prefill_share: float
    meets_target: bool | None
    keeps_up: bool
    capacity_requests_per_second: float


def settle(pricer: Pricer, load: Load, setting: Setting) -> Operating:
    """The batch at which sequences finish as fast as they arrive (Little's law): B = rate · osl · TPOT(B).

    Prefill takes its share of the time first; the rest is for decoding. An engine reserves memory for the deepest draft
    it is configured for: that of the schedule. Without one, every such depth is tried and the one with the lowest TPOT
    wins (among those that meet the target, if there is one), or the one that serves most if none keeps up. Queueing is
    not modelled: at high load a real server holds more sequences for a while (the simulator models that).
    """
    held_depths = range(setting.max_depth + 1) if setting.schedule is None else [setting.schedule.max_depth]
    points = [_settle_at(pricer, load, replace(setting, max_depth=depth)) for depth in held_depths]
    stable = [point for point in points if point.keeps_up]
    if not stable:
        return max(points, key=lambda point: point.capacity_requests_per_second)
    return min(stable, key=lambda point: (point.meets_target is False, point.tpot_seconds))


def _settle_at(pricer: Pricer, load: Load, setting: Setting) -> Operating:
    """The steady state in an engine configured for `max_depth`."""
    largest = min(max(setting.largest_batch(pricer, setting.max_depth), 1), _LARGEST_BATCH)
    grid = pricer.grid(np.arange(1, largest + 1), setting.max_depth, load.mean_context)
    prompt_seconds = _prompt_seconds(pricer, grid.batches, load)
    depths = _depths(grid, setting, load, prompt_seconds)
    tpot = grid.tpot_seconds[np.arange(largest), depths] if setting.configured else grid.no_spec_seconds
    # While a batch decodes, each of its sequences is replaced, which takes a prompt.
    rates = grid.batches / (load.output_tokens * tpot + grid.batches * prompt_seconds)
    enough = np.flatnonzero(rates >= load.requests_per_second)
    index = int(enough[0] if enough.size else rates.argmax())
    served = min(load.requests_per_second, float(rates[index]))
    share = served * float(prompt_seconds[index])
    seconds = float(tpot[index] / (1.0 - share))
    target = load.tpot_target_seconds
    return Operating(
        batch=int(grid.batches[index]),
        depth=int(depths[index]),
        tpot_seconds=seconds,
        prefill_share=share,
        meets_target=None if target is None else seconds <= target,
        keeps_up=bool(enough.size),
        capacity_requests_per_second=float(rates.max()),
    )


def _prompt_seconds(pricer: Pricer, batches: FloatArray, load: Load) -> FloatArray:
    """What one prompt adds to a step of each batch: weights and experts are read once for both.

    Launching the kernels of a prompt overlaps with decoding: kernels alone.
    """
    if not load.reads_prompts:
        return np.zeros_like(batches)
    bare = pricer.without_launches()
    decoding = Step.uniform(batch=batches, depth=0, context=load.mean_context)
    together = decoding.joined(Step.prompts(tokens=np.full(batches.shape, load.prompt_tokens)))
    added = bare.verify(together).total_seconds - bare.verify(decoding).total_seconds
    return np.asarray(np.maximum(added, 0.0))


def _depths(grid: Grid, setting: Setting, load: Load, prompt_seconds: FloatArray) -> IntArray:
    """Those of the setting. Where it may choose, with a TPOT target: the best that meets it, else the fastest."""
    if setting.schedule is not None or load.tpot_target_seconds is None:
        return setting.depths(grid)
    decoding = np.maximum(1.0 - load.requests_per_second * prompt_seconds, 1e-9)[:, np.newaxis]
    tpot = np.where(setting.allowed(grid), grid.tpot_seconds / decoding, np.inf)
    meets = tpot <= load.tpot_target_seconds
    best = np.where(meets, grid.goodput, -np.inf).argmax(axis=1)
    return np.asarray(np.where(meets.any(axis=1), best, tpot.argmin(axis=1)))
