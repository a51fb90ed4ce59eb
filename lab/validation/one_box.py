"""Tokens per second and speed-ups that others published for one box, against predictions and the datasheet.

    python -m lab.validation.one_box                development rows
    python -m lab.validation.one_box --held-out     rows of the sources that were held out: once, with prices frozen
    python -m lab.validation.one_box --rows         every row, the largest errors first
    python -m lab.validation.one_box --write        and write its tables into docs/results/one-box.md

Consumer GPUs, Apple, Strix Halo, DGX Spark, CPUs, experts in main memory: llama.cpp, MLX, and vLLM on one such machine.
Sources are held out by their address alone (`held_out`), before any row was predicted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from lab import DATA, MORE_SPEEDUPS, ONE_BOX, SPEEDUPS
from lab.terminal import console, note, parser, progress, run, table
from specmargin.decisions.pricer import Pricer
from specmargin.hardware.device import Device
from specmargin.validation.calls import count_calls
from specmargin.validation.points_schema import PlainPoint, Point, Setup, read_plain, read_points
from specmargin.validation.speedup_ranges import own_ranges
from specmargin.validation.speedups import PredictedPoint, median_errors, predict
from specmargin.validation.token_speeds import (
    PLAIN,
    SPECULATIVE,
    PlainReport,
    TokenSpeed,
    predict_plain,
    speed_error,
    speeds_of,
)

FOLDER = DATA / "published" / "one-box"
#: Sources that this project had used before the rule was made, or prices since: they stay with the development rows.
USED_BEFORE = frozenset(
    {
        "inventivehq/speculative-decoding-consumer-gpus",
        "lablup/mlxcel",
        "ggml-org/llama.cpp#22105",
        "ggml-org/llama.cpp#15802",
        "ggml-org/llama.cpp:benches/dgx-spark",
        "ggml-org/llama.cpp:benches/mac-m2-ultra",
        "ggml-org/llama.cpp:benches/nemotron",
    }
)
ALL = "all rows"
_SPEED, _SPEEDUP, _LOSSES = 0.25, 0.12, 0.80  # wanted: median errors at most, and the share of losses at least
#: Models of the table of popular ones, and up to which context.
_POPULAR = (
    "gpt-oss-20b",
    "gpt-oss-120b",
    "qwen3-30b-a3b",
    "llama-3.1-8b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "glm-4.5-air",
)
_SHORT = 4200.0
_UNIFIED = {"gfx1151": "Strix Halo", "sm_121": "DGX Spark"}


def held_out(source: str) -> bool:
    """By the address alone: the SHA-256 of it in lower case, modulo 3, is 0."""
    address = source.lower()
    return address not in USED_BEFORE and int(hashlib.sha256(address.encode()).hexdigest(), 16) % 3 == 0


# --- rows ---


@dataclass(frozen=True, kw_only=True)
class OneBox:
    """Predicted rows of one side."""

    speedups: tuple[PredictedPoint, ...]
    speeds: tuple[TokenSpeed, ...]  # of these rows, and of plain decoding alone
    refused: dict[str, str]
    sources: int


def one_box(*, held: bool = False) -> OneBox:
    """The rows of one side. Development rows include what earlier files have of llama.cpp and Apple."""
    files = [FOLDER / ("held-out.csv" if held else "points.csv"), *([] if held else [SPEEDUPS, MORE_SPEEDUPS])]
    reports = []
    for file in files:
        points = read_points(file)
        points = points if file.parent == FOLDER else [point for point in points if _is_one_box(point)]
        with progress(f"{file.parent.name}/{file.name}", len(points)) as advance:
            reports.append(predict(points, file.parent, advance))
    rows = tuple(row for report in reports for row in report.predicted)
    plain = _plain_rows(held=held)
    return OneBox(
        speedups=rows,
        speeds=(*speeds_of(rows), *plain.predicted),
        refused=dict(item for report in reports for item in report.refused.items()) | plain.refused,
        sources=len({row.point.source for row in rows} | {speed.point.source for speed in plain.predicted}),
    )


def _is_one_box(point: Point) -> bool:
    return point.source in ONE_BOX or point.engine in ("llamacpp", "mlx")


def _plain_rows(*, held: bool) -> PlainReport:
    file = FOLDER / ("plain-held-out.csv" if held else "plain.csv")
    points = read_plain(file)
    with progress(f"{file.parent.name}/{file.name}", len(points)) as advance:
        return predict_plain(points, FOLDER, advance)


# --- groups ---

Item = TypeVar("Item")


def groups_of(point: Setup, pricer: Pricer) -> Iterator[str]:
    device, architecture = pricer.scenario.device, pricer.scenario.architecture
    yield ALL
    yield f"engine {point.engine}" + (f", {point.backend}" if point.backend and point.engine == "llamacpp" else "")
    yield f"device {family_of(device)}" + (" pairs" if point.gpus > 1 else "")
    yield "experts in main memory" if point.n_cpu_moe else "all on the device"
    yield "MoE" if architecture.is_moe else "dense"


def family_of(device: Device) -> str:
    """A machine with unified memory by its name, else whose GPU or processor it is."""
    if device.processor is not None:
        return "CPU"
    vendor = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}.get(device.vendor or "")
    return _UNIFIED.get(device.architecture or "", vendor or "of a file")


def _grouped(items: Sequence[Item], names: Callable[[Item], Iterator[str]]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        for name in names(item):
            groups.setdefault(name, []).append(item)
    return dict(sorted(groups.items(), key=lambda group: (group[0] != ALL, group[0])))


# --- tables ---

SPEED_HEADINGS = ("rows", "plain", "datasheet", "rows", "speculative", "datasheet")
SPEEDUP_HEADINGS = ("rows", "speed-up", "datasheet", "losses called", "uncertain")


def speed_table(rows: OneBox) -> list[list[str]]:
    """Median error (bias) of tokens per second by group, with the datasheet's, plain and with speculation."""
    groups = _grouped(rows.speeds, lambda speed: groups_of(speed.point, speed.pricer))
    return [[name, *_speed_cells(speeds, PLAIN), *_speed_cells(speeds, SPECULATIVE)] for name, speeds in groups.items()]


