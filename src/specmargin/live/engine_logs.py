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
    lines: tuple[str, ...]  # words of lines that count something
    known: str
    not_shown: tuple[str, ...]
    values: Mapping[str, re.Pattern[str]]
    settings_lines: tuple[str, ...]
    settings: Mapping[str, re.Pattern[str]]

    @classmethod
    def read(cls, table: dict[str, Any]) -> _Format:
        settings = dict(table["settings"])
        return cls(
            title=table["title"],
            lines=tuple(table["lines"]),
            known=table["known"],
            not_shown=tuple(table["not_shown"]),
            settings_lines=tuple(settings.pop("lines")),
            values={name: re.compile(pattern) for name, pattern in table["values"].items()},
            settings={name: re.compile(pattern) for name, pattern in settings.items()},
        )


_FILE = resources.files("specmargin.live").joinpath("engine_logs.toml")
FORMATS = {name: _Format.read(table) for name, table in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


_WORDS = tuple(word for form in FORMATS.values() for word in (*form.lines, *form.settings_lines))
_SUMS = frozenset(("accepted_tokens", "drafted_tokens", "prompt_tokens", "cached_tokens", "preemptions"))
_SUMS |= {"output_tokens", "output_milliseconds"}
_NO_LOAD = _SUMS | {"replica", "accept_length", "total_accept_length"}  # of which no mean over lines is made
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
        if _has(line, _WORDS):
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
    total_survival: list[float] = field(default_factory=list)  # since the start, as the last line has it
    total_accept_length: float | None = None
    said: dict[str, str] = field(default_factory=dict)  # settings
    replicas: set[float] = field(default_factory=set)
    moments: _Moments = field(default_factory=_Moments)
    first_seconds: float | None = None
    last_seconds: float | None = None

    def add(self, line: str) -> None:
        if _has(line, self.form.settings_lines):
            found = ((name, pattern.search(line)) for name, pattern in self.form.settings.items())
            self.said |= {name: next(filter(None, match.groups()), "") for name, match in found if match}
        if _has(line, self.form.lines):
            texts = {name: match[1] for name, pattern in self.form.values.items() if (match := pattern.search(line))}
            if texts:
                self._count(texts, _time_seconds(line))

    def _count(self, texts: dict[str, str], at_seconds: float | None) -> None:
        self.lines += 1
        survival, total = (_numbers(texts.pop(name, "")) for name in ("survival", "total_survival"))
        values = {name: value for name, text in texts.items() if (value := _number(text)) is not None}
        if at_seconds is not None:
            self.first_seconds = at_seconds if self.first_seconds is None else self.first_seconds
            self.last_seconds = at_seconds
        if "replica" in values:
            self.replicas.add(values["replica"])
        if total:
            self.total_survival, self.total_accept_length = total, values.get("total_accept_length")
        for name in values.keys() & _SUMS:
            self.counts[name] = self.counts.get(name, 0.0) + values[name]
        if "prompt_tokens" in values:  # SGLang's prefill batch: the load of decode steps is on other lines
            return
        length = values.get("accept_length", 1.0 + sum(survival) if survival else None)
        if length is not None:
            self._count_speculation(length, survival[:_DEEPEST], values)
        if values.get("generated_tokens_per_second", 1.0) > 0.0 and values.get("running", 1.0) > 0.0:
            for name in values.keys() - _NO_LOAD:  # a line of an idle server says nothing of its load
                self.means.setdefault(name, _Mean()).add(values[name])
        self._add_moment(values, length, at_seconds)

    def _add_moment(self, values: Mapping[str, float], length: float | None, at_seconds: float | None) -> None:
        running, tokens = values.get("running"), values.get("context_tokens")
        self.moments.add(
            Moment(
                at_seconds=at_seconds,
                running=running,
                accept_length=length,
                context=tokens / running if tokens and running else None,
                generated_tokens_per_second=values.get("generated_tokens_per_second"),
                prompt_tokens_per_second=values.get("prompt_tokens_per_second"),
            )
        )

    def _count_speculation(self, length: float, survival: list[float], values: Mapping[str, float]) -> None:
        """Means are weighted by rounds where they can be told, else every line counts the same."""
        rounds = _rounds(length, survival, values)
        if rounds is not None:
            self.counts["rounds"] = self.counts.get("rounds", 0.0) + rounds
        weight = 1.0 if rounds is None else rounds
        self.means.setdefault("accept_length", _Mean()).add(length, weight)
        self.survival += [_Mean() for _ in survival[len(self.survival) :]]
        for mean, share in zip(self.survival, survival, strict=False):
            mean.add(share, weight)

    def observation(self, source: str) -> Observation:
        replicas = max(len(self.replicas), 1)
        settings = self.settings()
        seen = Observation(
            engine=self.engine,
            source=source,
            settings=settings,
            seconds=self._seconds(),
            replicas=replicas,
            running=self._mean("running", replicas),
            waiting=self._mean("waiting", replicas),
            generated_tokens_per_second=self._mean("generated_tokens_per_second", replicas),
            prompt_tokens_per_second=self._prompt_rate(replicas),
            seconds_per_output_token=self._share("output_milliseconds", "output_tokens", 0.001),
            seconds_per_round=self._mean("step_milliseconds", 0.001),
            graph_share=self._mean("graph"),
            kv_share=self._mean("kv_percent", 0.01) if "kv_percent" in self.means else self._mean("kv_share"),
            preemptions=self.counts.get("preemptions"),
            cached_prompt_share=self._cached_share(),
            speculates=self._speculates(settings),
            rounds=self.counts.get("rounds"),
            drafted_per_round=self._share("drafted_tokens", "rounds"),
            accepted_share=self._share("accepted_tokens", "drafted_tokens"),
            accept_length=self._mean("accept_length") or self.total_accept_length,
            survival=tuple(mean.value or 0.0 for mean in self.survival) or tuple(self.total_survival),
            moments=tuple(self.moments.kept),
            not_shown=self.form.not_shown,
        )
        return self._estimated(seen)

    def _estimated(self, seen: Observation) -> Observation:
        """What the log does not say, worked out from what it does."""
        running, generated, room = seen.running, seen.generated_tokens_per_second, seen.settings.kv_tokens
        tokens, output, accepted = (
            self._mean("context_tokens", seen.replicas),
            self.counts.get("output_tokens", 0.0),
            self.counts.get("accepted_tokens"),
        )
        tokens = seen.kv_share * room * seen.replicas if tokens is None and seen.kv_share and room else tokens
        steps = self.means.get("step_milliseconds")
        guesses = {
            "context": tokens / running if tokens and running else None,
            "seconds_per_output_token": running / generated if running and generated else None,
            # every round gives its accepted tokens and one more
            "accept_length": output / (output - accepted) if accepted is not None and output > accepted else None,
            "steps_per_second": 1000.0 / steps.value if steps is not None and steps.value else None,
            "drafted_per_round": self._positions(),
        }
        missing = [name for name, guess in guesses.items() if guess is not None and getattr(seen, name) is None]
        counted = [name for name in ("rounds", "drafted_per_round") if getattr(seen, name) is not None]
        made: dict[str, Any] = {name: guesses[name] for name in missing}
        return replace(seen, **made, estimated=(*missing, *counted))

    def _positions(self) -> float | None:
        """TensorRT-LLM: positions of decoding sequences, each with its draft."""
        scheduled, prompts, positions = (
            self._mean(name) for name in ("running", "prompt_sequences", "decode_positions")
        )
        if scheduled is None or prompts is None or positions is None or scheduled <= prompts:
            return None
        return max(positions / (scheduled - prompts) - 1.0, 0.0)

    def _prompt_rate(self, replicas: int) -> float | None:
        if "prompt_positions" in self.means:
            per_step, step = self._mean("prompt_positions"), self._mean("step_milliseconds")
            return None if per_step is None or not step else 1000.0 * per_step / step
        seconds, tokens = self._seconds(), self.counts.get("prompt_tokens")
        if tokens is not None:
            return tokens / seconds if seconds else None
        return self._mean("prompt_tokens_per_second", replicas)

    def _cached_share(self) -> float | None:
        new, cached = self.counts.get("prompt_tokens", 0.0), self.counts.get("cached_tokens")
        if cached is not None and new + cached > 0.0:
            return cached / (new + cached)
        return self._mean("cached_prompt_percent", 0.01)

    def _share(self, part: str, whole: str, times: float = 1.0) -> float | None:
        count = self.counts.get(whole)
        return self.counts[part] / count * times if count and part in self.counts else None

    def _mean(self, name: str, times: float = 1.0) -> float | None:
        value = self.means[name].value if name in self.means else None
        return None if value is None else value * times

    def _seconds(self) -> float | None:
        if self.first_seconds is None or self.last_seconds is None or self.last_seconds <= self.first_seconds:
            return None
        return self.last_seconds - self.first_seconds

    def _speculates(self, settings: ServerSettings) -> bool | None:
        drafted = "accept_length" in self.means or "drafted_tokens" in self.counts or self.total_survival
        return True if drafted else settings.speculates

    def settings(self) -> ServerSettings:
        said = self.said
        sizes = [_whole(said.get(f"{kind}_parallel")) for kind in ("tensor", "pipeline", "data")]
        told: dict[str, Any] = {name: said.get(name) for name in _NAMES}
        told |= {name: _whole(said.get(name)) for name in _COUNTS}
        eager = {"True": True, "False": False}.get(said.get("eager", ""))
        if eager:
            told |= {"largest_graph": 0, "graph_mode": "NONE"}
        elif told["largest_graph"] and told["method"]:
            told["largest_graph"] *= _whole(said.get("graph_width")) or 1  # SGLang counts sequences
        return ServerSettings(
            **told,
            gpus=None if not any(sizes) else math.prod(size or 1 for size in sizes),
            schedule=_schedule(said.get("schedule", "")),
            speculates=True if told["method"] else False if "no_speculation" in said else None,
            eager=eager,
            draft_graphs=False if "draft_eager" in said else None,
            overlaps=False if "no_overlap" in said or said.get("overlaps") == "False" else None,
            temperature=_number(said.get("temperature", "")),
        )


def _has(line: str, words: Iterable[str]) -> bool:
    """Faster than one pattern of alternatives, on a log with few such lines."""
    return any(word in line for word in words)


def _numbers(text: str) -> list[float]:
    return [value for part in text.split(",") if (value := _number(part)) is not None]


def _number(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        value = float(text.replace(",", "").rstrip("."))
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
