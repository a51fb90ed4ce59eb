"""Fit price laws of AMD Instinct GPUs to AITER's tuning tables, and write them to the catalog.

    git clone https://github.com/ROCm/aiter
    python -m lab.fits.amd_laws aiter/aiter/configs

AITER's tables hold the time of the best kernel per shape, as its authors measured it when they tuned it: kernels alone,
from a profiler's trace, on inputs that rotate so that none stays in a cache (aiter/test_common.py). GPUs are told apart
by their compute units: 256 on gfx950 (MI355X), 304 on gfx942 (MI300X, MI325X). Expert rows are the two stages of a
fused kernel, with random routing; sorting the pairs is not in them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab import CATALOG
from lab.fits.fitting import fitted_law
from lab.terminal import parser, run
from specmargin.catalog.lookup import bundled_device
from specmargin.errors import CatalogError
from specmargin.prices.kernels.fit import Samples
from specmargin.prices.kernels.law import Law
from specmargin.prices.kernels.terms import expert_terms, gemm_terms

TARGET = CATALOG / "amd_laws.json"
SOURCE = "AITER's tuning tables of 2026-08-22 (github.com/ROCm/aiter e404860)"
_GPUS = {"256": "mi355x", "304": "mi300x"}
_GENERATIONS = {"mi355x": "gfx950", "mi300x": "gfx942"}
_EXPERT_DTYPES = {
    ("bfloat16", "QuantType.No"): "bfloat16",
    ("float8", "QuantType.per_1x128"): "fp8_block",
    ("float8", "QuantType.per_Token"): "fp8",
    ("float4", "QuantType.per_1x32"): "w4a8_mxfp4_mxfp8",
    ("int4", "QuantType.per_1x32"): "int4_wo",
}
_MOST_POSITIONS = 1024
_FEWEST_ROWS, _FEWEST_SHAPES = 30, 3
_REACHED = 0.87  # of the bandwidth: no row of 100 MB or more reads at more than 0.85
Row = dict[str, Any]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("configs", type=Path, help="the folder aiter/configs of a checkout of AITER")
    folder: Path = options.parse_args().configs
    if not folder.is_dir():
        raise CatalogError(f"{folder}: not a folder; give aiter/configs of a checkout of AITER")
    rows = [row for path in sorted(folder.rglob("*tuned*.csv")) if "untuned" not in path.name for row in _rows(path)]
    entries = list(_entries(rows))
    TARGET.write_text(_text(entries))
    for entry in entries:
        evidence = entry["evidence"]
        name = f"{entry['gpu']:8s}{entry['operation']:9s}{entry['dtype']:18s}"
        print(f"{name}{evidence['shapes']:4d} shapes {evidence['median_error']:7.1%} {evidence['p90_error']:7.1%}")


def _rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row.get("us"):  # tables of other kernels
                return
            parsed = _expert_row(row) if "token" in row else _gemm_row(row, path.name)
            if parsed is not None:
                yield parsed


def _gpu(row: Row) -> str | None:
    gpu = _GPUS.get(row.get("cu_num") or "")
    generation = row.get("gfx") or (gpu and _GENERATIONS[gpu])  # older tables name the compute units alone
    return gpu if gpu and generation == _GENERATIONS[gpu] else None


def _gemm_row(row: Row, name: str) -> Row | None:
    gpu = _gpu(row)
    if gpu is None or "M" not in row or "batched" in name or "int8" in (row.get("q_dtype_w") or ""):
        return None
    dtype = "w4a8_mxfp4_mxfp8" if "a4w4" in name else "fp8_block" if "blockscale" in name else "fp8"
    dtype = dtype if "a8w8" in name or "a4w4" in name else "bfloat16"
    m, n, k, seconds = int(row["M"]), int(row["N"]), int(row["K"]), float(row["us"]) * 1e-6
    if seconds <= 0.0 or m > _MOST_POSITIONS:
        return None
    return {"gpu": gpu, "operation": "gemm", "dtype": dtype, "positions": m, "shape": (n, k), "seconds": seconds}


def _expert_row(row: Row) -> Row | None:
    gpu, weights = _gpu(row), row["q_dtype_w"].removeprefix("torch.")
    kinds = _EXPERT_DTYPES.items()
    dtype = next((to for (of, kind), to in kinds if weights.startswith(of) and row["q_type"] == kind), "")
    activations = row["q_dtype_a"].removeprefix("torch.")
    seconds, positions = float(row["us"]) * 1e-6, int(row["token"])
    if gpu is None or not dtype or seconds <= 0.0 or positions > _MOST_POSITIONS or row["use_g1u1"] != "1":
        return None
    if dtype.startswith("w4a8") and activations == "bfloat16":
        dtype = "w4a16_mxfp4"
    shape = tuple(int(row[name]) for name in ("model_dim", "inter_dim", "topk", "expert"))
    head = {"gpu": gpu, "operation": "experts", "dtype": dtype}
    return head | {"positions": positions, "shape": shape, "seconds": seconds}


def _entries(rows: list[Row]) -> Iterator[dict[str, Any]]:
    keys = dict.fromkeys((row["gpu"], row["operation"], row["dtype"]) for row in rows)
    for gpu, operation, dtype in sorted(keys):
        best: dict[tuple[Any, ...], float] = {}  # several tables tuned the same shape
        for row in rows:
            if (row["gpu"], row["operation"], row["dtype"]) == (gpu, operation, dtype):
                at = (row["shape"], row["positions"])
                best[at] = min(best.get(at, np.inf), row["seconds"])
        if len(best) >= _FEWEST_ROWS and len({shape for shape, _ in best}) >= _FEWEST_SHAPES:
            variant = "" if operation == "gemm" else "aiter"
            head = {"gpu": gpu, "engine": "aiter", "operation": operation, "dtype": dtype, "variant": variant}
            yield head | _law(gpu, operation, dtype, best).as_json()


def _law(gpu: str, operation: str, dtype: str, best: dict[tuple[Any, ...], float]) -> Law:
    shapes = sorted({shape for shape, _ in best})
    positions = np.array([float(at) for _, at in best])
    columns = np.array([shape for shape, _ in best], dtype=np.float64).T
    if operation == "gemm":
        terms = gemm_terms(positions, columns[0], columns[1], dtype)
    else:
        hidden, inter, topk, experts = columns
        terms = expert_terms(
            distinct=experts * (1.0 - (1.0 - topk / experts) ** positions),
            pairs=positions * topk,
            positions=positions,
            parameters=3.0 * hidden * inter,
            residents=experts,
            hidden=hidden,
            dtype=dtype,
        )
    samples = Samples(
        seconds=np.array(list(best.values())),
        terms=terms,
        shape=np.array([shapes.index(shape) for shape, _ in best]),
        weight=np.where(positions <= 256, 1.0, 0.3),
        offset=np.zeros(()),
        bandwidth_limit=_REACHED * bundled_device(gpu).bandwidth_bytes_per_second,
    )
    return fitted_law(samples, "aiter 2026-08", judged=positions <= 256)


def _text(entries: list[dict[str, Any]]) -> str:
    """As laws.json: one law per line."""
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    kernels = ",\n".join(
        f'    "{entry["gpu"]}/aiter/{entry["dtype"]}": {{"shapes": {{}}, "default": "aiter"}}'
        for entry in entries
        if entry["operation"] == "experts"
    )
    head = f'{{\n  "schema": "specmargin.laws/1",\n  "source": {json.dumps(SOURCE)},\n'
    return f'{head}  "kernels": {{\n{kernels}\n  }},\n  "laws": [\n{lines}\n  ]\n}}\n'


if __name__ == "__main__":
    run(main)
