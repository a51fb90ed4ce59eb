"""Lines of an engine's log, pasted or in a file: load, acceptance and settings, in bounded memory.

`engine_logs.toml` has the patterns. They are searched anywhere in a line, so that prefixes of loggers, containers and
terminals do not matter, and a fragment of a line counts too.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from specmargin.errors import EngineError
from specmargin.live.observation import Moment, Observation, ServerSettings

_LONGEST_LINE = 1 << 16  # characters; vLLM's configuration has about 10,000
_MOST_MOMENTS = 512  # then every other one is dropped
_DEEPEST = 64  # positions
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TIME = re.compile(r"(?:(\d\d)-(\d\d)[ T])(\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How one engine writes."""

    title: str
    line: re.Pattern[str]
    known: str
    not_shown: tuple[str, ...]
    values: Mapping[str, re.Pattern[str]]
    settings_line: re.Pattern[str]
    settings: Mapping[str, re.Pattern[str]]

    @classmethod
    def read(cls, table: dict[str, Any]) -> _Format:
        settings = dict(table["settings"])
        return cls(
            title=table["title"],
            line=re.compile(table["line"]),
            known=table["known"],
            not_shown=tuple(table["not_shown"]),
            settings_line=re.compile(settings.pop("line")),
            values={name: re.compile(pattern) for name, pattern in table["values"].items()},
            settings={name: re.compile(pattern) for name, pattern in settings.items()},
        )


_FILE = resources.files("specmargin.live").joinpath("engine_logs.toml")
FORMATS = {name: _Format.read(table) for name, table in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


_ANY = re.compile("|".join(f"{form.line.pattern}|{form.settings_line.pattern}" for form in FORMATS.values()))
_LOAD = frozenset(
    [
        "running",
        "waiting",
        "prompt_tokens_per_second",
        "generated_tokens_per_second",
        "kv_percent",
        "cached_prompt_percent",
    ]
)
_NAMES = ("release", "model", "gpu", "method", "graph_mode")
_COUNTS = ("depth", "largest_graph", "max_sequences", "max_step_tokens", "max_context", "kv_tokens")


def log_lines(path: Path) -> Iterator[str]:
    """Of a file of any size; a line that is too long to be a log's is cut."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(_LONGEST_LINE):
                yield line
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None


def observe_log(lines: str | Iterable[str], *, source: str, engine: str | None = None) -> Observation:
    """Of the engine that is named, else of the one with most lines that count something."""
    empty, readers = _read(lines, engine)
    best = max(readers, key=lambda reader: reader.lines)
    if not best.lines:
        raise EngineError(_unknown(source, readers, empty=empty))
    return best.observation(source)


def log_settings(lines: str | Iterable[str], *, engine: str | None = None) -> ServerSettings:
    """What an engine says of its settings when it starts; it need not have served anything yet."""
    _, readers = _read(lines, engine)
    return max(readers, key=lambda reader: len(reader.said)).settings()


def _read(lines: str | Iterable[str], engine: str | None) -> tuple[bool, list[_Reader]]:
    """Whether there is nothing but blanks, and what each engine's patterns found."""
    readers = [_Reader(name, form) for name, form in FORMATS.items() if engine in (None, name)]
    empty = True
    for line in lines.split("\n") if isinstance(lines, str) else lines:
        empty = empty and not line.strip()
        if _ANY.search(line) is not None:
            plain = _COLOURS.sub("", line)
            for reader in readers:
                reader.add(plain)
    return empty, readers


def _unknown(source: str, readers: Iterable[_Reader], *, empty: bool) -> str:
    if empty:
        return f"{source}: empty; give lines of an engine's log"
    known = "; ".join(f"{reader.form.title}: {reader.form.known}" for reader in readers)
    return f"{source}: no line that says what the engine did. Looked for lines of {known}"


# --- one engine's lines ---


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight > 0.0 else None


@dataclass(slots=True)
class _Moments:
    """At most so many, evenly spread over the log."""

    kept: list[Moment] = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, moment: Moment) -> None:
        """vLLM writes its load and then its speculation: two lines of one moment."""
        last = self.kept[-1] if self.kept and (self.seen - 1) % self.every == 0 else None
        if last is not None and last.accept_length is None and moment.running is None:
            self.kept[-1] = replace(last, accept_length=moment.accept_length)
            return
        if self.seen % self.every == 0:
            self.kept.append(moment)
        self.seen += 1
        if len(self.kept) > _MOST_MOMENTS:
            self.kept, self.every = self.kept[::2], self.every * 2


