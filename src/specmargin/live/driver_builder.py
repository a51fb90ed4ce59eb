"""Builds a driver from settings, with the policy of its mode, and compiles its code before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from specmargin.compiler import HAS_NUMBA
from specmargin.errors import EngineError
from specmargin.live.board import Board, board_path
from specmargin.live.capture import BankWriter, Identity
from specmargin.live.driver import Agreed, Driver
from specmargin.live.guard import Guard
from specmargin.live.policy_schema import PolicyFile, read_policy, schedule_of
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import Mode, Settings
from specmargin.policies.controller import Controller, ControllerSettings
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.policy import Policy

_LEARN_EVERY = 8  # steps


def build_driver(
    settings: Settings,
    *,
    max_depth: int,
    candidates: tuple[int, ...] | None,
    engine: str,
    log: Callable[[str], None],
    identity: Identity | None = None,
    policy: PolicyFile | None = None,
    device_gate: bool = False,
    by_rank: bool = False,
    graph_positions: int | Literal["planned"] | None = None,
    tuning: Tuning | None = None,
    agreed: Agreed | None = None,
) -> Driver:
    """`candidates`: depths that the engine captured CUDA graphs for; None: any. `identity`: of the banks, needed to
    capture. `policy`: instead of the file that the settings name. `device_gate`: drafts are gated in the engine's
    workers. `by_rank`: every rank has a driver, and they must decide alike, so no clock counts. `graph_positions`: of
    the largest CUDA graph; None: the engine has none, or one for every step; planned: those of the policy's table.
    `tuning`: of the controller, in a study of its numbers. `agreed`: of data-parallel ranks that vote."""
    file = policy or (None if settings.policy is None else read_policy(settings.policy))
    classes = {name: schedule_of(ranges, name) for name, ranges in settings.classes.items()}

    def make(guard: Guard, board: Board, capture: BankWriter | None) -> Driver:
        allowed = _allowed(settings, file, candidates, max_depth)
        limits = ControllerSettings(
            candidates=allowed, gated_by_workers=device_gate, learn_times=not by_rank, tuning=tuning or Tuning()
        )
        policy = _policy(settings, file, limits, graph_positions=graph_positions)
        return Driver(
            mode=settings.mode,
            policy=policy,
            max_depth=max_depth,
            guard=guard,
            board=board,
            device_gate=device_gate,
            time_factors=policy.time_factors if isinstance(policy, Controller) else None,
            classes=classes,
            capture=capture,
            learn_every=1 if by_rank else _LEARN_EVERY,
            agreed=agreed,
        )

    _warm_up(make(Guard(log=log, slowest_seconds=math.inf), Board(), None))
    slowest = math.inf if by_rank else settings.slowest_decision_seconds
    guard = Guard(log=log, faults_in_a_row=settings.faults_in_a_row, slowest_seconds=slowest)
    board = Board(None if settings.board is None else board_path(settings.board, engine))
    board.put("mode", float(list(Mode).index(settings.mode)))
    capture = None
    if settings.capture is not None and identity is not None:
        capture = BankWriter(
            settings=settings.capture,
            identity=identity,
            max_depth=max_depth,
            board=board,
            fault=lambda detail: guard.fault("capture", detail),
        )
    return make(guard, board, capture)


def _allowed(
    settings: Settings, file: PolicyFile | None, captured: tuple[int, ...] | None, max_depth: int
) -> tuple[int, ...]:
    """Depths that may be chosen: those of the settings or else of the policy, and of these the captured ones."""
    wanted = settings.candidates or (None if file is None else file.candidates)
    depths = set(range(max_depth + 1)) if wanted is None else {0, *(d for d in wanted if d <= max_depth)}
    if captured is not None:
        depths = depths & set(captured) or set(captured)
    return tuple(sorted(depths))


def _policy(
    settings: Settings,
    file: PolicyFile | None,
    limits: ControllerSettings,
    *,
    graph_positions: int | Literal["planned"] | None,
) -> Policy | None:
    if settings.mode is Mode.SCHEDULE:
        ranges = settings.schedule or (file.schedule if file is not None else [])
        return schedule_of(ranges)
    if file is None:
        return None  # observe only
    if not HAS_NUMBA:
        raise EngineError("numba is not installed, and steps would wait for it; run: pip install 'specmargin[live]'")
    table = file.table.table
    return Controller(
        table=table if graph_positions == "planned" else table.with_graphs(graph_positions),
        prior_survival=np.array(file.survival),
        settings=limits,
    )


def _warm_up(driver: Driver) -> None:
    """Run a few steps of dummy requests, so that nothing is compiled while real sequences wait."""
    for batch in (1, 2):
        request_ids = [f"warm-up {i}" for i in range(batch)]
        for request_id in request_ids:
            driver.add(request_id, None)
        depth = driver.draft_depth(request_ids) or 0
        step = StepDone.of(
            request_ids=request_ids,
            verified=np.full(batch, driver.max_depth),
            accepted=np.zeros(batch, dtype=np.int64),
            contexts=[1] * batch,
            prompt_tokens=0,
            seconds=0.01,
        )
        driver.gate_order(batch, depth)
        driver.done(step, depth)
        driver.settle()
        if driver.agreed is not None:
            driver.vote(batch)
        if driver.policy is not None:
            driver.policy.draft(batch)  # ranks whose votes end decide no depth before that
            driver.policy.outlook(batch, depth)
            driver.policy.mean_survival()
