"""Parses a server's `/metrics`: the Prometheus text format, with Specmargin's metrics and vLLM's.

Two readings make an interval: rates are differences of counters. The counters of a restarted server begin at zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """One reading of a server: Specmargin's metrics and vLLM's, by engine."""

    at_seconds: float  # on the reader's clock
    engines: Mapping[str, Reading]
    vllm: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The counts of one engine between two readings, or since its start if there is only one."""

    now: Reading
    counted: Mapping[str, float]
    steps_by_depth: Mapping[int, float]
    vllm_now: Mapping[str, float]
    vllm_counted: Mapping[str, float]
    seconds: float | None = None  # None: since the engine's start
    restarted: bool = False

    def share(self, part: str, whole: str) -> float | None:
        """Ratio of two counters; None if the denominator is zero."""
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
    """Samples in order, under the names that the page has. Comments are skipped, and so is a line that is not valid:
    the rest of the page still counts."""
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
            yield from [sample._replace(value=float(sample.value)) for sample in samples]
        except (ValueError, IndexError, OverflowError):
            continue


# --- readings ---


def server_reading(text: str, at_seconds: float, url: str) -> ServerReading:
    """Specmargin's metrics and vLLM's. Raises if Specmargin's are missing."""
    engines: dict[str, Reading] = {}
    vllm: dict[str, dict[str, float]] = {}
    names = {PREFIX + metric.name: metric.name for metric in METRICS}
    vllm_names = {metric: name for name, metric in VLLM.items()}
    for sample in parse_metrics(text):
        engine = sample.labels.get("engine", "0")
        if sample.name in vllm_names:
            values = vllm.setdefault(engine, {})
            values[vllm_names[sample.name]] = values.get(vllm_names[sample.name], 0.0) + sample.value
        elif sample.name.startswith(PREFIX) and not math.isnan(sample.value):
            _collect(engines.setdefault(engine, Reading()), sample, names)
    if not engines:
        raise EngineError(_missing(url, configured=PREFIX in text))
    by_number = dict(sorted(engines.items(), key=lambda item: (len(item[0]), item[0])))
    return ServerReading(at_seconds=at_seconds, engines=by_number, vllm=vllm)


def _collect(collected: Reading, sample: Sample, names: Mapping[str, str]) -> None:
    match sample.name.removeprefix(PREFIX):
        case "depth_chosen_total" if sample.labels.get("depth", "").isdigit():
            collected.steps_by_depth[int(sample.labels["depth"])] = sample.value
        case "faults_total" if "kind" in sample.labels:
            collected.faults[sample.labels["kind"]] = sample.value
        case _ if sample.name in names:
            collected.values[names[sample.name]] = sample.value


def _missing(url: str, *, configured: bool) -> str:
    if configured:
        return (
            f"{url}: Specmargin is configured, but no engine has reported yet; the server is still starting, or it was "
            "started without --speculative-config (see its log)"
        )
    return (
        f"{url}: no metrics of Specmargin, vLLM, SGLang, TensorRT-LLM or llama.cpp; give the address of such a server"
    )


# --- intervals ---


def interval(engine: str, now: ServerReading, before: ServerReading | None) -> Interval:
    """The interval of one engine. A counter that fell means a restart: counts are then since the restart."""
    reading, first = now.engines[engine], None if before is None else before.engines.get(engine)
    own, own_first = (({} if one is None else one.vllm.get(engine, {})) for one in (now, before))
    counters = _counters(reading.values)
    restarted = first is not None and any(value < first.values.get(name, 0.0) for name, value in counters.items())
    start, own_start = (Reading(), {}) if first is None or restarted else (first, own_first)
    return Interval(
        now=reading,
        counted={name: value - start.values.get(name, 0.0) for name, value in counters.items()},
        steps_by_depth={d: steps - start.steps_by_depth.get(d, 0.0) for d, steps in reading.steps_by_depth.items()},
        vllm_now=own,
        vllm_counted={name: max(value - own_start.get(name, 0.0), 0.0) for name, value in _counters(own).items()},
        seconds=None if before is None or first is None else now.at_seconds - before.at_seconds,
        restarted=restarted,
    )


def _counters(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name.endswith("_total")}