@dataclass(slots=True)
class _Reader:
    engine: str
    form: _Format
    lines: int = 0
    means: dict[str, _Mean] = field(default_factory=dict)
    survival: list[_Mean] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)  # settings
    replicas: set[float] = field(default_factory=set)
    moments: _Moments = field(default_factory=_Moments)
    first_seconds: float | None = None
    last_seconds: float | None = None

    def add(self, line: str) -> None:
        if self.form.settings_line.search(line):
            found = ((name, pattern.search(line)) for name, pattern in self.form.settings.items())
            self.said |= {name: next(filter(None, match.groups()), "") for name, match in found if match}
        if self.form.line.search(line):
            texts = {name: match[1] for name, pattern in self.form.values.items() if (match := pattern.search(line))}
            if texts:
                self._count(texts, _time_seconds(line))

    def _count(self, texts: dict[str, str], at_seconds: float | None) -> None:
        self.lines += 1
        survival = [share for part in texts.pop("survival", "").split(",") if (share := _number(part)) is not None]
        values = {name: value for name, text in texts.items() if (value := _number(text)) is not None}
        if at_seconds is not None:
            self.first_seconds = at_seconds if self.first_seconds is None else self.first_seconds
            self.last_seconds = at_seconds
        if "replica" in values:
            self.replicas.add(values["replica"])
        length = values.pop("accept_length", 1.0 + sum(survival) if survival else None)
        if length is not None:
            self._count_speculation(length, survival[:_DEEPEST], values)
        if values.get("generated_tokens_per_second", 1.0) > 0.0:  # a line of an idle server says nothing of its load
            for name in values.keys() & _LOAD:
                self.means.setdefault(name, _Mean()).add(values[name])
        running, generated = values.get("running"), values.get("generated_tokens_per_second")
        self.moments.add(
            Moment(
                at_seconds=at_seconds,
                running=running,
                accept_length=length,
                generated_tokens_per_second=generated,
            )
        )

    def _count_speculation(self, length: float, survival: list[float], values: Mapping[str, float]) -> None:
        """Means are weighted by rounds where they can be told, else every line counts the same."""
        rounds = _rounds(length, survival, values)
        for name, count in (("rounds", rounds), ("drafted_tokens", values.get("drafted_tokens"))):
            if count is not None:
                self.counts[name] = self.counts.get(name, 0.0) + count
        weight = 1.0 if rounds is None else rounds
        self.means.setdefault("accept_length", _Mean()).add(length, weight)
        self.survival += [_Mean() for _ in survival[len(self.survival) :]]
        for mean, share in zip(self.survival, survival, strict=False):
            mean.add(share, weight)

    def observation(self, source: str) -> Observation:
        replicas = max(len(self.replicas), 1)
        running, generated = self._mean("running", replicas), self._mean("generated_tokens_per_second", replicas)
        settings = self.settings()
        kv_share = self._mean("kv_percent", 0.01)
        rounds, drafted = self.counts.get("rounds"), self.counts.get("drafted_tokens")
        return Observation(
            engine=self.engine,
            source=source,
            settings=settings,
            seconds=self._seconds(),
            replicas=replicas,
            running=running,
            waiting=self._mean("waiting", replicas),
            generated_tokens_per_second=generated,
            prompt_tokens_per_second=self._mean("prompt_tokens_per_second", replicas),
            context=kv_share * settings.kv_tokens * replicas / running
            if kv_share and settings.kv_tokens and running
            else None,
            seconds_per_output_token=running / generated if running and generated else None,
            kv_share=kv_share,
            cached_prompt_share=self._mean("cached_prompt_percent", 0.01),
            speculates=self._speculates(settings),
            rounds=rounds,
            drafted_per_round=drafted / rounds if drafted is not None and rounds else None,
            accept_length=self._mean("accept_length"),
            survival=tuple(mean.value or 0.0 for mean in self.survival),
            moments=tuple(self.moments.kept),
            estimated=("context", "seconds_per_output_token", "rounds", "drafted_per_round"),
            not_shown=self.form.not_shown,
        )

    def _mean(self, name: str, times: float = 1.0) -> float | None:
        value = self.means[name].value if name in self.means else None
        return None if value is None else value * times

    def _seconds(self) -> float | None:
        if self.first_seconds is None or self.last_seconds is None or self.last_seconds <= self.first_seconds:
            return None
        return self.last_seconds - self.first_seconds

    def _speculates(self, settings: ServerSettings) -> bool | None:
        if self._mean("accept_length") is not None or settings.method is not None:
            return True
        return False if "no_speculation" in self.said else None

    def settings(self) -> ServerSettings:
        said = self.said
        sizes = [_whole(said.get(f"{kind}_parallel")) for kind in ("tensor", "pipeline", "data")]
        fields: dict[str, Any] = {name: said.get(name) for name in _NAMES}
        fields |= {name: _whole(said.get(name)) for name in _COUNTS}
        fields |= {"largest_graph": 0, "graph_mode": "NONE", "eager": True} if "eager" in said else {}
        return ServerSettings(
            **fields,
            gpus=None if not any(sizes) else math.prod(size or 1 for size in sizes),
            schedule=_schedule(said.get("schedule", "")),
        )


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text) if text else None
    return None if value is None else int(value)


def _schedule(text: str) -> tuple[tuple[int, int, int], ...]:
    numbers = [int(number) for number in re.findall(r"\d{1,9}", text)]
    return tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))


def _rounds(length: float, survival: list[float], values: Mapping[str, float]) -> float | None:
    """Rounds of one line, from its tokens: shares by position have three digits, the mean length two."""
    accepted, drafted = values.get("accepted_tokens"), values.get("drafted_tokens")
    per_round = sum(survival) if survival else length - 1.0
    if accepted and per_round > 0.0:
        return accepted / per_round
    return drafted / len(survival) if drafted is not None and survival else None


def _time_seconds(line: str) -> float | None:
    """Within the year: engines leave the year out, or the day."""
    if (match := _TIME.search(line)) is None:
        return None
    month, day, hour, minute, second = (int(part or 0) for part in match.groups())
    return ((month * 31.0 + day) * 24.0 + hour) * 3600.0 + minute * 60.0 + second
