"""What engines themselves report of speculation on their metrics page: load, accepted length, acceptance by position.

`engine_metrics.toml` has their names. vLLM and TensorRT-LLM count drafts and accepted tokens by position; SGLang has
gauges of its last steps alone.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, TypeVar

import numpy as np
from prometheus_client.samples import Sample

from specmargin.acceptance.schema import AcceptanceFile, CategoryFile
from specmargin.acceptance.survival import Survival
from specmargin.errors import AcceptanceError, EngineError
from specmargin.live.readings import PREFIX, parse_metrics
from specmargin.live.server import Server, UnreachableError
from specmargin.sources import assumed

Key = TypeVar("Key")

_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank")  # labels of ranks that share their requests
_DRAFTS = ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
_LARGEST = 1e15  # of figures, which may be any: sums of these stay finite
_SUMMED = ("running", "waiting", "decoding", "context_sum")  # gauges of which replicas have each their own
_ABOVE_ZERO = ("accept_length", "depth")  # zero: nothing drafted yet


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """An engine's names of what is read here, by the names that `EngineReading` has for it."""

    title: str
    prefix: str
    hint: str  # how to get what is missing
    position: str = ""  # label of counters by position, from 0
    infos: Sequence[str] = ()  # gauges whose labels are settings
    gauges: Mapping[str, list[str]] = field(default_factory=dict)
    counters: Mapping[str, list[str]] = field(default_factory=dict)
    by_position: Mapping[str, list[str]] = field(default_factory=dict)
    histograms: Mapping[str, list[str]] = field(default_factory=dict)


_FILE = resources.files("specmargin.live").joinpath("engine_metrics.toml")
ENGINES = {name: MetricNames(**names) for name, names in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


@dataclass(slots=True, kw_only=True)
class EngineReading:
    """One reading of a server. Requests and counters are sums over its replicas; other gauges are means over them."""

    engine: str
    url: str
    at_seconds: float
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)  # of a histogram: NAME_sum and NAME_count
    buckets: dict[tuple[str, str], float] = field(default_factory=dict)  # by histogram and upper bound, cumulative
    info: dict[str, str] = field(default_factory=dict)
    replicas: int = 1
    plug_in: bool = False  # Specmargin's own metrics are on the page
    drafted_by_position: dict[int, float] = field(default_factory=dict)
    accepted_by_position: dict[int, float] = field(default_factory=dict)

    def since(self, before: EngineReading) -> EngineReading | None:
        """With what was counted since the reading before; None after a restart, whose counters begin at zero."""
        counters, buckets = _difference(self.counters, before.counters), _difference(self.buckets, before.buckets)
        drafted = _difference(self.drafted_by_position, before.drafted_by_position)
        accepted = _difference(self.accepted_by_position, before.accepted_by_position)
        if min((*counters.values(), *drafted.values(), *accepted.values()), default=0.0) < 0.0:
            return None
        return replace(
            self, counters=counters, buckets=buckets, drafted_by_position=drafted, accepted_by_position=accepted
        )

    @property
    def running(self) -> float:
        return self.gauges.get("running", 0.0)

    @property
    def waiting(self) -> float:
        return self.gauges.get("waiting", 0.0)

    @property
    def drafts(self) -> float | None:
        return self.counters.get("drafts")

    @property
    def accept_length(self) -> float | None:
        return self.gauges.get("accept_length")

    @property
    def depth(self) -> float | None:
        return self.gauges.get("depth")

    @property
    def names(self) -> MetricNames:
        return ENGINES[self.engine]

    @property
    def survival_by_position(self) -> list[tuple[float, float]]:
        """By position: the share of rounds in which it was accepted, and the rounds that drafted it."""
        tried = self.drafted_by_position or dict.fromkeys(self.accepted_by_position, self.drafts or 0.0)
        rows = []
        for position in range(len(tried)):
            rounds = tried.get(position, 0.0)
            if rounds <= 0.0:
                break
            rows.append((min(self.accepted_by_position.get(position, 0.0) / rounds, 1.0), rounds))
        return rows

    @property
    def mean_accept_length(self) -> float | None:
        """Tokens per round with the bonus token, since the start where positions are counted, else of late."""
        if rows := self.survival_by_position:
            return 1.0 + sum(share for share, _ in rows)
        return self.accept_length if self.accept_length else None


