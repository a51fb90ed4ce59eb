"""The report of `python -m lab.validation.rounds`: errors, and the engine time that was fitted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lab.terminal import note, table
from lab.validation.accuracy import Accuracy, median_and
from lab.validation.rounds.measured import LEFT_OUT, TERMS, RoundLine, conditions, fitted_engine_time, round_lines
from lab.validation.rounds.prompts import prompt_lines
from specmargin.words import duration


def report(out: Console) -> list[Accuracy]:
    lines = [*round_lines(), *prompt_lines()]
    groups: dict[str, list[RoundLine]] = {}
    for line in lines:
        groups.setdefault(line.rounds, []).append(line)
    sources = tuple(dict.fromkeys(line.source for line in lines))
    _show_errors(out, groups, sources)
    _show_terms(out, sources)
    note(out, conditions())
    out.print()
    return [_accuracy(name, group) for name, group in groups.items() if name.endswith(LEFT_OUT)]


def _accuracy(name: str, group: Sequence[RoundLine]) -> Accuracy:
    return Accuracy(
        what=f"rounds, fitted without {name.removesuffix(LEFT_OUT)} (worst)",
        count=group[0].count,
        errors={line.source: median_and(line.median_error, line.worst_error) for line in group},
    )


def _show_errors(out: Console, groups: dict[str, list[RoundLine]], sources: tuple[str, ...]) -> None:
    shown = table(
        "vLLM 0.32: median (worst) error of whole rounds", ("rounds; steps with a prompt",), ("rounds", *sources)
    )
    for name, group in groups.items():
        cells = [f"{line.median_error:.1%} ({line.worst_error:.1%})" for line in group]
        shown.add_row(name, str(group[0].count), *cells)
    out.print(shown)


def _show_terms(out: Console, sources: tuple[str, ...]) -> None:
    times = [fitted_engine_time(source) for source in sources]
    shown = table("Engine time beside the kernels, fitted to these rounds", ("term",), sources)
    for name in TERMS:
        title = name.removesuffix("_seconds").replace("_", " ")
        shown.add_row(title, *(duration(getattr(time, name)) for time in times))
    out.print(shown)
