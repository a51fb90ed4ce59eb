"""Steps of a running server, timed by the server itself.

Positions: a prompt that repeats a cached one and adds p random tokens is one step with p positions of one sequence, as
a verify step is. It wants one logit, so that llama.cpp leaves the other positions out of its last layer's MLP and of
the LM head; the row says so (`outputs`), and the fit counts the work that was done. Sequences: as many slots decode
together. Drafter: rounds of a server with speculation, whose time and depth are the differences of its timings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from specmargin.errors import InputError
from specmargin.measure.llamacpp.order import DRAFTER, STEPS, Order, Timed, Watcher
from specmargin.measure.llamacpp.server import Properties, Server, Timings
from specmargin.measure.points import Kind, Point
from specmargin.measure.records import Records

_FIRST_TOKEN = 300  # after special tokens and bytes
Answer = TypeVar("Answer")


def measure_server(server: Server, order: Order, records: Records, *, deadline: float, watch: Watcher) -> None:
    """Every point in turn, as often as ordered: other work on the machine then slows all points alike."""
    about = server.about()
    _check_slots(server, about, order)
    probe = _Probe(server=server, order=order, about=about, draw=random.Random(order.seed))
    run = DRAFTER if about.speculation else STEPS
    timed = Timed(records=records, run=run)
    points = list(probe.drafted() if about.speculation else [*order.plain(), *order.verified()])
    left = {point: order.repeats - probe.turns(point, timed) for point in points}
    total = sum(max(count, 0) for count in left.values())
    done = 0
    for turn in range(order.repeats):
        for point in probe.draw.sample(points, len(points)):
            if left[point] <= order.repeats - 1 - turn or time.time() > deadline:
                continue
            probe.time(point, timed)
            done += 1
            watch(run, total, done)


def _check_slots(server: Server, about: Properties, order: Order) -> None:
    if max(order.batches) > about.slots:
        raise InputError(
            f"--batches {max(order.batches)}: {server.url} has {about.slots} slots; start it with -np "
            f"{max(order.batches)}, or give smaller batches"
        )
    if about.slot_tokens and about.slot_tokens < order.slot_tokens:
        raise InputError(
            f"--contexts {max(order.contexts)}: a slot of {server.url} holds {about.slot_tokens:,} tokens, and "
            f"{order.slot_tokens:,} are needed; start it with a larger -c, or give shorter contexts"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    server: Server
    order: Order
    about: Properties
    draw: random.Random

    def drafted(self) -> Iterator[Point]:
        """Depth 0 here stands for all depths: the rounds say which they had."""
        for batch in self.order.batches:
            yield Point(batch=batch, depth=0, context=self.order.contexts[0], kind=Kind.DRAFTED)

    def turns(self, point: Point, timed: Timed) -> int:
        """How often the point was timed: rounds of all depths come together."""
        if point.kind is not Kind.DRAFTED:
            return len(timed.seconds(point))
        rows = [row for row in timed.records.rows() if (row["run"], row["batch"]) == (timed.run, point.batch)]
        return max((int(row["turns"]) for row in rows), default=0)

    def time(self, point: Point, timed: Timed) -> None:
        if point.kind is Kind.DRAFTED:
            self._add_rounds(point, timed)
        elif point.depth:
            timed.add(point, [self._verified(point)], outputs=1)
        else:
            timed.add(point, [self._decoded(point)])

    def _verified(self, point: Point) -> float:
        prompt, added = self._prompt(point, slot=0), point.depth + 1
        found = self._added(prompt, added)
        if found.prompt_tokens != added:  # the slot held another prompt
            self.server.complete(prompt, tokens=1, slot=0)
            found = self._added(prompt, added)
        if found.prompt_tokens != added:
            raise InputError(
                f"{self.server.url} read {found.prompt_tokens} tokens where {added} were new: it does not keep the "
                "start of a prompt for this model (recurrent or sliding-window layers, or --no-cache-prompt); time it "
                "with --binary PATH/llama-bench"
            )
        return found.prompt_seconds

    def _added(self, prompt: list[int], added: int) -> Timings:
        return self.server.complete([*prompt, *self._tokens(self.draw, added)], tokens=1, slot=0)

    def _decoded(self, point: Point) -> float:
        """Seconds per step of slots that decode together."""
        count = self.order.tokens + 1
        answers = self._together(point, lambda prompt, slot: self.server.complete(prompt, tokens=count, slot=slot))
        return sorted(found.seconds / max(found.tokens - 1, 1) for found in answers)[len(answers) // 2]

    def _add_rounds(self, point: Point, timed: Timed) -> None:
        count = 4 * self.order.tokens
        streams = self._together(point, lambda prompt, slot: self.server.rounds(prompt, tokens=count, slot=slot))
        turns = self.turns(point, timed) + 1
        by_depth: dict[int, list[float]] = {}
        for depth, seconds in rounds_of(streams[0]):
            by_depth.setdefault(depth, []).append(seconds)
        for depth, several in by_depth.items():
            timed.add(replace(point, depth=depth), several, turns=turns)

    def _together(self, point: Point, ask: Callable[[list[int], int], Answer]) -> list[Answer]:
        prompts = [self._prompt(point, slot=slot) for slot in range(point.batch)]
        for slot, prompt in enumerate(prompts):
            self.server.complete(prompt, tokens=1, slot=slot)
        with ThreadPoolExecutor(point.batch) as pool:
            return list(pool.map(ask, prompts, range(point.batch)))

    def _prompt(self, point: Point, *, slot: int) -> list[int]:
        """The same for a context and a slot, so that it is cached."""
        return self._tokens(random.Random(1000 * slot + self.order.seed), point.context)

    def _tokens(self, source: random.Random, count: int) -> list[int]:
        first = min(_FIRST_TOKEN, self.about.vocabulary // 2)
        return [source.randrange(first, self.about.vocabulary) for _ in range(count)]


def rounds_of(stream: list[Timings]) -> Iterator[tuple[int, float]]:
    """Depth and seconds of each round after the first, which may still read the prompt into the drafter.

    The tokens of a round come with the same times; its drafts are those counted since the round before.
    """
    last = None
    for after in stream:
        if last is None or after.seconds > last.seconds:
            if last is not None and last.tokens > 1:
                yield after.drafted - last.drafted, after.seconds - last.seconds
            last = after