def _difference(now: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


def read_engine(server: Server, *, only: Iterable[str] = ENGINES) -> EngineReading:
    """The engine behind the address, by its own metrics; TensorRT-LLM has them on another page."""
    fault: EngineError | None = None
    iterations: EngineReading | None = None
    for url in dict.fromkeys((server.url, f"{server.base}/prometheus/metrics")):
        page = replace(server, url=url)
        try:
            text, now_seconds = page.text(), time.monotonic()
            reading = engine_reading(text, now_seconds, url, only=only)
            iterations = iterations or iterations_reading(text, now_seconds, url)
        except UnreachableError:
            raise
        except EngineError as error:
            fault = fault or error
            continue
        if reading is not None:
            return reading
    if iterations is not None:
        return iterations
    known = ", ".join(ENGINES[name].title for name in only)
    raise fault or EngineError(f"{server.url}: no metrics of {known}; was it started with its metrics enabled?")


def engine_reading(text: str, at_seconds: float, url: str, *, only: Iterable[str] = ENGINES) -> EngineReading | None:
    """None where there are no metrics of such an engine."""
    samples = [sample for sample in parse_metrics(text) if abs(sample.value) < _LARGEST]
    for engine in only:
        names = ENGINES[engine]
        own = [sample for sample in samples if sample.name.startswith(names.prefix)]
        if own:
            return replace(_reading(engine, names, own + _experts(samples), at_seconds, url), plug_in=PREFIX in text)
    return None


def _experts(samples: Iterable[Sample]) -> list[Sample]:
    """The plug-in's gauge among the engine's own."""
    return [sample for sample in samples if sample.name == f"{PREFIX}distinct_experts" and sample.value > 0.0]


def iterations_reading(text: str, at_seconds: float, url: str) -> EngineReading | None:
    """TensorRT-LLM's own `/metrics`: statistics of the iterations since it was last read, as JSON, for servers without
    Prometheus metrics. Only gauges: who else reads it takes iterations away."""
    try:
        listed = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return None
    rows = [row for row in listed or () if isinstance(row, dict) and "iterLatencyMS" in row]
    if not rows and listed != []:
        return None
    drafted, accepted, rounds = (sum(_figures(rows, "specDecodingStats", name)) for name in _DRAFTS)
    means = {
        "running": _figures(rows, "numActiveRequests"),
        "waiting": _figures(rows, "numQueuedRequests"),
        "decoding": _figures(rows, "inflightBatchingStats", "numGenRequests"),
        "step_seconds": [milliseconds / 1000.0 for milliseconds in _figures(rows, "iterLatencyMS")],
        "kv_blocks": _figures(rows, "kvCacheStats", "maxNumBlocks"),
        "block_tokens": _figures(rows, "kvCacheStats", "tokensPerBlock"),
        "accept_length": [1.0 + accepted / rounds] if drafted and rounds else [],
    }
    gauges = {name: sum(values) / len(values) for name, values in means.items() if values}
    used = _figures(rows, "kvCacheStats", "usedNumBlocks")
    if used and gauges.get("kv_blocks"):
        gauges["kv_share"] = sum(used) / len(used) / gauges["kv_blocks"]
    return EngineReading(engine="trtllm", url=url, at_seconds=at_seconds, gauges=gauges)


def _figures(rows: Iterable[dict[str, Any]], *keys: str) -> list[float]:
    found: list[Any] = list(rows)
    for key in keys:
        found = [one.get(key) for one in found if isinstance(one, dict)]
    return [float(one) for one in found if isinstance(one, int | float) and abs(one) < _LARGEST]


def _reading(engine: str, names: MetricNames, own: list[Sample], at_seconds: float, url: str) -> EngineReading:
    page: dict[str, list[Sample]] = {}
    for sample in own:
        page.setdefault(sample.name.removeprefix(names.prefix), []).append(sample)
    counters = {name: _sum(samples) for name, samples in _found(page, names.counters)}
    for part in ("_sum", "_count"):
        counters |= {name + part: _sum(samples) for name, samples in _found(page, names.histograms, part)}
    by_position = {name: _by_position(samples, names.position) for name, samples in _found(page, names.by_position)}
    named = {"distinct_experts": [f"{PREFIX}distinct_experts"], **names.gauges}
    gauges = {name: _gauge(name, samples) for name, samples in _found(page, named)}
    return EngineReading(
        engine=engine,
        url=url,
        at_seconds=at_seconds,
        gauges={name: value for name, value in gauges.items() if value is not None},
        counters=counters,
        buckets=_buckets(page, names.histograms),
        info={label: value for info in names.infos if info in page for label, value in page[info][0].labels.items()},
        replicas=max((len(_by_replica(samples)) for _, samples in _found(page, names.gauges)), default=1),
        drafted_by_position=by_position.get("drafted", {}),
        accepted_by_position=by_position.get("accepted", {}),
    )


def _found(
    page: Mapping[str, list[Sample]], names: Mapping[str, list[str]], part: str = ""
) -> Iterator[tuple[str, list[Sample]]]:
    for ours, theirs in names.items():
        for name, _, wanted in (name.rstrip("}").partition("{") for name in theirs):
            label, _, value = wanted.partition("=")
            if samples := [one for one in page.get(name + part, ()) if not label or one.labels.get(label) == value]:
                yield ours, samples
                break


def _buckets(page: Mapping[str, list[Sample]], names: Mapping[str, list[str]]) -> dict[tuple[str, str], float]:
    counted: dict[tuple[str, str], float] = {}
    for name, samples in _found(page, names, "_bucket"):
        for sample in samples:
            key = (name, sample.labels.get("le", ""))
            counted[key] = counted.get(key, 0.0) + sample.value
    return counted


def _gauge(name: str, samples: Iterable[Sample]) -> float | None:
    """None: none of its replicas has a value yet."""
    if name in _SUMMED:
        return _sum(samples)
    values = [value for value in _by_replica(samples).values() if value > 0.0 or name not in _ABOVE_ZERO]
    return sum(values) / len(values) if values else None


def _sum(samples: Iterable[Sample]) -> float:
    return sum(_by_replica(samples).values())


def _by_replica(samples: Iterable[Sample]) -> dict[frozenset[tuple[str, str]], float]:
    """Ranks of one replica, where they report at all, report the same requests."""
    by_replica: dict[frozenset[tuple[str, str]], float] = {}
    for sample in samples:
        replica = frozenset(item for item in sample.labels.items() if item[0] not in _SAME_REQUESTS)
        by_replica[replica] = max(by_replica.get(replica, 0.0), sample.value)
    return by_replica


def _by_position(samples: Iterable[Sample], label: str) -> dict[int, float]:
    counted: dict[int, float] = {}
    for sample in samples:
        position = sample.labels.get(label, "")
        if position.isascii() and position.isdigit() and len(position) < 5:
            counted[int(position)] = counted.get(int(position), 0.0) + sample.value
    return counted


def tokens_per_second(reading: EngineReading, before: EngineReading | None) -> float | None:
    """Since the reading before; None after a restart, whose counter begins at zero."""
    if before is None or "generated" not in reading.counters or "generated" not in before.counters:
        return None
    seconds = reading.at_seconds - before.at_seconds
    tokens = reading.counters["generated"] - before.counters["generated"]
    return tokens / seconds if seconds > 0.0 and tokens >= 0.0 else None


# --- acceptance ---


def acceptance_of(reading: EngineReading, name: str) -> AcceptanceFile:
    """A profile for `--acceptance`: a measured curve where positions are counted, else an assumed geometric one."""
    rows = reading.survival_by_position
    if rows:
        survival = np.minimum.accumulate([share for share, _ in rows])
        errors = [math.sqrt(share * (1.0 - share) / rounds) for share, rounds in rows]  # as if rounds were independent
        return _file(reading, name, round(rows[0][1]), survival.tolist(), errors)
    if reading.accept_length is None or reading.depth is None or reading.depth < 1.0:
        raise AcceptanceError(
            f"{reading.url}: {reading.names.title} reports no accepted tokens by position, nor an accepted length with "
            f"its number of steps; {reading.names.hint}"
        )
    depth = round(reading.depth)
    accepted = min(max(reading.accept_length - 1.0, 0.0), float(depth))
    curve = Survival.of_accepted(accepted, depth, assumed("geometric")).up_to(depth)
    return _file(reading, name, max(round(reading.drafts or 0.0), 1), curve.tolist(), [])


def _file(reading: EngineReading, name: str, rounds: int, survival: list[float], errors: list[float]) -> AcceptanceFile:
    made = f"metrics of {reading.names.title} at {reading.url}"
    if not errors:
        made += f": accepted length {reading.accept_length:.2f} at {len(survival)} steps, the same at every position"
    return AcceptanceFile(
        schema="specmargin.acceptance/1",
        name=name,
        speculator="",
        source=made,
        categories={"all": CategoryFile(rounds=rounds, survival=survival, survival_stderr=errors)},
        calibrator=None,
        sample=[],
        assumed=not errors,
    )