def _speed_cells(speeds: Sequence[TokenSpeed], what: str) -> list[str]:
    of_kind = [speed for speed in speeds if speed.what == what]
    if not of_kind:
        return ["", "", ""]
    error = speed_error(of_kind)
    return [str(error.rows), f"{error.median_error:.1%} ({error.bias:+.0%})", f"{error.datasheet_median_error:.1%}"]


def speedup_table(rows: OneBox) -> list[list[str]]:
    """Median error (bias) of speed-ups by group, with the datasheet's, and losses that were called."""
    groups = _grouped(rows.speedups, lambda row: groups_of(row.point, row.pricer))
    return [[name, *_speedup_cells(members)] for name, members in groups.items()]


def _speedup_cells(rows: Sequence[PredictedPoint]) -> list[str]:
    error, bias = median_errors([row.speedup for row in rows], rows)
    datasheet, _ = median_errors([row.datasheet_speedup for row in rows], rows)
    calls = count_calls(rows, own_ranges(rows))
    lost = [f"{calls.losses_called} of {calls.losses}", str(calls.losses_uncertain)] if calls.losses else ["", ""]
    return [str(len(rows)), f"{error:.1%} ({bias:+.0%})", f"{datasheet:.1%}", *lost]


def popular_table(rows: OneBox) -> list[list[str]]:
    """Plain decoding of popular models: published beside predicted."""
    speeds = [s for s in rows.speeds if s.what == PLAIN and s.point.model in _POPULAR and _is_plain_row(s)]
    order = sorted(speeds, key=lambda s: (_POPULAR.index(s.point.model), s.point.gpu, s.point.context))
    return [_popular_cells(speed) for speed in order]


def _is_plain_row(speed: TokenSpeed) -> bool:
    return isinstance(speed.point, PlainPoint) and speed.point.context <= _SHORT


