"""Contestants that take turns on ranks in lockstep, and a line per step: inside every rank, a plug-in of vLLM.

The first rank reads the turns that are to come from a file and tells the others whose turn it is before every step, so
that all of them change between the same two steps. A turn lasts a few steps: this machine changes its speed within
seconds. A contestant is the plug-in with its votes, the plug-in with all that it does while the depth stays vLLM's,
or a static depth without the plug-in, which is what vLLM does by itself.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.live import experts_on_cpu, shared_collectives
from specmargin.step import FloatArray

FOLDER = "SPECMARGIN_TURNS"
TURN_STEPS = 5  # with the votes' own turns between, votes at every sixteenth step fall into both
VOTES, PINNED, STATIC = range(3)  # kinds of contestants
DRAFTING, EXPERTS = range(2)  # of `spent`
_TURNS = "turns"


class Turn(NamedTuple):
    serial: int
    kind: int = STATIC
    depth: int = 0  # of a static contestant


class StepLine(NamedTuple):
    """What a rank writes of a step."""

    serial: int  # of the turn
    seconds: float  # since the step before ended; NaN for the first step of a wave
    tokens: int  # committed
    sequences: int
    prompt_tokens: int
    depth: int  # of the drafts that are made at the end of the step
    draft_seconds: float
    expert_seconds: float
    drafts: tuple[int, ...] = ()  # sequences that had at least 1, 2, … drafts to verify
    kept: tuple[int, ...] = ()  # … and that kept as many

    @classmethod
    def of(cls, text: str) -> StepLine:
        serial, seconds, tokens, sequences, prompt_tokens, depth, drafting, experts, drafts, kept = text.split(" ")
        counts = (int(tokens), int(sequences), int(prompt_tokens), int(depth))
        spent = (float(drafting), float(experts))
        return cls(int(serial), float(seconds), *counts, *spent, _counts(drafts), _counts(kept))

    @property
    def text(self) -> str:
        *numbers, drafts, kept = self
        return " ".join([*map(str, numbers), *(",".join(map(str, counts)) for counts in (drafts, kept))])


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def at_least(lengths: Sequence[int]) -> tuple[int, ...]:
    """How many of them are at least 1, 2, …"""
    return tuple(sum(length >= least for length in lengths) for least in range(1, max(lengths, default=0) + 1))


def register() -> None:
    experts_on_cpu.register()
    if FOLDER not in os.environ:
        return
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts  # noqa: PLC0415
    from vllm.v1.engine.core import DPEngineCoreProc  # noqa: PLC0415
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer  # noqa: PLC0415

    folder = Path(os.environ[FOLDER])
    shared_collectives.install(folder, len(list(folder.glob("spent-*.bin"))))
    CPUUnquantizedExperts.apply = _timed(CPUUnquantizedExperts.apply, folder, EXPERTS)
    SpecDecodeBaseProposer.propose = _timed(SpecDecodeBaseProposer.propose, folder, DRAFTING)
    synchronise, ranks = DPEngineCoreProc._has_global_unfinished_reqs, dict[int, _Rank]()

    def synchronising(core: Any, *args: Any, **kwargs: Any) -> bool:
        running = bool(synchronise(core, *args, **kwargs))
        if id(core) not in ranks:
            ranks[id(core)] = _Rank(core=core, folder=folder)
        ranks[id(core)].end_step(running)
        return running

    DPEngineCoreProc._has_global_unfinished_reqs = synchronising


def spent(folder: Path, rank: int) -> FloatArray:
    """Seconds that a rank's worker has spent in drafting and in experts; shared with the process of its scheduler."""
    return np.memmap(folder / f"spent-{rank}.bin", dtype=np.float64, mode="r+", shape=(2,))


def write_turns(folder: Path, turns: Sequence[Turn]) -> None:
    """They begin at once; the last one goes on until there are new ones."""
    new = folder / "turns.new"
    new.write_text("".join(f"{turn.serial} {turn.kind} {turn.depth}\n" for turn in turns))
    new.rename(folder / _TURNS)


def prepare(folder: Path, ranks: int) -> None:
    """The files of a game that must be there when the server starts."""
    write_turns(folder, [Turn(0)])
    for rank in range(ranks):
        np.zeros(2).tofile(folder / f"spent-{rank}.bin")
    shared_collectives.prepare(folder, ranks)


def _timed(function: Callable[..., Any], folder: Path, place: int) -> Callable[..., Any]:
    shared = list[FloatArray]()

    def timing(*args: Any, **kwargs: Any) -> Any:
        from vllm.distributed import get_dp_group  # noqa: PLC0415

        if not shared:
            shared.append(spent(folder, get_dp_group().rank_in_group))
        started = time.perf_counter()
        result = function(*args, **kwargs)
        shared[0][place] += time.perf_counter() - started
        return result

    return timing


