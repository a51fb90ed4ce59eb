"""From a request rate to its steady-state batch: planning by traffic instead of by batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.errors import ScenarioError
from specmargin.step import IntArray

_LARGEST_BATCH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A steady stream of requests."""

    requests_per_second: float
    prompt_tokens: int
    output_tokens: int
    tpot_target_seconds: float | None = None

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
    """The steady state of a load."""

    batch: int
    depth: int
    tpot_seconds: float
    prefill_share: float
    meets_target: bool | None


def settle(pricer: Pricer, load: Load, setting: Setting) -> Operating:
    """The batch at which sequences finish as fast as they arrive (Little's law): B = rate · osl · TPOT(B).

    Prefill takes its share of the time first; the rest is for decoding. An engine reserves memory for the deepest draft
    it is configured for: that of the schedule. Without one, every such depth is tried and the one with the lowest TPOT
    wins (among those that meet the target, if there is one). Queueing is not modelled: at high load a real server holds
    more sequences for a while (the simulator models that).
    """
    share = _prefill_share(pricer, load)
    held_depths = range(setting.max_depth + 1) if setting.schedule is None else [setting.schedule.max_depth]
    points = [_settle_at(pricer, load, share, replace(setting, max_depth=depth)) for depth in held_depths]
    stable = [point for point, _ in points if point is not None]
    if not stable:
        max_rate = max(rate for _, rate in points)
        raise ScenarioError(
            f"{load.requests_per_second:g} requests per second do not fit: this hardware serves about {max_rate:.2g}; "
            "lower --qps or add --gpus"
        )
    return min(stable, key=lambda point: (point.meets_target is False, point.tpot_seconds))


def _settle_at(pricer: Pricer, load: Load, share: float, setting: Setting) -> tuple[Operating | None, float]:
    """The steady state in an engine configured for `max_depth`, and the requests per second that it could serve."""
    largest = min(max(setting.largest_batch(pricer, setting.max_depth), 1), _LARGEST_BATCH)
    grid = pricer.grid(np.arange(1, largest + 1), setting.max_depth, load.mean_context)
    depths = _depths(grid, setting, load, share)
    tpot = grid.tpot_seconds[np.arange(largest), depths] if setting.configured else grid.no_spec_seconds
    needed_batch = load.requests_per_second * load.output_tokens * tpot / (1.0 - share)
    max_rate = float((grid.batches / tpot).max() * (1.0 - share) / load.output_tokens)
    stable = np.flatnonzero(grid.batches >= needed_batch)
    if stable.size == 0:
        return None, max_rate
    index = int(stable[0])
    seconds = float(tpot[index] / (1.0 - share))
    target = load.tpot_target_seconds
    point = Operating(
        batch=int(grid.batches[index]),
        depth=int(depths[index]),
        tpot_seconds=seconds,
        prefill_share=share,
        meets_target=None if target is None else seconds <= target,
    )
    return point, max_rate


def _prefill_share(pricer: Pricer, load: Load) -> float:
    # Launching the kernels of a prompt overlaps with decoding: kernels alone.
    seconds = pricer.without_launches().prefill_seconds(load.prompt_tokens)
    share = load.requests_per_second * seconds
    if share >= 1.0:
        raise ScenarioError(
            f"{load.requests_per_second:g} requests per second of {load.prompt_tokens} tokens need {share:.1f} times "
            "the prefill this hardware can do; lower --qps or add --gpus"
        )
    return share


def _depths(grid: Grid, setting: Setting, load: Load, share: float) -> IntArray:
    """Those of the setting. Where it may choose, with a TPOT target: the best that meets it, else the fastest."""
    if setting.schedule is not None or load.tpot_target_seconds is None:
        return setting.depths(grid)
    tpot = np.where(setting.allowed(grid), grid.tpot_seconds / (1.0 - share), np.inf)
    meets = tpot <= load.tpot_target_seconds
    best = np.where(meets, grid.goodput, -np.inf).argmax(axis=1)
    return np.asarray(np.where(meets.any(axis=1), best, tpot.argmin(axis=1)))
