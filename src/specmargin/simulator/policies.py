"""Policies by name, and the draft tokens for which each needs KV room."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from specmargin.caches import IdentityCache
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.decisions.setting import Setting
from specmargin.errors import CatalogError, ScenarioError, nearest_names
from specmargin.modes import POLICIES
from specmargin.policies.controller import Controller
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.types import LookAhead
from specmargin.policies.peer_vllm import OnlineEstimator, VllmAdaptive
from specmargin.policies.peers import Cascade, SglangLadder, TurboSpec, by_token_count
from specmargin.policies.policy import FixedDepth, OneWidthGate, Oracle, Policy, RaggedGate, ScheduledDepth
from specmargin.policies.study.lookahead import look_ahead
from specmargin.policies.tables import profiled_seconds, scenario_table
from specmargin.simulator.rounds import RoundBank
from specmargin.step import FloatArray

_SAMPLE = 2048  # rounds that the look-ahead replays
_PRICES: IdentityCache[PriceTable] = IdentityCache()
_LOOK_AHEADS: IdentityCache[LookAhead] = IdentityCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy and its engine. `held_depth`: draft tokens with reserved KV room; None: no speculation configured."""

    name: str
    policy: Policy
    held_depth: int | None
    sees_outcomes: bool = False  # sees outcomes instead of signals


def scheduled(schedule: Schedule, max_batch: int) -> PolicyChoice:
    """An engine that drafts what a schedule says; without drafts it is one without speculation."""
    depths = np.concatenate([[0], schedule.depths_at(np.arange(1, max_batch + 1))]).astype(np.int64)
    policy = ScheduledDepth(name="schedule", depth_by_batch=depths)
    return PolicyChoice(name="schedule", policy=policy, held_depth=schedule.max_depth or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """The inputs from which policies are built."""

    pricer: Pricer
    bank: RoundBank
    max_batch: int
    max_depth: int
    ranks: int = 1  # data-parallel ones, with `max_batch` each

    def table(self) -> PriceTable:
        key = (id(self.pricer), self.max_batch, self.max_depth, self.ranks)
        setting = Setting.of(self.pricer.scenario, max_depth=self.max_depth)
        make = partial(scenario_table, self.pricer, setting, max_batch=self.max_batch, ranks=self.ranks)
        return _PRICES.get(key, self.pricer, make)

    def look_ahead(self) -> LookAhead:
        """Cached: it takes seconds to compute, and is the same for all runs with these prices and signals."""
        table, sample = self.table(), self.sample()
        key = (id(table), hashlib.sha256(sample.tobytes()).digest())
        return _LOOK_AHEADS.get(key, table, partial(look_ahead, table, sample))

    def sample(self) -> FloatArray:
        signals = self.bank.sample
        rounds = np.linspace(0, signals.shape[0] - 1, min(signals.shape[0], _SAMPLE)).astype(np.int64)
        return np.asarray(signals[rounds])


def _schedule(inputs: PolicyInputs) -> Policy:
    return ScheduledDepth.homogeneous(inputs.table(), inputs.bank.prior)


def _gate(inputs: PolicyInputs) -> RaggedGate:
    return RaggedGate(table=inputs.table(), look_ahead=inputs.look_ahead())


def _one_width(inputs: PolicyInputs) -> Policy:
    return OneWidthGate(table=inputs.table(), look_ahead=inputs.look_ahead())


def _controller(inputs: PolicyInputs) -> Policy:
    """Gates drafts where the signal differs between rounds; chooses only a depth otherwise."""
    ahead = inputs.look_ahead() if inputs.bank.informative else None
    return Controller(table=inputs.table(), prior_survival=inputs.bank.prior, look_ahead=ahead)


def _vllm(inputs: PolicyInputs) -> Policy:
    return VllmAdaptive(
        verify_seconds=profiled_seconds(inputs.pricer, max_batch=inputs.max_batch, max_depth=inputs.max_depth),
        draft_seconds=inputs.table().draft_seconds[:, inputs.max_depth, 0],
        depth=inputs.max_depth,
        estimator=OnlineEstimator(depths=inputs.max_depth),
    )


MAKERS: dict[str, Callable[[PolicyInputs], Policy]] = {
    "schedule": _schedule,
    "one-width": _one_width,
    "gate": _gate,
    "controller": _controller,
    "oracle": lambda inputs: Oracle(gate=_gate(inputs)),
    "vllm-adaptive": _vllm,
    "sglang": lambda inputs: SglangLadder(max_depth=inputs.max_depth),
    "turbospec": lambda inputs: TurboSpec(table=by_token_count(inputs.table())),
    "cascade": lambda inputs: Cascade(max_depth=inputs.max_depth),
}


def check_policy(name: str, max_depth: int, names: tuple[str, ...] = POLICIES) -> int | None:
    """Draft tokens for which the policy's engine reserves room; None: no speculation. Raises for an unknown name."""
    if name == "none":
        return None
    if name in names and ":" not in name:
        return max_depth
    kind, _, depth = name.partition(":")
    if kind == "fixed" and depth.isascii() and depth.isdigit():
        if not 0 <= int(depth) <= max_depth:
            raise ScenarioError(f"--policy {name} drafts deeper than {max_depth} tokens; raise --depth")
        return int(depth)
    raise CatalogError(f"unknown policy {name!r}{nearest_names(kind, names)}; known: {', '.join(names)}")


def find_policy(name: str, inputs: PolicyInputs) -> PolicyChoice:
    held_depth = check_policy(name, inputs.max_depth)
    if name in MAKERS:
        return PolicyChoice(
            name=name, policy=MAKERS[name](inputs), held_depth=held_depth, sees_outcomes=name == "oracle"
        )
    depth = int(name.partition(":")[2]) if name.startswith("fixed:") else 0
    return PolicyChoice(name=name, policy=FixedDepth(depth=depth), held_depth=held_depth)
