"""Errors of kernel prices on held-out measurements: rows, routings and shapes.

python -m lab.validation.kernels
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from rich.console import Console

from lab.tables.features import gemm_terms_of, shape_numbers
from lab.terminal import console, note, run, table, tracked
from lab.validation.accuracy import Accuracy, median_and
from lab.validation.skew import skewed_load
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.prices import law_book
from specmargin.prices.kernels import features, store
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.checks import Peaks
from specmargin.prices.kernels.law import Law
from specmargin.step import FloatArray

GPUS = ("h100", "h200", "b200")
EXPERT_DTYPES = ("bfloat16", "fp8_block")
MAX_POSITIONS = 256  # beyond it a step is no longer memory-bound
TABLES_TARGET = (0.03, 0.10)  # median, 90th percentile
LAWS_TARGET = (0.08, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    gpu: str
    engine: str
    operation: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One line of the report: what was held out, and the errors of the prices on it."""

    kernel: Kernel
    held_out: str  # rows, skewed rows, shapes
    count: int
    median_error: float
    p90_error: float
    baseline_error: float | None = None  # median error of pricing by token count, for skewed rows
    remark: str = ""

    def misses(self) -> bool:
        target = {"rows": TABLES_TARGET, "shapes": LAWS_TARGET}.get(self.held_out)
        return target is not None and (self.median_error > target[0] or self.p90_error > target[1])


def reason_of_miss(line: KernelLine) -> str:
    """Why a line misses its target, from an inspection of its rows."""
    match line.kernel.operation, line.kernel.engine, line.held_out:
        case "gemm", _, "rows":
            return "the library switches kernels between neighbouring numbers of positions, so the time jumps"
        case "gemm", _, _:
            return "tiles and kernel depend on the shape, up to 1.5× between shapes of equal bytes; tables have them"
        case "attention", _, _:
            return "the split of the KV cache over blocks depends on batch, heads and length; small caches stay in L2"
        case "experts", _, "rows":
            return "the kernel's tile changes between neighbouring numbers of positions"
        case "experts", "sglang", _ if line.kernel.dtype == "fp8_block":
            return "shapes with 6 experts per token and shards of 384 columns run 1.4× slower; tables have them"
        case "experts", "sglang", _:
            return "Triton configurations are tuned for some shapes only; tables have them"
        case "experts", "trtllm", _:
            return "shapes with 512 experts (top 10) or 1 expert per token run up to 1.8× faster; tables have them"
        case "experts", "vllm", "shapes":
            return "shards under 128 columns run slower than their bytes suggest; tables have them"
        case _:
            return ""


def kernel_lines(gpus: tuple[str, ...] = GPUS) -> Iterator[KernelLine]:
    """Experts, GEMMs and attention of every engine: tables by row and by routing, laws by shape."""
    for gpu in gpus:
        book = law_book(bundled_device(gpu))
        if book is None:
            continue
        for engine in store.ENGINES:
            for dtype in EXPERT_DTYPES:
                yield from _expert_lines(gpu, engine, dtype, book)
            yield from _gemm_lines(gpu, engine, book)
            yield from _attention_lines(gpu, engine, book)


# --- experts ---


def _expert_lines(gpu: str, engine: str, dtype: str, book: LawBook) -> Iterator[KernelLine]:
    laws = _expert_laws(book, engine, dtype)
    if not laws:
        return
    version = _most_rows(laws).evidence.version.split(" ", 1)[1]
    table = _table(gpu, "moe", engine, "moe_perf", version)
    rows = features.expert_rows(table, dtype, Peaks.of(bundled_device(gpu), dtype))
    if rows is None:
        return
    law = _most_rows(laws)
    balanced = rows.rows
    kernel = Kernel(gpu=gpu, engine=engine, operation="experts", dtype=dtype)
    law_seconds = law.seconds(features.expert_terms_of(balanced, dtype))
    yield _summary(kernel, _row_errors(balanced, features.EXPERT_SHAPE, "num_tokens", law_seconds), held_out="rows")
    yield from _skewed_line(kernel, table, balanced, law)
    yield _laws_line(kernel, laws)


def _expert_laws(book: LawBook, engine: str, dtype: str) -> list[Law]:
    laws = [(key, law) for key, law in book.laws.items() if key[:3] == (engine, "experts", dtype)]
    return [law for key, law in laws if law.evidence.version.startswith(engine) and "plain" not in key[3]]


