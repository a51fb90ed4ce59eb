"""Turns of policies in one vLLM on a GPU: fixed depths, the plan's table, the controller; for `lab.gpu.swing`."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from lab.gpu.rounds import Engine
from lab.gpu.serving import stand_in_for_missing_extras

DEPTH = 5
TRAFFIC = {"code": 0.85, "prose": 0.6}  # acceptance of each draft token, given that those before it were accepted
LEARNING_SECONDS = 3.0
BLOCKS = 6
TURN_SECONDS = 0.3
LEAST_ROUNDS = 8
# With many sequences the GPU lowers its clock after half a second of deep rounds: every turn begins after that.
SETTLE_SECONDS, MANY = 0.5, 64
PROMPT_TOKENS = 96
GRAPH_POSITIONS = 512  # of vLLM's largest CUDA graph


class Swing:
    """One engine whose plug-in can be switched off and on between turns."""

    def __init__(self, job: dict[str, Any]) -> None:
        stand_in_for_missing_extras()
        from specmargin.live.driver_builder import build_driver
        from specmargin.live.vllm import scheduler
        from specmargin.live.vllm.plugin import register

        given: dict[str, Any] = {}

        def remembered(settings: Any, **named: Any) -> Any:
            given.update(settings=settings, named=named)
            return build_driver(settings, **named)

        setattr(scheduler, "build_driver", remembered)  # noqa: B010 (it is not exported)
        register()
        self.engine = Engine(job)
        self.scheduler = self.engine.core.scheduler
        self.driver = self.scheduler._driver
        self.table = list(self.scheduler.dynamic_sd_lookup)
        self.narrator, self.scheduler._narrator = self.scheduler._narrator, None
        settings = given["settings"].model_copy(update={"board": None})
        whole = {**given["named"], "device_gate": False}
        self.ungated = build_driver(settings, **whole)
        self.held = {d: build_driver(settings, **{**whole, "candidates": (d,)}) for d in self.depths}

    @property
    def depths(self) -> list[int]:
        """Those with graphs."""
        return sorted(set(self.table))

    def fixed(self, depth: int) -> None:
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = [depth] * len(self.table)

    def controlled(self, depth: int | None = None, *, gated: bool = True) -> None:
        """The controller; with a depth, one that may choose only that. `gated`: with the gate on the GPU, if any."""
        self.scheduler._driver = None
        self.scheduler.dynamic_sd_lookup = list(self.table)
        if self.engine.requests():
            self.engine.rounds(1)
        self.scheduler._last_done = time.perf_counter() if self.engine.requests() else math.nan
        alone = self.driver if gated else self.ungated
        self.scheduler._driver = alone if depth is None else self.held[depth]

    def settle(self) -> None:
        settled = time.perf_counter() + SETTLE_SECONDS * (len(self.engine.requests()) >= MANY)
        self.engine.rounds(3)
        while time.perf_counter() < settled:
            self.engine.rounds(1)

    def turn(self, seconds: float, *, settled: bool = False, rounds: int | None = None) -> dict[str, Any]:
        """Seconds, rounds, tokens, and rounds by the depth that the scheduler asked for. `rounds`: so many, however
        long they take."""
        if not settled:
            self.settle()
        asked, update = Counter[int](), self.scheduler._update_after_schedule

        def counted(output: Any) -> Any:
            result = update(output)
            asked[int(output.num_spec_tokens_to_schedule or 0)] += 1
            return result

        self.scheduler._update_after_schedule = counted
        context = self.engine.context()
        begun, tokens, round_seconds = time.perf_counter(), 0, list[float]()
        while (
            time.perf_counter() - begun < seconds or len(round_seconds) < LEAST_ROUNDS
            if rounds is None
            else len(round_seconds) < rounds
        ):
            took, new_tokens = self.engine.rounds(1)
            round_seconds.append(took)
            tokens += new_tokens
        elapsed, played = time.perf_counter() - begun, len(round_seconds)
        del self.scheduler._update_after_schedule
        depths = {str(depth): count for depth, count in sorted(asked.items())}
        context = round((context + self.engine.context()) / 2, 1)
        stall = round(max(round_seconds) - statistics.median(round_seconds), 4)
        turn = {"seconds": round(elapsed, 5), "rounds": played, "tokens": tokens, "depths": depths, "context": context}
        return turn | {"stall": stall}

    def play(self, batch: int, traffic: str) -> dict[str, Any]:
        """One load and traffic: the controller learns, then contestants take turns, in another order in each block."""
        self.engine.runner.rejection_sampler.synthetic_conditional_rates.fill_(TRAFFIC[traffic])
        named = self.table[min(batch, len(self.table) - 1)]
        depths = [depth for depth in self.depths if batch * (depth + 1) <= GRAPH_POSITIONS]
        contestants: list[tuple[str, Callable[[], None], float]] = [
            ("controller", self.controlled, 2.0),
            *((f"depth {depth}", partial(self.fixed, depth), 1.0) for depth in depths),
        ]
        after = next(i for i, one in enumerate(contestants) if one[0] == f"depth {named}")
        contestants.insert(after + 1, (f"held {named}", partial(self.controlled, named), 1.0))
        self._fill(batch)
        learning = [self.turn(LEARNING_SECONDS)]
        blocks = []
        for block in range(BLOCKS):
            self._fill(batch)
            first, turns = block % len(contestants), {}
            for name, begin, length in contestants[first:] + contestants[:first]:
                begin()
                turns[name] = self.turn(TURN_SECONDS * length)
            blocks.append(turns)
        return {"batch": batch, "traffic": traffic, "table_depth": named, "learning": learning, "blocks": blocks}

    def _fill(self, batch: int) -> None:
        """New sequences, so that contexts stay alike and the KV cache holds them."""
        if self.engine.requests():
            self.engine.clear()
        self.controlled()
        self.engine.fill(batch, PROMPT_TOKENS)
        self.controlled()
