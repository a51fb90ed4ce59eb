"""Votes on the depth among vLLM's data-parallel ranks, for mixtures of experts.

`DPEngineCoreProc` steps in lockstep with the other ranks and counts its steps as they do. Every `dp_sync_interval`
steps ranks synchronise; a vote is asked for right after that, on the same group, so that all ranks send in the same
order. In the first step of an engine the ranks find out whether all of them can vote (`live/agreement.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from specmargin._version import __version__
from specmargin.live.agreement import Statement, agree
from specmargin.live.ballot import Ballot, Numbers
from specmargin.live.hooks import around
from specmargin.live.policy_schema import read_policy
from specmargin.live.settings_schema import Mode, Settings
from specmargin.live.vllm.log import logger
from specmargin.live.vllm.names import WORKER_EXTENSIONS
from specmargin.policies.vote import RankVote, VoteRules

_TESTED = "0.32."  # how many passes a dummy batch drafts is no interface: another release may count them differently
_PATIENCE = timedelta(seconds=15)  # ranks have just synchronised; a rank without the plug-in costs this once


@dataclass(kw_only=True)
class Voter:
    """A rank's part. It belongs to the scheduler; the engine core calls it after every step."""

    static_depth: int
    problem: str | None = None  # why this rank cannot vote
    same: dict[str, str] = field(default_factory=dict)
    rules: VoteRules | None = None
    own_vote: Callable[[], RankVote | None] = lambda: None
    begun: Callable[[str | None], None] = lambda _: None  # told why the ranks do not vote; None: they do
    ballot: Ballot | None = None
    has_begun: bool = False
    every_steps: int = 0  # in which ranks synchronise

    @property
    def depth(self) -> int | None:
        """Of this step on all ranks; None: vLLM's own."""
        return None if self.ballot is None else self.ballot.depth

    def stepped(self, core: Any, running: bool) -> None:
        """After a step. Never raises."""
        if not self.has_begun:
            self.has_begun = True
            self._begin(core)
        if self.ballot is not None:
            counter = core.step_counter
            asks = counter == 1 or counter % self.every_steps == 0
            self.ballot.stepped(counter, asks=asks, running=running)

    def _begin(self, core: Any) -> None:
        try:
            why = agree(core.dp_store, self._statement(core), rank=core.dp_rank, ranks=core.dp_size, patience=_PATIENCE)
        except Exception as error:  # nothing was written, or the store is gone and with it the first rank
            why = f"{type(error).__name__}: {error}"
        if why is None and self.rules is not None:
            self.ballot = Ballot(
                rules=self.rules,
                static_depth=self.static_depth,
                max_depth=self.static_depth,
                own_vote=self.own_vote,
                gather=_Gather(core.dp_group, core.dp_size),
                log=lambda text: logger.warning("Specmargin: %s.", text),
            )
        with suppress(Exception):
            self.begun(why)

    def _statement(self, core: Any) -> Statement:
        problem, self.every_steps = self.problem, int(core.dp_sync_interval)
        if problem is None and self.rules is None:
            problem = "its policy has no prices to vote by"
        if problem is None:
            try:
                refused = [one for one in core.model_executor.collective_rpc("follow_votes") if one is not None]
                problem = refused[0] if refused else None
            except Exception as error:
                problem = f"its workers cannot follow a vote ({type(error).__name__}: {error})"
        return Statement(problem=problem, same=self.same)


@dataclass(frozen=True, slots=True)
class _Gather:
    """An all-gather that goes on while the engine steps."""

    group: Any
    size: int

    def __call__(self, numbers: Numbers) -> Callable[[], Sequence[Numbers]]:
        import torch  # noqa: PLC0415  # vLLM has imported it

        own = torch.tensor(numbers, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        work = torch.distributed.all_gather(rows, own, group=self.group, async_op=True)

        def answers() -> Sequence[Numbers]:
            work.wait()
            return [row.tolist() for row in rows]

        return answers


def install() -> None:
    """Once per process, where a scheduler has a voter."""
    from vllm.v1.engine.core import DPEngineCoreProc  # noqa: PLC0415  # not with a single rank

    around(DPEngineCoreProc, "_has_global_unfinished_reqs")(_synchronise)
    around(DPEngineCoreProc, "execute_dummy_batch")(_dummy_batch)


def _synchronise(original: Callable[..., bool], core: Any, *args: Any, **kwargs: Any) -> bool:
    running = original(core, *args, **kwargs)
    voter = _voter(core)
    if voter is not None:
        voter.stepped(core, running)
    return running


def _dummy_batch(original: Callable[..., Any], core: Any, *args: Any, **kwargs: Any) -> Any:
    """A rank without requests runs as many draft passes as the others."""
    voter = _voter(core)
    depth = None if voter is None else voter.depth
    if depth is None:
        return original(core, *args, **kwargs)
    return core.model_executor.collective_rpc("dummy_batch_of_depth", args=(depth,))


def _voter(core: Any) -> Voter | None:
    return getattr(core.scheduler, "voter", None)


def refusal(config: Any, settings: Settings) -> str | None:
    """Why this rank cannot vote, as far as its configuration tells."""
    from vllm.version import __version__ as release  # noqa: PLC0415  # its package may have another name

    if not release.startswith(_TESTED):
        return f"votes are tested with vLLM {_TESTED}x, and this is {release}"
    if settings.mode is not Mode.ADAPTIVE or settings.policy is None:
        return f"mode {settings.mode} is for a single rank; votes need mode adaptive"
    if config.scheduler_config.async_scheduling:
        return "votes are tested without asynchronous scheduling; --no-async-scheduling allows them"
    parallel, ranks = config.parallel_config, config.parallel_config.data_parallel_size
    if parallel.enable_elastic_ep or parallel.enable_fault_tolerance:
        return "the number of ranks may change (elastic expert parallelism or fault tolerance)"
    if parallel.worker_extension_cls not in WORKER_EXTENSIONS.values():
        return "another worker extension is configured"
    planned = read_policy(settings.policy).ranks
    if planned != ranks:
        return (
            f"{settings.policy} was planned for {planned} data-parallel ranks and the server has {ranks}; "
            f"plan it with --dp {ranks} --ep"
        )
    return None


def same_on_all_ranks(settings: Settings, max_depth: int) -> dict[str, str]:
    """What decisions follow from."""
    policy = b"" if settings.policy is None else settings.policy.read_bytes()
    ignored = {"policy", "board", "capture", "log_seconds"}
    return {
        "policy files": hashlib.sha256(policy).hexdigest(),
        "releases of Specmargin": __version__,
        "settings": settings.model_dump_json(exclude=ignored),
        "depths": str(max_depth),
    }
