"""Output of `specmargin watch`: per engine the last interval and the time since its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specmargin.app.engine_metrics import EngineReading, tokens_per_second
from specmargin.cli import render
from specmargin.live.reading import Interval, ServerReading, interval
from specmargin.live.settings_schema import Mode

_BAR = 32  # columns of a full bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The last successful reading, the one before it, and the error of a newer attempt."""

    url: str
    now: ServerReading
    before: ServerReading | None
    engines: tuple[str, ...]
    fault: str | None = None


# --- terminal ---


def view(look: Look) -> RenderableType:
    parts: list[RenderableType] = []
    if look.fault is not None:
        parts.append(Text(f"{look.fault}; retrying. Below: the last reading.", style="red"))
    for engine in look.engines:
        last, whole = interval(engine, look.now, look.before), interval(engine, look.now, None)
        headline = Text(_headline(look.url, engine, last), style="bold")
        parts += [headline, _numbers(last, whole), Text(), _depths(last), Text()]
    return Group(*parts)


def _headline(url: str, engine: str, last: Interval) -> str:
    since = "since its start" if last.seconds is None else f"last {last.seconds:.1f} s"
    restarted = ", restarted since" if last.restarted else ""
    return f"{url.removesuffix('/metrics')}, engine {engine}: {_state(last)}; {since}{restarted}"


def _state(last: Interval) -> str:
    if not last.now.values.get("enabled", 1.0):
        configuration = last.now.faults.get("configuration")
        return "disabled, invalid configuration" if configuration else "disabled after faults, vLLM runs without it"
    mode = mode_of(last)
    if mode is None:
        return "on"
    return f"{mode} mode, {'no effect on the engine' if mode is Mode.OBSERVE else 'deciding'}"


def mode_of(last: Interval) -> Mode | None:
    code = last.now.values.get("mode")
    return None if code is None or not 0 <= code < len(Mode) else list(Mode)[int(code)]


def _numbers(last: Interval, whole: Interval) -> Table:
    first = last.seconds is None
    headings = ("since its start",) if first else ("now", "since its start")
    shown = render.table("", [("", "left"), *((heading, "left") for heading in headings)])
    for name, recent, total in _rows(last, whole):
        cells = (total or recent,) if first else (recent, total)
        if any(cells):
            shown.add_row(name, *(escape(cell) for cell in cells))
    return shown


def _rows(last: Interval, whole: Interval) -> list[tuple[str, str, str]]:
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


def engine_view(now: EngineReading, before: EngineReading | None) -> RenderableType:
    """The metrics of an engine without the plug-in."""
    rate, length = tokens_per_second(now, before), now.mean_accept_length
    since = "since its start" if now.survival_by_position else "of its last steps"
    rows = [
        ("requests", f"{now.running:.0f} running, {now.waiting:.0f} waiting"),
        ("accepted length", "" if length is None else f"{length:.2f} tokens per round with the bonus token, {since}"),
        ("depth", "" if now.depth is None else f"{now.depth:.0f}"),
        ("accepted by position", ", ".join(f"{share:.0%}" for share, _ in now.survival_by_position)),
        ("tokens generated", "" if rate is None else f"{rate:,.0f} per second"),
    ]
    shown = render.table("", [("", "left"), ("", "left")])
    for name, value in rows:
        if value:
            shown.add_row(name, escape(value))
    missing = [] if length is not None else [Text(f"no speculation reported: {now.names.hint}", style="dim")]
    return Group(Text(f"{now.url}: {now.names.title}, its own metrics", style="bold"), shown, *missing, Text())


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
    return f"{amount}, {render.seconds(seconds)} each" if seconds else amount  # SGLang's are not timed


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
    shown = render.table("", [("depth chosen", "right"), ("", "left"), ("steps", "right")])
    share = last.depth_share
    for depth in range(max(share, default=-1) + 1):
        part = share.get(depth, 0.0)
        shown.add_row(str(depth), f"[green]{_bar(part):<{_BAR}}[/]", f"{part:.0%}")
    if not share:
        shown.add_row("–", "no step since the last reading" if last.seconds is not None else "no step yet", "")
    return shown


def _bar(share: float) -> str:
    """In eighths of a column; any share above zero is visible."""
    eighths = max(round(share * _BAR * 8), 1 if share else 0)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


# --- JSON ---


def payload(look: Look) -> dict[str, Any]:
    engines = [_engine(name, interval(name, look.now, look.before)) for name in look.engines]
    return {"schema": "specmargin.watch/1", "url": look.url, "engines": engines}


def _engine(name: str, last: Interval) -> dict[str, Any]:
    values = last.now.values
    named = ("mode", "enabled")
    gauges = {key: value for key, value in values.items() if not key.endswith("_total") and key not in named}
    return {
        "engine": name,
        "mode": mode_of(last),
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
