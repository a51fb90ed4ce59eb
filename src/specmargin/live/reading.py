"""What a server's `/metrics` says: the Prometheus text format, and in it our numbers and vLLM's own.

Two readings make an interval: rates are differences of counters. A server that was restarted counts from zero again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from specmargin.errors import EngineError
from specmargin.live.board import METRICS, Reading

PREFIX = "specmargin_"
VLLM = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "drafts_total": "vllm:spec_decode_num_drafts_total",
    "draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
}
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """One look at a server: its engines by name, and vLLM's own numbers by engine."""

    at_seconds: float  # of the reader's clock
    engines: Mapping[str, Reading]
    vllm: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What one engine did between two looks; from its start where there is no look before."""

    now: Reading
    counted: Mapping[str, float]
    steps_by_depth: Mapping[int, float]
    vllm_now: Mapping[str, float]
    vllm_counted: Mapping[str, float]
    seconds: float | None = None  # None: since the engine's start
    restarted: bool = False

    def share(self, part: str, whole: str) -> float | None:
        """One counter over another; None where nothing happened."""
        return self.counted[part] / self.counted[whole] if self.counted.get(whole) and part in self.counted else None

    def per_second(self, name: str) -> float | None:
        return None if not self.seconds else self.counted.get(name, 0.0) / self.seconds

    @property
    def depth_share(self) -> dict[int, float]:
        total = sum(self.steps_by_depth.values())
        return {depth: steps / total for depth, steps in sorted(self.steps_by_depth.items()) if steps}

    @property
    def vllm_accepted_share(self) -> float | None:
        drafted = self.vllm_counted.get("draft_tokens_total")
        return self.vllm_counted.get("accepted_tokens_total", 0.0) / drafted if drafted else None


# --- the text format ---


def parse_metrics(text: str) -> Iterator[Sample]:
    """Samples in their order. Comments, and lines that are no samples, are passed over."""
    for line in text.split("\n"):
        found = None if line.lstrip().startswith("#") else _SAMPLE.fullmatch(line.strip())
        value = None if found is None else _number(found[3])
        labels = None if found is None else _labels(found[2] or "")
        if found is not None and value is not None and labels is not None:
            yield Sample(name=found[1], labels=labels, value=value)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("Inf", "inf"))
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str] | None:
    labels, at = {}, 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            return None
        labels[found[1]] = _ESCAPED.sub(lambda mark: "\n" if mark[1] == "n" else mark[1], found[2])
        at = found.end()
    return labels


# --- what is in it ---


@dataclass(slots=True)
class _Collected:
    values: dict[str, float] = field(default_factory=dict)
    steps_by_depth: dict[int, float] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)


def server_reading(text: str, at_seconds: float, url: str) -> ServerReading:
    """Our metrics and vLLM's; one clear sentence where ours are not there."""
    engines: dict[str, _Collected] = {}
    vllm: dict[str, dict[str, float]] = {}
    ours, theirs = {PREFIX + metric.name: metric.name for metric in METRICS}, {v: k for k, v in VLLM.items()}
    foreign = False
    for sample in parse_metrics(text):
        engine = sample.labels.get("engine", "0")
        foreign = foreign or sample.name.startswith("vllm:")
        if sample.name in theirs:
            own = vllm.setdefault(engine, {})
            own[theirs[sample.name]] = own.get(theirs[sample.name], 0.0) + sample.value
        elif sample.name.startswith(PREFIX) and not math.isnan(sample.value):
            _take(engines.setdefault(engine, _Collected()), sample, ours)
    if not engines:
        raise EngineError(_missing(url, configured=PREFIX in text, vllm=foreign))
    found = {
        name: Reading(values=one.values, steps_by_depth=one.steps_by_depth, faults=one.faults)
        for name, one in sorted(engines.items(), key=lambda item: (len(item[0]), item[0]))
    }
    return ServerReading(at_seconds=at_seconds, engines=found, vllm=vllm)


def _take(collected: _Collected, sample: Sample, ours: Mapping[str, str]) -> None:
    match sample.name.removeprefix(PREFIX):
        case "depth_chosen_total" if sample.labels.get("depth", "").isdigit():
            collected.steps_by_depth[int(sample.labels["depth"])] = sample.value
        case "faults_total" if "kind" in sample.labels:
            collected.faults[sample.labels["kind"]] = sample.value
        case _ if sample.name in ours:
            collected.values[ours[sample.name]] = sample.value


def _missing(url: str, *, configured: bool, vllm: bool) -> str:
    if configured:
        return (
            f"{url}: Specmargin is configured there, but no engine has begun to decide; it is starting, or it was "
            "started without --speculative-config (its log says)"
        )
    if vllm:
        return (
            f"{url}: this vLLM runs without Specmargin; start it with --additional-config "
            '\'{"specmargin": {"mode": "observe"}}\' (docs/live.md)'
        )
    return f"{url}: there are metrics, but none of vLLM or Specmargin; give the address of a vLLM server"


# --- two of them ---


def interval(engine: str, now: ServerReading, before: ServerReading | None) -> Interval:
    """Of one engine. Counters that fell tell of a restart: what they show was counted since then."""
    reading, own = now.engines[engine], now.vllm.get(engine, {})
    first = before.engines.get(engine) if before is not None else None
    counters = {name: value for name, value in reading.values.items() if name.endswith("_total")}
    totals = {name: value for name, value in own.items() if name.endswith("_total")}
    if before is None or first is None:
        return Interval(
            now=reading, counted=counters, steps_by_depth=reading.steps_by_depth, vllm_now=own, vllm_counted=totals
        )
    restarted = any(value < first.values.get(name, 0.0) for name, value in counters.items())
    if restarted:
        first, theirs = Reading(values={}, steps_by_depth={}, faults={}), {}
    else:
        theirs = dict(before.vllm.get(engine, {}))
    return Interval(
        now=reading,
        counted={name: value - first.values.get(name, 0.0) for name, value in counters.items()},
        steps_by_depth={d: steps - first.steps_by_depth.get(d, 0.0) for d, steps in reading.steps_by_depth.items()},
        vllm_now=own,
        vllm_counted={name: max(value - theirs.get(name, 0.0), 0.0) for name, value in totals.items()},
        seconds=now.at_seconds - before.at_seconds,
        restarted=restarted,
    )