def _skewed_line(kernel: Kernel, table: store.Table, balanced: pl.DataFrame, law: Law) -> Iterator[KernelLine]:
    """Skewed rows predicted from balanced rows by distinct experts; the baseline predicts them by token count."""
    dtype = kernel.dtype
    skewed = (
        table.rows.filter((pl.col("moe_dtype") == dtype) & pl.col("distribution").str.starts_with("power_law"))
        .filter(pl.col("num_tokens") <= MAX_POSITIONS)
        .group_by([*features.EXPERT_SHAPE, "num_tokens", "distribution"])
        .agg(pl.col("seconds").min())
        .join(
            balanced.select(*features.EXPERT_SHAPE, "num_tokens", "parameters", balanced_seconds="seconds"),
            on=[*features.EXPERT_SHAPE, "num_tokens"],
        )
    )
    if skewed.height == 0:
        return
    keys = skewed.select("num_tokens", "num_experts", "topk", "moe_ep_size", "distribution").rows()
    loads = [skewed_load(t, n, k, r, float(name.removeprefix("power_law_"))) for t, n, k, r, name in keys]
    skewed = skewed.with_columns(
        distinct=pl.Series([distinct for distinct, _ in loads]), pairs=pl.Series([pairs for _, pairs in loads])
    )
    as_balanced = balanced.join(skewed.select(*features.EXPERT_SHAPE).unique(), on=features.EXPERT_SHAPE)
    ratio = _measured_over_law(as_balanced, skewed, law, dtype)
    predicted = law.seconds(features.expert_terms_of(skewed, dtype)) * ratio
    measured = skewed["seconds"].to_numpy()
    by_tokens = np.abs(skewed["balanced_seconds"].to_numpy() / measured - 1.0)
    errors = np.abs(predicted / measured - 1.0)
    yield _summary(kernel, errors, held_out="skewed rows", baseline=float(np.median(by_tokens)))


def _measured_over_law(balanced: pl.DataFrame, skewed: pl.DataFrame, law: Law, dtype: str) -> FloatArray:
    """Measured time over the law's, of the balanced row with the same shape and number of positions."""
    law_seconds = law.seconds(features.expert_terms_of(balanced, dtype))
    with_ratio = balanced.with_columns(ratio=pl.Series(balanced["seconds"].to_numpy() / law_seconds))
    keys = [*features.EXPERT_SHAPE, "num_tokens"]
    return skewed.join(with_ratio.select(*keys, "ratio"), on=keys, how="left", maintain_order="left")[
        "ratio"
    ].to_numpy()


# --- GEMMs and attention ---


def _gemm_lines(gpu: str, engine: str, book: LawBook) -> Iterator[KernelLine]:
    for dtype in ("bfloat16", "fp8", "fp8_block", "nvfp4"):
        law = book.laws.get((engine, "gemm", dtype, ""))
        if law is None:
            continue
        source, version = law.evidence.version.split(" ", 1)
        checked = features.gemm_rows(
            _table(gpu, "gemm", source, "gemm_perf", version), dtype, Peaks.of(bundled_device(gpu), dtype)
        )
        if checked is None or checked.rows.height == 0:
            continue
        rows = checked.rows
        kernel = Kernel(gpu=gpu, engine=engine, operation="gemm", dtype=dtype)
        errors = _row_errors(rows, features.GEMM_SHAPE, "m", law.seconds(gemm_terms_of(rows, dtype)))
        yield _summary(kernel, errors, held_out="rows", remark=law.evidence.note)
        yield _laws_line(kernel, [law])


def _attention_lines(gpu: str, engine: str, book: LawBook) -> Iterator[KernelLine]:
    table = store.load(store.SYSTEMS[gpu], "attention", engine, "generation_attention_perf")
    laws = {key[3]: law for key, law in book.laws.items() if key[:2] == (engine, "attention")}
    law = laws.get("d128-bf16")
    if table is None or law is None:
        return
    rows = features.attention_rows(table).filter(
        (pl.col("head_dim") == 128) & (pl.col("window_size") == 0) & (pl.col("kv_cache_dtype") == "bfloat16")
    )
    kernel = Kernel(gpu=gpu, engine=engine, operation="attention", dtype="bfloat16")
    shape = [*features.ATTENTION_SHAPE, "batch_size"]
    rows = rows.filter(pl.col("context") >= 64).sort([*shape, "context"])
    errors = _row_errors(rows, shape, "context", law.seconds(features.attention_terms_of(rows)), largest=np.inf)
    yield _summary(kernel, errors, held_out="rows")
    yield _laws_line(kernel, [law])


# --- shared ---


