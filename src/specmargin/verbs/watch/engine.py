"""A reading of an engine without the plug-in: its own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, bold, dim, left
from specmargin.errors import EngineError
from specmargin.live.engine_metrics import EngineReading, tokens_per_second
from specmargin.live.observation import Observation, ServerSettings
from specmargin.live.observe import observation
from specmargin.verbs.watch.request_schema import Look, WatchRequest
from specmargin.words import duration

_INTERVAL = (
    "steps_per_second",
    "sequences_per_step",
    "seconds_per_round",
    "seconds_per_output_token",
    "seconds_to_first_token",
    "prompt_tokens_per_second",
    "cached_prompt_share",
    "preemptions",
    "drafted_per_round",
    "accept_length",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineAnswer(Answer[WatchRequest]):
    """The metrics of an engine without the plug-in: the last interval, and acceptance since its start."""

    look: Look[EngineReading]

    schema: ClassVar[str] = "specmargin.watch-engine/1"

    @property
    def verdict(self) -> str:
        return f"{self.look.now.url}: {self.look.now.names.title}, its own metrics"

    def values(self) -> dict[str, Any]:
        now, before, seen = self.look.now, self.look.before, self._seen()
        return {
            "url": now.url,
            "engine": now.engine,
            "interval_seconds": None if before is None else now.at_seconds - before.at_seconds,
            "running": now.running,
            "waiting": now.waiting,
            "kv_share": now.gauges.get("kv_share"),
            "generated_tokens_per_second": tokens_per_second(now, before),
            "accept_length": now.accept_length,
            "mean_accept_length": now.mean_accept_length,
            "depth": now.depth,
            "survival": [share for share, _ in now.survival_by_position],
            "interval": None if seen is None else {name: getattr(seen, name) for name in _INTERVAL},
            "interval_survival": None if seen is None else list(seen.survival),
        }

    def blocks(self) -> Iterator[Block]:
        now, seen = self.look.now, self._seen()
        yield from self.look.blocks()
        yield bold(self.verdict)
        yield Table(columns=left("", ""), rows=[row for row in self._rows(now, seen) if row[1]])
        if now.mean_accept_length is None:
            yield dim(f"no speculation reported: {now.names.hint}")
        yield GAP

    def _seen(self) -> Observation | None:
        """Since the reading before; None at the first, after a restart, and where nothing ran."""
        if self.look.before is None:
            return None
        try:
            return observation([self.look.before, self.look.now], ServerSettings())
        except EngineError:
            return None

    def _rows(self, now: EngineReading, seen: Observation | None) -> list[list[str]]:
        rate = tokens_per_second(now, self.look.before)
        kv_share = now.gauges.get("kv_share")
        return [
            ["requests", f"{now.running:.0f} running, {now.waiting:.0f} waiting"],
            ["steps", "" if seen is None else _steps(seen)],
            ["tokens generated", "" if rate is None else f"{rate:,.0f} per second"],
            ["time per token", "" if seen is None else _seconds(seen.seconds_per_output_token)],
            ["prompts", "" if seen is None else _prompts(seen)],
            ["KV cache", "" if kv_share is None else f"{kv_share:.0%} used" + _preemptions(seen)],
            ["accepted length", _lengths(now, seen)],
            ["depth", "" if now.depth is None else f"{now.depth:.0f}"],
            ["accepted by position", _shares([share for share, _ in now.survival_by_position])],
            ["…since the last reading", "" if seen is None else _shares(seen.survival)],
        ]


def _steps(seen: Observation) -> str:
    if seen.steps_per_second is None:
        return ""
    batch = "" if seen.sequences_per_step is None else f", {seen.sequences_per_step:.1f} sequences each"
    return f"{seen.steps_per_second:,.1f} per second{batch}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _prompts(seen: Observation) -> str:
    rate, cached = seen.prompt_tokens_per_second, seen.cached_prompt_share
    if rate is None:
        return ""
    return f"{rate:,.0f} tokens per second computed" + ("" if cached is None else f", {cached:.0%} cached")


def _preemptions(seen: Observation | None) -> str:
    return "" if seen is None or not seen.preemptions else f", {seen.preemptions:.0f} preemptions"


def _lengths(now: EngineReading, seen: Observation | None) -> str:
    mean = now.mean_accept_length
    if mean is None:
        return ""
    since = "since its start" if now.survival_by_position else "of its last steps"
    recent = "" if seen is None or seen.accept_length is None else f"; {seen.accept_length:.2f} since the last reading"
    return f"{mean:.2f} tokens per round with the bonus token, {since}{recent}"


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)
