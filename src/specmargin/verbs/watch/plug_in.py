"""A reading of vLLM with the plug-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Column, Style, Table, bold, left, right
from specmargin.live.readings import Interval, ServerReading, interval
from specmargin.live.settings_schema import Mode
from specmargin.verbs.watch.request_schema import Look, WatchRequest
from specmargin.words import duration

_BAR = 32  # columns of a full bar


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WatchAnswer(Answer[WatchRequest]):
    """Per engine the last interval and the time since its start."""

    url: str
    engines: tuple[str, ...]
    look: Look[ServerReading]

    schema: ClassVar[str] = "specmargin.watch/1"

    @property
    def verdict(self) -> str:
        return "\n".join(_headline(self.url, engine, self._last(engine)) for engine in self.engines)

    def values(self) -> dict[str, Any]:
        return {"url": self.url, "engines": [_engine_json(name, self._last(name)) for name in self.engines]}

    def blocks(self) -> Iterator[Block]:
        yield from self.look.blocks()
        for engine in self.engines:
            last, whole = self._last(engine), interval(engine, self.look.now, None)
            yield bold(_headline(self.url, engine, last))
            yield _numbers(last, whole)
            yield GAP
            yield _depths(last)
            yield GAP

    def _last(self, engine: str) -> Interval:
        return interval(engine, self.look.now, self.look.before)


def _engine_json(name: str, last: Interval) -> dict[str, Any]:
    values = last.now.values
    named = ("mode", "enabled")
    gauges = {key: value for key, value in values.items() if not key.endswith("_total") and key not in named}
    return {
        "engine": name,
        "mode": _mode(last),
        "enabled": bool(values.get("enabled", 1.0)),
        "interval_seconds": last.seconds,
        "restarted": last.restarted,
        **gauges,
        "steps_by_depth": {str(depth): steps for depth, steps in sorted(last.steps_by_depth.items())},
        "step_seconds": last.share("step_seconds_total", "steps_total"),
        "verify_positions_per_step": last.share("verify_positions_total", "steps_total"),
        "verify_positions_per_committed_token": last.share("verify_positions_total", "committed_tokens_total"),
        "accepted_share": last.share("accepted_tokens_total", "draft_tokens_total"),
        "committed_tokens_per_second": last.per_second("committed_tokens_total"),
        "decision_share": last.share("decision_seconds_total", "step_seconds_total"),
        "counted": dict(last.counted),
        "faults": {kind: count for kind, count in last.now.faults.items() if count},
        "vllm": {"accepted_share": last.vllm_accepted_share, **last.vllm_now, "counted": dict(last.vllm_counted)},
    }


def _headline(url: str, engine: str, last: Interval) -> str:
    since = "since its start" if last.seconds is None else f"last {last.seconds:.1f} s"
    restarted = ", restarted since" if last.restarted else ""
    return f"{url.removesuffix('/metrics')}, engine {engine}: {_state(last)}; {since}{restarted}"


def _state(last: Interval) -> str:
    if not last.now.values.get("enabled", 1.0):
        configuration = last.now.faults.get("configuration")
        return "disabled, invalid configuration" if configuration else "disabled after faults, vLLM runs without it"
    mode = _mode(last)
    if mode is None:
        return "on"
    return f"{mode} mode, {'no effect on the engine' if mode is Mode.OBSERVE else 'deciding'}"


def _mode(last: Interval) -> Mode | None:
    code = last.now.values.get("mode")
    return None if code is None or not 0 <= code < len(Mode) else list(Mode)[int(code)]


def _numbers(last: Interval, whole: Interval) -> Table:
    first = last.seconds is None
    rows = [[name, total or recent] if first else [name, recent, total] for name, recent, total in _lines(last, whole)]
    headings = ("since its start",) if first else ("now", "since its start")
    return Table(columns=left("", *headings), rows=[row for row in rows if any(row[1:])])


def _lines(last: Interval, whole: Interval) -> list[tuple[str, str, str]]:
    """Name, value in the interval, value since the start (empty for gauges)."""
    values = last.now.values
    return [
        ("sequences", f"{values.get('sequences', 0.0):.0f}", ""),
        ("requests (vLLM)", _requests(last.vllm_now), ""),
        ("steps", _steps(last), _steps(whole)),
        ("verify positions", _positions(last), _positions(whole)),
        ("drafts accepted", _accepted(last), _accepted(whole)),
        ("accepted (vLLM)", _percent(last.vllm_accepted_share), _percent(whole.vllm_accepted_share)),
        ("tokens committed", _committed(last), _committed(whole)),
        ("goodput", _goodput(values), ""),
        ("gate", _gate(values), ""),
        ("hurdle", _number(values.get("hurdle")), ""),
        ("calibration error", _calibration(values), ""),
        ("distinct experts", _number(values.get("distinct_experts"), ".1f"), ""),
        ("decisions", _decisions(last), _decisions(whole)),
        ("captured", _captured(last), _captured(whole)),
        ("faults", "", _faults(last.now.faults)),
    ]


def _gate(values: Mapping[str, float]) -> str:
    return "" if "gating" not in values else "by confidence" if values["gating"] else "full drafts verified"


def _requests(own: Mapping[str, float]) -> str:
    return f"{own.get('running', 0.0):.0f} running, {own.get('waiting', 0.0):.0f} waiting" if own else ""


def _steps(period: Interval) -> str:
    seconds = period.share("step_seconds_total", "steps_total")
    if seconds is None:
        return "none"
    rate = period.per_second("steps_total")
    amount = f"{period.counted['steps_total']:,.0f}" if rate is None else f"{rate:,.1f} per second"
    return f"{amount}, {duration(seconds)} each" if seconds else amount  # SGLang's are not timed


def _positions(period: Interval) -> str:
    step, token = (period.share("verify_positions_total", name) for name in ("steps_total", "committed_tokens_total"))
    return "" if step is None or token is None else f"{step:.1f} per step, {token:.2f} per committed token"


def _accepted(period: Interval) -> str:
    share = period.share("accepted_tokens_total", "draft_tokens_total")
    if share is None:
        return "nothing drafted" if period.counted.get("steps_total") else ""
    return _percent(share)


def _committed(period: Interval) -> str:
    rate = period.per_second("committed_tokens_total")
    return f"{period.counted.get('committed_tokens_total', 0.0):,.0f}" if rate is None else f"{rate:,.0f} per second"


def _goodput(values: Mapping[str, float]) -> str:
    measured, expected = (values.get(f"{kind}goodput_tokens_per_second") for kind in ("", "expected_"))
    if not measured:
        return ""
    expectation = f", {expected:,.0f} expected ({measured / expected - 1.0:+.0%})" if expected else ""
    return f"{measured:,.0f} tokens per second{expectation}"


def _calibration(values: Mapping[str, float]) -> str:
    expected, measured = values.get("expected_acceptance"), values.get("measured_acceptance")
    if not expected or measured is None:
        return ""
    return f"{values.get('calibration_error', 0.0):.3f} ({expected:.0%} expected, {measured:.0%} accepted)"


def _decisions(period: Interval) -> str:
    share = period.share("decision_seconds_total", "step_seconds_total")
    return "" if share is None else f"{share:.2%} of the time"


def _captured(period: Interval) -> str:
    rounds, dropped = period.counted.get("captured_rounds_total", 0.0), period.counted.get("capture_dropped_total", 0.0)
    return f"{rounds:,.0f} rounds" + (f", {dropped:,.0f} dropped" if dropped else "") if rounds or dropped else ""


def _faults(faults: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {count:.0f}" for kind, count in faults.items() if count) or "none"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _number(value: float | None, form: str = ".2f") -> str:
    return format(value, form) if value else ""


def _depths(last: Interval) -> Table:
    share = last.depth_share
    parts = [share.get(depth, 0.0) for depth in range(max(share, default=-1) + 1)]
    rows = [[str(depth), f"{_bar(part):<{_BAR}}", f"{part:.0%}"] for depth, part in enumerate(parts)]
    none = ["–", "no step since the last reading" if last.seconds is not None else "no step yet", ""]
    columns = [*right("depth chosen"), Column("", style=Style.GOOD if rows else Style.PLAIN), *right("steps")]
    return Table(columns=columns, rows=rows or [none])


def _bar(share: float) -> str:
    """In eighths of a column; any share above zero is visible."""
    eighths = max(round(share * _BAR * 8), 1 if share else 0)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