def _row_errors(
    rows: pl.DataFrame, shape: list[str], axis: str, law_seconds: FloatArray, *, largest: float = MAX_POSITIONS
) -> FloatArray:
    """Errors of every row but the first and last of its shape, each predicted from its two neighbours."""
    size, seconds = rows[axis].to_numpy().astype(np.float64), rows["seconds"].to_numpy()
    numbers = shape_numbers(rows, shape)
    log_ratio, log_size = np.log(seconds / law_seconds), np.log(size)
    inner = np.flatnonzero((numbers[1:-1] == numbers[:-2]) & (numbers[1:-1] == numbers[2:])) + 1
    inner = inner[size[inner] <= largest]
    left, right = inner - 1, inner + 1
    share = (log_size[inner] - log_size[left]) / (log_size[right] - log_size[left])
    predicted = law_seconds[inner] * np.exp((1.0 - share) * log_ratio[left] + share * log_ratio[right])
    return np.asarray(np.abs(predicted / seconds[inner] - 1.0))


def _summary(
    kernel: Kernel, errors: FloatArray, *, held_out: str, baseline: float | None = None, remark: str = ""
) -> KernelLine:
    return KernelLine(
        kernel=kernel,
        held_out=held_out,
        count=int(errors.size),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        baseline_error=baseline,
        remark=remark,
    )


def _laws_line(kernel: Kernel, laws: list[Law]) -> KernelLine:
    """The error on held-out shapes as recorded by the fit, of the law with the most rows."""
    law = _most_rows(laws)
    return KernelLine(
        kernel=kernel,
        held_out="shapes",
        count=law.evidence.shapes,
        median_error=law.evidence.median_error,
        p90_error=law.evidence.p90_error,
        remark=law.evidence.note,
    )


def _most_rows(laws: list[Law]) -> Law:
    return max(laws, key=lambda law: law.evidence.rows)


def _table(gpu: str, operation: str, engine: str, file: str, version: str) -> store.Table:
    paths = store.versions(store.SYSTEMS[gpu], operation, engine, file)
    return next(store.table(path) for path in paths if path.parent.name == version)


# --- the report ---


def report(out: Console) -> list[Accuracy]:
    lines = [line for gpu in tracked("kernels", GPUS) for line in kernel_lines((gpu,))]
    _show_lines(out, lines)
    _show_misses(out, lines)
    return [_accuracy(lines, "rows", "tables"), _accuracy(lines, "shapes", "laws")]


def _accuracy(lines: Sequence[KernelLine], held_out: str, source: str) -> Accuracy:
    """The median kernel: its median error and its 90th percentile."""
    chosen = [line for line in lines if line.held_out == held_out]
    middle = float(np.median([line.median_error for line in chosen]))
    high = float(np.median([line.p90_error for line in chosen]))
    return Accuracy(
        what=f"{len(chosen)} kernels, {held_out} left out: the median kernel (p90)",
        count=sum(line.count for line in chosen),
        errors={source: median_and(middle, high)},
    )


def _show_lines(out: Console, lines: Sequence[KernelLine]) -> None:
    shown = table(
        "Kernels, up to 256 positions: tables by row and by routing, laws by shape",
        ("gpu", "engine", "operation", "format", "held out"),
        ("number", "median", "p90", ""),
    )
    for line in lines:
        kernel = line.kernel
        names = (kernel.gpu, kernel.engine, kernel.operation, kernel.dtype, line.held_out)
        shown.add_row(*names, f"{line.count:,}", f"{line.median_error:.1%}", f"{line.p90_error:.1%}", _remark(line))
    out.print(shown)


def _remark(line: KernelLine) -> str:
    if line.baseline_error is not None:
        return f"by token count {line.baseline_error:.1%}"
    return "misses" if line.misses() else ""


def _show_misses(out: Console, lines: Sequence[KernelLine]) -> None:
    text = "{} (rows: median ≤ {:.0%}, p90 ≤ {:.0%}; shapes: ≤ {:.0%}, ≤ {:.0%}), and why:"
    missing = [line for line in lines if line.misses()]
    note(out, text.format(f"{len(missing)} of {len(lines)} miss the target", *TABLES_TARGET, *LAWS_TARGET))
    by_reason: dict[tuple[str, str, str], list[KernelLine]] = {}
    for line in missing:
        by_reason.setdefault((line.kernel.operation, line.held_out, reason_of_miss(line)), []).append(line)
    for (operation, held_out, reason), misses in by_reason.items():
        note(out, f"  {operation}, {held_out} ({len(misses)}): {reason}")
    out.print()


if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