@dataclass(kw_only=True)
class _Turns:
    """Of the first rank."""

    file: Path
    _read: str = ""
    _to_come: list[Turn] = field(default_factory=list)
    _now: Turn = field(default_factory=lambda: Turn(0))
    _steps: int = 0  # of this turn

    def next(self) -> Turn:
        """Whose turn the next step is."""
        self._steps += 1
        if not self._to_come and (text := self.file.read_text()) != self._read:
            self._read, self._steps = text, TURN_STEPS
            self._to_come = [Turn(*map(int, line.split())) for line in text.splitlines()]
        if self._to_come and self._steps >= TURN_STEPS:
            self._now, self._steps = self._to_come.pop(0), 0
        return self._now


@dataclass(kw_only=True)
class _Rank:
    core: Any
    folder: Path
    turn: Turn = field(default_factory=lambda: Turn(0))
    _ended: float = math.nan
    _counts: tuple[int, int, int, int] = (0, 0, 0, 0)  # tokens, sequences, prompt tokens, depth
    _drafts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # at least so long, and kept
    _lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        scheduler = self.core.scheduler
        self._shared = spent(self.folder, self.core.dp_rank)
        self._spent = self._shared.copy()
        self.voter, self.driver = scheduler.voter, scheduler._driver
        self._turns = _Turns(file=self.folder / _TURNS)
        self._update = scheduler.update_from_output
        scheduler.update_from_output, scheduler.voter = self._counted, self

    # --- in the place of the scheduler's voter ---

    @property
    def depth(self) -> int | None:
        """Of this step. Ranks without requests draft as deep as the others, whoever plays."""
        depths: dict[int, int | None] = {
            VOTES: self.voter.depth,
            PINNED: self.voter.static_depth,
            STATIC: self.turn.depth,
        }
        return depths[self.turn.kind]

    def stepped(self, core: Any, running: bool) -> None:
        ballot = self.voter.ballot
        if self.turn.kind != STATIC or not self.voter.has_begun:
            self.voter.stepped(core, running)
        elif ballot is not None and ballot._answers is not None:  # of a vote in an earlier turn
            ballot.stepped(core.step_counter, asks=False, running=running)

    # --- steps ---

    def _counted(self, scheduled: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = sum(map(len, output.sampled_token_ids))
        drafts = scheduled.scheduled_spec_decode_tokens
        prompt_tokens = sum(
            count - 1 - len(drafts.get(request, ())) for request, count in scheduled.num_scheduled_tokens.items()
        )
        depth = int(scheduled.num_spec_tokens_to_schedule or 0)
        self._counts = (tokens, len(scheduled.num_scheduled_tokens), prompt_tokens, depth)
        kept = [max(len(sampled) - 1, 0) for sampled in output.sampled_token_ids]
        self._drafts = at_least([len(draft) for draft in drafts.values()]), at_least(kept)
        return self._update(scheduled, output, *args, **kwargs)

    def end_step(self, running: bool) -> None:
        now = time.perf_counter()
        before, self._spent = self._spent, self._shared.copy()
        drafting, experts = (self._spent - before).tolist()
        line = StepLine(self.turn.serial, now - self._ended, *self._counts, drafting, experts, *self._drafts)
        self._lines.append(line.text)
        self._ended, self._counts, self._drafts = now if running else math.nan, (0, 0, 0, 0), ((), ())
        turn = self._next_turn()
        if turn.serial != self.turn.serial or not running or len(self._lines) >= 200:
            self._write()
        if turn.serial != self.turn.serial:
            self._begin(turn)

    def _next_turn(self) -> Turn:
        """The first rank's, on all."""
        import torch  # noqa: PLC0415  # vLLM has imported it

        numbers = torch.tensor(self._turns.next() if self.core.dp_rank == 0 else [0, 0, 0])
        torch.distributed.all_reduce(numbers, group=self.core.dp_group)
        return Turn(*numbers.tolist())

    def _begin(self, turn: Turn) -> None:
        from specmargin.policies.policy import NOT_DECIDED  # noqa: PLC0415

        scheduler, self.turn = self.core.scheduler, turn
        scheduler._driver = None if turn.kind == STATIC else self.driver
        scheduler._last_done = math.nan
        self.driver._planned.clear()
        self.driver._pending = NOT_DECIDED

    def _write(self) -> None:
        with (self.folder / f"steps-{self.core.dp_rank}.txt").open("a") as out:
            out.write("".join(f"{line}\n" for line in self._lines))  # at once: the last one is read meanwhile
        self._lines.clear()
