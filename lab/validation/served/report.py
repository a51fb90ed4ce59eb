"""The report of `python -m lab.validation.served`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from lab.terminal import note, table, tracked
from lab.validation.accuracy import Accuracy, median_and
from lab.validation.served.errors import SOURCES, ErrorLine, ServedReport, peer_report, served_report
from lab.validation.served.figure import predicted_against_measured
from lab.validation.served.peer import aiconfigurator
from lab.validation.served.rows import ServedRow, served_rows
from lab.validation.served.tpot import Wrapper
from lab.validation.served.ttft import first_token_lines
from specmargin.show.figures.files import save


def report(out: Console, *, peer: int = 0, seed: int = 0, figure: Path | None = None) -> list[Accuracy]:
    rows = served_rows()
    served = served_report(rows, _track)
    lines = served.lines()
    _show_errors(out, "Served rows, aggregated: absolute error of the time between tokens", lines)
    _show_refusals(out, served, total=len(rows))
    _show_first_tokens(out, rows)
    if peer:
        _compare_peer(out, served, rows, wanted=peer, seed=seed)
    if figure is not None:
        save(predicted_against_measured(served).chart(), figure)
        out.print(f"Wrote {figure}", markup=False)
    return [_accuracy(lines, group) for group in ("MoE", "dense")]


def _accuracy(lines: Sequence[ErrorLine], group: str) -> Accuracy:
    chosen = [line for line in lines if line.group == group]
    return Accuracy(
        what=f"time between tokens, served {group} rows (p90)",
        count=chosen[0].rows,
        errors={line.source: median_and(line.median_error, line.p90_error) for line in chosen},
    )


def _track(name: str) -> Wrapper:
    return partial(tracked, f"served rows, {name}")


def _show_errors(out: Console, title: str, lines: Sequence[ErrorLine]) -> None:
    groups: dict[str, list[ErrorLine]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    sources = tuple(dict.fromkeys(line.source for line in lines))
    shown = table(title, ("median (90th percentile)",), ("rows", *sources))
    for name, group in groups.items():
        shown.add_row(name, f"{group[0].rows:,}", *(median_and(line.median_error, line.p90_error) for line in group))
    out.print(shown)


def _show_refusals(out: Console, served: ServedReport, *, total: int) -> None:
    priced, moe = len(served.rows), sum(row.is_moe for row in served.rows)
    note(
        out,
        f"priced {priced:,} of {total:,} rows, {moe:,} of {served.moe_rows:,} MoE rows ({moe / served.moe_rows:.0%}); "
        "each with an engine time fitted without its model on its GPU (the datasheet roofline has none); "
        "conflicting: repeated measurements of one configuration that differ by more than 25%",
    )
    for reason, count in sorted(served.refused.items(), key=lambda item: -item[1]):
        note(out, f"  {count} refused: {reason.partition(';')[0]}")
    out.print()


def _show_first_tokens(out: Console, rows: Sequence[ServedRow]) -> None:
    title = "Time to the first token, up to 4 requests: kernels of the prompt over measured time, median"
    shown = table(title, ("attention", "gpu", "engine"), ("rows", *SOURCES))
    for line in first_token_lines(rows, SOURCES, _track("first tokens")):
        ratios = (f"{line.ratios[source]:.2f}" for source in SOURCES)
        shown.add_row(line.kind, line.device, line.engine, f"{line.rows:,}", *ratios)
    out.print(shown)
    out.print()


def _compare_peer(out: Console, served: ServedReport, rows: Sequence[ServedRow], *, wanted: int, seed: int) -> None:
    compared = peer_report(served, rows, aiconfigurator(), wanted=wanted, seed=seed, track=_track)
    _show_errors(out, "AIConfigurator on the same MoE rows", compared.lines)
    note(
        out,
        f"{compared.sampled} rows drawn evenly from every family, GPU and engine (seed {seed}); "
        f"AIConfigurator could not price {compared.refused_by_peer}, Specmargin {compared.refused_by_us}",
    )
    out.print()
