"""Curves of collectives by message size, with their errors on sizes or shapes that were held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from lab.tables.collectives import all_reduce_rows, all_to_all_rows
from lab.tables.features import shape_numbers
from lab.tables.modules import LAUNCH_BOUND
from specmargin.prices.kernels import store
from specmargin.prices.kernels.law import Curve, Evidence
from specmargin.step import FloatArray


def all_reduce_curves(gpu: str, engine: str) -> Iterator[tuple[int, Curve]]:
    """By ranks. Every other size is a point; errors are on the others."""
    table = store.load(store.SYSTEMS[gpu], "comm", engine, "custom_allreduce_perf")
    if table is None:
        return
    rows = all_reduce_rows(table)
    for key, part in sorted(rows.partition_by(["num_gpus"], as_dict=True).items()):
        sizes, seconds = part["bytes"].to_numpy(), part["seconds"].to_numpy()
        every_other = np.arange(0, sizes.size, 2)
        no_errors = Evidence(
            version=f"{engine} {table.version}", rows=sizes.size, shapes=1, median_error=0, p90_error=0
        )
        points = _monotonic(seconds[every_other])
        curve = Curve(sizes=tuple(float(size) for size in sizes[every_other]), seconds_at=points, evidence=no_errors)
        errors = np.abs(curve.seconds(sizes[1::2]) / seconds[1::2] - 1.0)  # on the held-out points
        median, p90 = (round(float(np.quantile(errors, q)), 4) for q in (0.5, 0.9))
        evidence = replace(no_errors, median_error=median, p90_error=p90)
        yield int(str(key[0])), replace(curve, evidence=evidence)


def all_to_all_curves(gpu: str, engine: str) -> Iterator[tuple[int, Curve]]:
    """By ranks. One point per octave, the median over shapes; errors are leave-one-shape-out.

    Uses the engine's own measurements unless they were timed outside a CUDA graph; then those of another engine, whose
    DeepEP kernels are the same.
    """
    tables = [(e, all_to_all_rows(store.SYSTEMS[gpu], e)) for e in store.ENGINES]
    measured = [(e, *table) for e, table in tables if table is not None]
    for ranks in sorted({ranks for _, _, rows in measured for ranks in rows["ranks"].unique()}):
        parts = {(e, version): rows.filter(pl.col("ranks") == ranks) for e, version, rows in measured}
        rows_by_source = {key: part for key, part in parts.items() if part.height > 0}
        smallest_seconds = {key: _smallest_message_seconds(part) for key, part in rows_by_source.items()}
        best = min(smallest_seconds, key=lambda key: smallest_seconds[key])
        own = next((key for key in rows_by_source if key[0] == engine), best)
        chosen = own if smallest_seconds[own] <= LAUNCH_BOUND * smallest_seconds[best] else best
        note = "" if chosen[0] == engine else f"measured with {chosen[0]}"
        yield int(ranks), _all_to_all_curve(chosen, rows_by_source[chosen], note)


def _smallest_message_seconds(rows: pl.DataFrame) -> float:
    """Median time of the smallest messages."""
    return float(np.median(rows.sort("bytes")["seconds"].to_numpy()[:10]))


def _all_to_all_curve(chosen: tuple[str, str], rows: pl.DataFrame, note: str) -> Curve:
    sizes, seconds = rows["bytes"].to_numpy(), rows["seconds"].to_numpy()
    shape = shape_numbers(rows, ["hidden_size", "topk", "num_experts"])
    errors = []
    for held_out in np.unique(shape):
        seen, unseen = shape != held_out, shape == held_out
        errors.append(np.abs(_octaves(sizes[seen], seconds[seen]).seconds(sizes[unseen]) / seconds[unseen] - 1.0))
    median, p90 = (round(float(np.quantile(np.concatenate(errors), q)), 4) for q in (0.5, 0.9))
    evidence = Evidence(
        version=f"{chosen[0]} {chosen[1]}",
        rows=sizes.size,
        shapes=len(errors),
        median_error=median,
        p90_error=p90,
        note=note,
    )
    return replace(_octaves(sizes, seconds), evidence=evidence)


def _octaves(sizes: FloatArray, seconds: FloatArray) -> Curve:
    octave_by_row = np.round(np.log2(sizes)).astype(int)
    octaves = np.unique(octave_by_row)
    medians = np.array([np.median(seconds[octave_by_row == octave]) for octave in octaves])
    no_evidence = Evidence(version="", rows=0, shapes=0, median_error=0, p90_error=0)
    return Curve(
        sizes=tuple(float(2.0**octave) for octave in octaves), seconds_at=_monotonic(medians), evidence=no_evidence
    )


def _monotonic(seconds: FloatArray) -> tuple[float, ...]:
    """Monotonic times: where an engine picks a slow algorithm, a size is priced like the next larger one."""
    return tuple(float(f"{value:.3g}") for value in np.minimum.accumulate(seconds[::-1])[::-1])
