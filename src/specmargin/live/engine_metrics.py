"""What engines themselves report of speculation on their metrics page: load, accepted length, acceptance by position.

`engine_metrics.toml` has their names. vLLM and TensorRT-LLM count drafts and accepted tokens by position; SGLang has
gauges of its last steps alone.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources

import numpy as np
from prometheus_client.samples import Sample

from specmargin.acceptance.schema import AcceptanceFile, CategoryFile
from specmargin.acceptance.survival import Survival
from specmargin.errors import AcceptanceError, EngineError
from specmargin.live.readings import parse_metrics
from specmargin.live.server import Server, UnreachableError
from specmargin.sources import assumed

_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank")  # labels of ranks that share their requests


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """An engine's names of what is read here; "" where it has none."""

    title: str
    prefix: str
    running: str
    waiting: str
    generated: str  # counter of output tokens
    accept_length: str = ""  # gauge, with the bonus token
    depth: str = ""  # gauge
    drafts: str = ""  # counter of rounds
    drafted: str = ""  # counter of draft tokens by position
    accepted: str = ""  # counter of accepted tokens by position
    position: str = ""  # its label, from 0
    hint: str = ""  # how to get what is missing


_FILE = resources.files("specmargin.live").joinpath("engine_metrics.toml")
ENGINES = {name: MetricNames(**names) for name, names in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


@dataclass(slots=True, kw_only=True)
class EngineReading:
    """One reading of a server, summed over its ranks; gauges of acceptance are means over ranks that report some."""

    engine: str
    url: str
    at_seconds: float
    running: float = 0.0
    waiting: float = 0.0
    generated: float | None = None
    drafts: float | None = None
    accept_length: float | None = None
    depth: float | None = None
    drafted_by_position: dict[int, float] = field(default_factory=dict)
    accepted_by_position: dict[int, float] = field(default_factory=dict)

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


def read_engine(server: Server, *, only: Iterable[str] = ENGINES) -> EngineReading:
    """The engine behind the address, by its own metrics; TensorRT-LLM has them on another page."""
    fault: EngineError | None = None
    base = server.url.removesuffix("/metrics").removesuffix("/prometheus")
    for url in dict.fromkeys((server.url, f"{base}/prometheus/metrics")):
        page = replace(server, url=url)
        try:
            reading = engine_reading(page.text(), page.clock(), url, only=only)
        except UnreachableError:
            raise
        except EngineError as error:
            fault = fault or error
            continue
        if reading is not None:
            return reading
    known = ", ".join(ENGINES[name].title for name in only)
    raise fault or EngineError(f"{server.url}: no metrics of {known}; was it started with its metrics enabled?")


def engine_reading(text: str, at_seconds: float, url: str, *, only: Iterable[str] = ENGINES) -> EngineReading | None:
    """None where there are no metrics of such an engine."""
    samples = [sample for sample in parse_metrics(text) if not math.isnan(sample.value)]
    for engine in only:
        names = ENGINES[engine]
        own = [sample for sample in samples if sample.name.startswith(names.prefix)]
        if own:
            return _reading(engine, names, own, at_seconds, url)
    return None


def _reading(engine: str, names: MetricNames, own: list[Sample], at_seconds: float, url: str) -> EngineReading:
    by_name: dict[str, list[Sample]] = {}
    for sample in own:
        by_name.setdefault(sample.name.removeprefix(names.prefix), []).append(sample)
    return EngineReading(
        engine=engine,
        url=url,
        at_seconds=at_seconds,
        running=_requests(by_name, names.running),
        waiting=_requests(by_name, names.waiting),
        generated=_sum(by_name, names.generated),
        drafts=_sum(by_name, names.drafts),
        accept_length=_mean(by_name, names.accept_length),
        depth=_mean(by_name, names.depth),
        drafted_by_position=_by_position(by_name, names.drafted, names.position),
        accepted_by_position=_by_position(by_name, names.accepted, names.position),
    )


def _sum(by_name: Mapping[str, list[Sample]], name: str) -> float | None:
    samples = by_name.get(name)
    return None if samples is None else sum(sample.value for sample in samples)


def _requests(by_name: Mapping[str, list[Sample]], name: str) -> float:
    """Over replicas; ranks of one replica, where they report at all, report the same requests."""
    by_replica: dict[frozenset[tuple[str, str]], float] = {}
    for sample in by_name.get(name, []):
        replica = frozenset(item for item in sample.labels.items() if item[0] not in _SAME_REQUESTS)
        by_replica[replica] = max(by_replica.get(replica, 0.0), sample.value)
    return sum(by_replica.values())


def _mean(by_name: Mapping[str, list[Sample]], name: str) -> float | None:
    values = [sample.value for sample in by_name.get(name, []) if sample.value > 0.0]
    return sum(values) / len(values) if values else None


def _by_position(by_name: Mapping[str, list[Sample]], name: str, label: str) -> dict[int, float]:
    counted: dict[int, float] = {}
    for sample in by_name.get(name, []):
        position = sample.labels.get(label, "")
        if position.isascii() and position.isdigit():
            counted[int(position)] = counted.get(int(position), 0.0) + sample.value
    return counted


def tokens_per_second(reading: EngineReading, before: EngineReading | None) -> float | None:
    """Since the reading before; None after a restart, whose counter begins at zero."""
    if before is None or reading.generated is None or before.generated is None:
        return None
    seconds, tokens = reading.at_seconds - before.at_seconds, reading.generated - before.generated
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
