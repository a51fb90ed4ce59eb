"""What was seen beside what is expected: the rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from specmargin.verbs.doctor.expected import Expected, Range
from specmargin.verbs.doctor.finding import Case
from specmargin.words import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str  # a key of the JSON
    title: str
    shown: Callable[[float], str]
    seen: float | None = None
    expected: float | None = None
    low: float | None = None
    high: float | None = None

    def values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seen": self.seen,
            "expected": self.expected,
            "expected_low": self.low,
            "expected_high": self.high,
        }

    def cells(self) -> list[str]:
        """Name, seen, expected, range."""
        range_text = ""
        if self.low is not None and self.high is not None:
            range_text = f"{self.shown(self.low)} to {self.shown(self.high)}"
        return [
            self.title,
            *("" if value is None else self.shown(value) for value in (self.seen, self.expected)),
            range_text,
        ]


def figures(case: Case) -> list[Figure]:
    """Those of which something is known."""
    return [figure for figure in _all(case) if figure.seen is not None or figure.expected is not None]


def _all(case: Case) -> Iterator[Figure]:
    of, seen, expected = case.of, case.seen, case.expected
    timed = expected if expected is not None and expected.batch_shown else None
    batch = seen.batch if seen.batch is not None or timed is None else timed.batch
    yield Figure(name="batch", title="sequences per step", shown=_number, seen=batch)
    yield _ranged(
        "tokens_per_second",
        "tokens per second",
        _count,
        of.generated_tokens_per_second,
        None if timed is None else timed.tokens_per_second,
    )
    yield _ranged(
        "round_seconds", "time per round", duration, seen.round_seconds, None if timed is None else timed.round_seconds
    )
    yield _ranged(
        "tpot_seconds",
        "time per output token",
        duration,
        seen.tpot_seconds,
        None if timed is None else timed.tpot_seconds,
    )
    drafting = expected if expected is not None and expected.depth else None
    yield _ranged(
        "accept_length",
        "accept length",
        _two,
        seen.accept_length,
        None if drafting is None else drafting.usual_length(),
    )
    for position, share in enumerate(seen.shares, 1):
        usual = None if drafting is None else drafting.usual_range(position)
        yield _ranged(f"accepted_{position}", f"position {position} accepted", _percent, share, usual)
    yield Figure(
        name="depth",
        title="draft depth" if timed is None else "draft depth (expected: the best)",
        shown=_whole,
        seen=seen.depth if seen.drafts else (0.0 if of.speculates else None),
        expected=None if timed is None else float(timed.best_depth()[0]),
    )
    yield from _load(case, timed)


def _load(case: Case, timed: Expected | None) -> Iterator[Figure]:
    of = case.of
    limit = case.settings.largest_graph or (None if timed is None else timed.graph_limit)
    yield Figure(
        name="positions",
        title="positions per step (expected: at most)",
        shown=_whole,
        seen=case.seen.positions,
        expected=None if limit is None or case.seen.positions is None else float(limit),
    )
    if timed is not None and of.prompt_tokens_per_second:
        share, least, most = timed.prompt_share
        shares = Range(share, least, most)
        yield _ranged("prompt_share", "prompts' share of the time", _percent, None, shares)
    yield Figure(
        name="seconds_to_first_token", title="time to first token", shown=duration, seen=of.seconds_to_first_token
    )
    yield Figure(name="waiting", title="requests waiting", shown=_number, seen=of.waiting)
    yield Figure(name="kv_share", title="KV cache in use", shown=_percent, seen=of.kv_share)
    yield Figure(name="preemptions", title="preemptions", shown=_whole, seen=of.preemptions)
    fits = None if case.expected is None else case.expected.fits
    if of.kv_share is not None or of.waiting:
        yield Figure(
            name="fits", title="sequences that fit", shown=_count, expected=None if fits is None else float(fits)
        )


def _ranged(name: str, title: str, shown: Callable[[float], str], seen: float | None, expected: Range | None) -> Figure:
    if expected is None:
        return Figure(name=name, title=title, shown=shown, seen=seen)
    low, high = expected.low, expected.high
    return Figure(name=name, title=title, shown=shown, seen=seen, expected=expected.value, low=low, high=high)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.1f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.0%}"