def _popular_cells(speed: TokenSpeed) -> list[str]:
    point = speed.point
    place = f", experts of {point.n_cpu_moe} layers on the CPU" if point.n_cpu_moe else ""
    device = f"{point.gpus} × {Path(point.gpu).stem}" if point.gpus > 1 else Path(point.gpu).stem
    engine = f"{point.engine}, {point.backend}" if point.backend and point.engine == "llamacpp" else point.engine
    error = f"{speed.predicted / speed.measured - 1.0:+.0%}"
    figures = (f"{point.context:g}", f"{speed.measured:.1f}", f"{speed.predicted:.1f}", error)
    return [point.model, point.weights or "its own", device + place, engine, *figures]


def bounds(rows: OneBox) -> Iterator[str]:
    """What was wanted, and what came out."""
    for what in (PLAIN, SPECULATIVE):
        speeds = [speed for speed in rows.speeds if speed.what == what]
        if speeds:
            error = speed_error(speeds).median_error
            yield _bound(f"tokens per second, {what}", f"{error:.1%}", f"at most {_SPEED:.0%}", error <= _SPEED)
    error, _ = median_errors([row.speedup for row in rows.speedups], rows.speedups)
    yield _bound("speed-ups", f"{error:.1%}", f"at most {_SPEEDUP:.0%}", error <= _SPEEDUP)
    calls = count_calls(rows.speedups, own_ranges(rows.speedups))
    if calls.losses:
        share = calls.losses_called / calls.losses
        text = f"{calls.losses_called} of {calls.losses} ({share:.0%})"
        yield _bound("losses called", text, f"at least {_LOSSES:.0%}", share >= _LOSSES)
        yield f"gains called losses: {calls.gains_called_losses} of {calls.gains}"


def _bound(what: str, found: str, wanted: str, met: bool) -> str:
    return f"{what}: {found}; wanted {wanted}: {'met' if met else 'missed'}"


def show(out: Console, rows: OneBox, *, every_row: bool = False) -> None:
    for title, headings, cells in (
        ("Tokens per second: median error (bias)", SPEED_HEADINGS, speed_table(rows)),
        ("Speed-ups, with the measured accept length: median error (bias)", SPEEDUP_HEADINGS, speedup_table(rows)),
    ):
        shown = table(title, ("group",), headings)
        for row in cells:
            shown.add_row(*row)
        out.print(shown)
    if every_row:
        _show_rows(out, rows)
    note(out, f"{len(rows.speedups)} speed-ups and {len(rows.speeds)} speeds of {rows.sources} sources")
    for text in bounds(rows):
        note(out, text)
    for reason, ids in refused_by_reason(rows).items():
        note(out, f"not predicted: {', '.join(ids)}: {reason}")


def _show_rows(out: Console, rows: OneBox) -> None:
    shown = table("Every figure", ("row", "source", "model", "device"), ("what", "measured", "predicted", "error"))
    for speed in sorted(rows.speeds, key=lambda each: -abs(each.predicted / each.measured - 1.0)):
        point, figures = speed.point, (f"{speed.measured:.1f}", f"{speed.predicted:.1f}")
        error = f"{speed.predicted / speed.measured - 1.0:+.0%}"
        shown.add_row(point.id, point.source, point.model, Path(point.gpu).stem, speed.what, *figures, error)
    out.print(shown)


def refused_by_reason(rows: OneBox) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for identity, reason in rows.refused.items():
        ids.setdefault(reason, []).append(identity)
    return ids


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--held-out", action="store_true", help="rows of the sources that were held out")
    options.add_argument("--rows", action="store_true", help="every row, the largest errors first")
    options.add_argument("--write", action="store_true", help="write the tables of docs/results/one-box.md")
    given = options.parse_args()
    rows = one_box(held=given.held_out)
    show(console(), rows, every_row=given.rows)
    if given.write:
        from lab.validation.one_box_page import write_tables  # noqa: PLC0415 (imports this module)

        note(console(), f"wrote {write_tables(rows, held=given.held_out)}")


if __name__ == "__main__":
    run(main)
