"""What a setting gives by batch, up to the memory limit: shared by every figure over batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmargin.decisions.grid import Grid
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.show.figures.marks import Layers, Plane, area_between, batch_axis, x_at, y_at
from specmargin.step import BoolArray, FloatArray, IntArray

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def fitting(pricer: Pricer, batches: Sequence[int]) -> list[int]:
    """The batches that fit without speculation; at least two, so that an axis has a length."""
    fit = [batch for batch in batches if batch <= pricer.no_spec_largest_batch]
    return fit if len(fit) > 1 else list(batches[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A setting over batches that fit without speculation; with it, only those up to `limit` fit."""

    batches: tuple[int, ...]
    grid: Grid
    depths: IntArray
    fits: BoolArray  # by batch: whether the sequences fit with the drafts of the setting
    fits_by_depth: BoolArray  # by batch and depth: whether a graph and memory for that depth exist
    goodput: FloatArray  # not a number where the setting does not fit
    limit: int  # the largest batch that fits with the setting

    @property
    def speedup(self) -> FloatArray:
        return self.goodput / self.grid.no_spec_goodput

    @property
    def fixed_speedup(self) -> FloatArray:
        """By batch and depth; not a number where the depth has no graph or does not fit in memory."""
        gains = self.grid.goodput / self.grid.no_spec_goodput[:, np.newaxis]
        return np.where(self.fits_by_depth, gains, np.nan)

    @property
    def tpot_seconds(self) -> FloatArray:
        return self.grid.batches / self.goodput

    @property
    def shown(self) -> list[int]:
        """Indices of the batches that fit."""
        return [int(i) for i in np.flatnonzero(self.fits)]


def curve(pricer: Pricer, setting: Setting, batches: Sequence[int] = BATCHES) -> Curve:
    """The schedule's depths; without one, the best depth of those that fit in memory at each batch."""
    schedule = setting.schedule
    room = np.array([pricer.largest_batch(depth) for depth in range(setting.max_depth + 1)])
    limit = int(room.max()) if schedule is None else setting.largest_batch(pricer, schedule.max_depth)
    sizes = _with_limit(fitting(pricer, batches), limit)
    grid = pricer.grid(sizes, setting.max_depth)
    by_depth = setting.allowed(grid) & (grid.batches[:, np.newaxis] <= room)
    if schedule is None:
        depths = np.asarray(np.where(by_depth, grid.goodput, -np.inf).argmax(axis=1))
        fits = np.asarray(by_depth.any(axis=1))
    else:
        depths, fits = schedule.depths_at(grid.batches), np.asarray(grid.batches <= limit)
    return Curve(
        batches=tuple(sizes),
        grid=grid,
        depths=depths,
        fits=fits,
        fits_by_depth=by_depth,
        goodput=np.where(fits, setting.goodput_at(grid, depths), np.nan),
        limit=limit,
    )


def _with_limit(batches: list[int], limit: int) -> list[int]:
    """The limit itself is a point, so that lines end where the shaded area begins."""
    return sorted({*batches, limit}) if 0 < limit < batches[-1] else batches


def limit_rows(shown: Curve, setting: Setting) -> list[dict[str, object]]:
    """The batches that do not fit, for `limit_marks`; none where everything drawn fits."""
    last = shown.batches[-1]
    if shown.limit >= last:
        return []
    depth = 0 if setting.schedule is None else setting.schedule.max_depth
    held = [f"drafts of {depth}", "do not fit"] if depth else ["does not fit"]
    where = f"beyond {shown.limit:,}" if shown.limit else "at any batch"
    return [{"batch": max(shown.limit, shown.batches[0]), "end": last, "text": [*held, where]}]


def limit_marks() -> Layers:
    """The shaded area of batches that do not fit, and its name: over a table `limit` of `limit_rows`."""
    on = Plane(batch_axis(), y_at(4))
    name = Plane(x_at("width"), on.y).text("limit", style="limit-label", baseline="line-top", lineHeight=14)
    return [area_between("limit", batch_axis(), "end:Q", "limit"), on.at("limit", "limit-edge"), name]
