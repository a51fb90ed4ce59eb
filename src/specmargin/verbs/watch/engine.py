"""A reading of an engine without the plug-in: its own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, bold, dim, left
from specmargin.live.engine_metrics import EngineReading, tokens_per_second
from specmargin.verbs.watch.request_schema import Look, WatchRequest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineAnswer(Answer[WatchRequest]):
    """The metrics of an engine without the plug-in."""

    look: Look[EngineReading]

    schema: ClassVar[str] = "specmargin.watch-engine/1"

    @property
    def verdict(self) -> str:
        return f"{self.look.now.url}: {self.look.now.names.title}, its own metrics"

    def values(self) -> dict[str, Any]:
        now, before = self.look.now, self.look.before
        return {
            "url": now.url,
            "engine": now.engine,
            "interval_seconds": None if before is None else now.at_seconds - before.at_seconds,
            "running": now.running,
            "waiting": now.waiting,
            "generated_tokens_per_second": tokens_per_second(now, before),
            "accept_length": now.accept_length,
            "mean_accept_length": now.mean_accept_length,
            "depth": now.depth,
            "survival": [share for share, _ in now.survival_by_position],
        }

    def blocks(self) -> Iterator[Block]:
        now = self.look.now
        rate, length = tokens_per_second(now, self.look.before), now.mean_accept_length
        since = "since its start" if now.survival_by_position else "of its last steps"
        accepted = "" if length is None else f"{length:.2f} tokens per round with the bonus token, {since}"
        rows = [
            ["requests", f"{now.running:.0f} running, {now.waiting:.0f} waiting"],
            ["accepted length", accepted],
            ["depth", "" if now.depth is None else f"{now.depth:.0f}"],
            ["accepted by position", ", ".join(f"{share:.0%}" for share, _ in now.survival_by_position)],
            ["tokens generated", "" if rate is None else f"{rate:,.0f} per second"],
        ]
        yield from self.look.blocks()
        yield bold(self.verdict)
        yield Table(columns=left("", ""), rows=[row for row in rows if row[1]])
        if length is None:
            yield dim(f"no speculation reported: {now.names.hint}")
        yield GAP
