"""Depth by round: what SGLang asks before it drafts, and learns from when a round is verified.

A round drafts and verifies at one depth. With overlapped scheduling its outcome comes after the next round's decision.
Every rank decides for itself, from the same file and the same outcomes: no clock counts, and all decide alike.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

from specmargin._version import __version__
from specmargin.errors import EngineError
from specmargin.files import read_json
from specmargin.live.driver import Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.narrator import Narrator
from specmargin.live.policy_schema import PolicyFile, parse_policy, policy_text, read_policy
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Mode, Settings, read_settings
from specmargin.live.sglang.names import KEY

#: The others are for vLLM: SGLang shows neither requests nor confidences, and its ranks share no clock.
SETTINGS = ("mode", "policy", "schedule", "candidates", "faults_in_a_row", "log_seconds")
_IN_FLIGHT = 16  # rounds, at most


@dataclass(kw_only=True)
class SglangRounds:
    driver: Driver
    narrator: Narrator
    steps: tuple[int, ...]  # depths that SGLang prepares: those of its own configuration, and those that may be chosen
    deepest_by_batch: Sequence[int]  # that the policy plans CUDA graphs for
    fingerprint: str  # of all that decisions depend on beside outcomes
    _in_flight: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_IN_FLIGHT))  # batch, depth

    @property
    def decides(self) -> bool:
        """Whether SGLang uses its depths."""
        return self.driver.mode is not Mode.OBSERVE and not self.driver.guard.off

    @property
    def description(self) -> str:
        return f"Specmargin: mode {self.driver.mode}; drafts of {_listed(self.steps)} tokens are prepared."

    def steps_for(self, batch: int, own: Callable[[int], int]) -> int:
        """The depth of the next round: the policy's, or SGLang's own where there is none."""
        depth = self.driver.guard.call("depth decision", None, self._decide, batch)
        if depth is None:
            depth = own(batch)
            self.driver.board.show_guard(self.driver.guard)
        self._in_flight.append((batch, depth))
        return depth

    def _decide(self, batch: int) -> int | None:
        depth = self.driver.draft_depth([""] * batch)  # requests have no names here
        if depth is not None and depth not in self.steps:
            raise EngineError(f"depth {depth} was chosen, but SGLang prepared only {_listed(self.steps)}")
        return depth

    def learn(self, accepted: Sequence[int], batch: int) -> None:
        """The outcome of the oldest round of this batch size."""
        self.driver.guard.call("outcome", None, self._learn, accepted, batch)

    def _learn(self, accepted: Sequence[int], batch: int) -> None:
        depth = self._depth_of(batch)
        if depth is None:
            self.driver.board.add("ignored_outcomes_total")
            return
        verified, taken = np.full(len(accepted), depth), np.array(accepted, dtype=np.int64)
        self.driver.done(StepDone.of(verified, taken, prompt_tokens=0, seconds=math.nan), depth)
        self.narrator.look(time.monotonic())

    def _depth_of(self, batch: int) -> int | None:
        """Rounds before it never came back: nothing is learned from them."""
        if all(sequences != batch for sequences, _ in self._in_flight):
            return None
        sequences, depth = self._in_flight.popleft()
        while sequences != batch:
            self.driver.done(StepDone.nothing(), 0)
            sequences, depth = self._in_flight.popleft()
        return depth

    def graph_sizes(self, step: int, sizes: Sequence[int]) -> list[int]:
        """Those of SGLang's CUDA graph sizes that hold a batch at which `step` may be chosen."""
        padded = pairwise([0, *sizes])  # a batch runs in the next larger size
        return [
            size
            for before, size in padded
            if any(self._may_choose(step, batch) for batch in range(before + 1, size + 1))
        ]

    def _may_choose(self, step: int, batch: int) -> bool:
        policy = self.driver.policy
        if policy is None or self.driver.mode is Mode.OBSERVE:
            return False
        if self.driver.mode is Mode.SCHEDULE:
            return min(policy.draft(batch).depth, self.driver.max_depth) == step
        return step <= self.deepest_by_batch[min(batch, len(self.deepest_by_batch) - 1)]


def start(
    path: Path,
    own_steps: Sequence[int],
    *,
    engine: str,
    board: Path | None,
    log: Callable[[str], None],
    warn: Callable[[str], None],
    decides: bool = True,
) -> SglangRounds:
    """From Specmargin's part of the file of `--speculative-adaptive-config`, whose own part names `own_steps`.
    `decides`: whether this release has what depth control needs; without, rounds are only counted."""
    settings, policy = read_config(path)
    if not decides:
        changes = {"mode": Mode.OBSERVE, "policy": None, "schedule": None, "candidates": None}
        settings, policy = settings.model_copy(update=changes), None
    steps = _steps(settings, policy, own_steps)
    driver = build_driver(
        settings.model_copy(update={"board": board}),
        policy=policy,
        max_depth=max(steps),
        candidates=steps,
        engine=engine,
        log=warn,
        by_rank=True,
        graph_positions="planned",
    )
    return SglangRounds(
        driver=driver,
        narrator=Narrator(driver=driver, every_seconds=settings.log_seconds, log=log),
        steps=steps,
        deepest_by_batch=(0,) if policy is None else policy.table.graph_depth_by_batch,
        fingerprint=_fingerprint(settings, policy),
    )


def _fingerprint(settings: Settings, policy: PolicyFile | None) -> str:
    """Machine code compiled for another CPU may round differently, and so decide differently."""
    code = (__version__, numba.__version__, str(get_host_cpu_name()))
    inputs = (settings.model_dump_json(), "" if policy is None else policy_text(policy))
    return blake2b("\n".join((*code, *inputs)).encode(), digest_size=16).hexdigest()


def read_config(path: Path) -> tuple[Settings, PolicyFile | None]:
    """Settings as for vLLM; `policy` is the contents of a policy file, or its name."""
    source = f"{path}: '{KEY}'"
    given = read_json(path, EngineError).get(KEY)
    if not isinstance(given, dict):
        raise EngineError(f"{source} must be a table of settings, such as the one that `plan --policy` writes")
    other = next((name for name in given if name in Settings.model_fields and name not in SETTINGS), None)
    if other is not None:
        raise EngineError(f"{source}: {other} is not available in SGLang (available: {', '.join(SETTINGS)})")
    policy = given.get("policy")
    if not isinstance(policy, dict):
        settings = read_settings(given, source)
        return settings, None if settings.policy is None else read_policy(settings.policy)
    settings = read_settings({**given, "policy": str(path)}, source)
    return settings, parse_policy(json.dumps(policy), f"in {path}")


def _steps(settings: Settings, policy: PolicyFile | None, own: Sequence[int]) -> tuple[int, ...]:
    """SGLang's buffers fit its own deepest step, so no deeper one is added."""
    return tuple(sorted({*own, *(depth for depth in _wanted(settings, policy) if depth <= max(own))}))


def _wanted(settings: Settings, policy: PolicyFile | None) -> Sequence[int]:
    match settings.mode:
        case Mode.OBSERVE:
            return ()
        case Mode.SCHEDULE:
            ranges = settings.schedule or ([] if policy is None else policy.schedule)
            return [depth for _, _, depth in ranges]
        case Mode.ADAPTIVE:
            return settings.candidates or ([] if policy is None else policy.graph_depths)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))
