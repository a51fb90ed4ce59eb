"""Policies by name, and the engine that each of them needs: room for drafts, or none at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from specmargin.caching import IdentityCache
from specmargin.decisions.pricer import Pricer
from specmargin.errors import CatalogError, ScenarioError, nearest_names
from specmargin.policies.controller import Controller
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.peers import Cascade, SglangLadder, TurboSpec, VllmAdaptive, by_token_count
from specmargin.policies.policy import FixedDepth, OneWidthGate, Oracle, Policy, RaggedGate, Schedule
from specmargin.policies.study.lookahead import LookAhead, look_ahead
from specmargin.policies.tables import scenario_table
from specmargin.simulator.rounds import RoundBank
from specmargin.step import FloatArray

_SAMPLE = 2048  # rounds that the look-ahead plays
_PRICES: IdentityCache[PriceTable] = IdentityCache()
_LOOK_AHEADS: IdentityCache[LookAhead] = IdentityCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy and the engine it runs in. `held_depth`: drafts that the engine makes room for; None: no speculation."""

    name: str
    policy: Policy
    held_depth: int | None
    told: bool = False  # shown the outcome in place of a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """What policies are made from."""

    pricer: Pricer
    bank: RoundBank
    max_batch: int
    max_depth: int

    def table(self) -> PriceTable:
        key = (id(self.pricer), self.max_batch, self.max_depth)
        make = partial(scenario_table, self.pricer, max_batch=self.max_batch, max_depth=self.max_depth)
        return _PRICES.get(key, self.pricer, make)

    def look_ahead(self) -> LookAhead:
        """The slowest thing to work out (seconds), and the same for all runs with these prices and signals."""
        table, sample = self.table(), self.sample()
        key = (id(table), hashlib.sha256(sample.tobytes()).digest())
        return _LOOK_AHEADS.get(key, table, partial(look_ahead, table, sample))

    def sample(self) -> FloatArray:
        known = self.bank.sample
        return np.asarray(known[np.linspace(0, known.shape[0] - 1, min(known.shape[0], _SAMPLE)).astype(np.int64)])


def _schedule(given: PolicyInputs) -> Policy:
    return Schedule.homogeneous(given.table(), given.bank.prior)


def _gate(given: PolicyInputs) -> RaggedGate:
    return RaggedGate(table=given.table(), look_ahead=given.look_ahead())


def _one_width(given: PolicyInputs) -> Policy:
    return OneWidthGate(table=given.table(), look_ahead=given.look_ahead())


def _controller(given: PolicyInputs) -> Policy:
    """With a signal that differs from round to round it gates; without one it holds a depth."""
    ahead = given.look_ahead() if given.bank.informative else None
    return Controller(table=given.table(), prior_survival=given.bank.prior, look_ahead=ahead)


def _vllm(given: PolicyInputs) -> Policy:
    return VllmAdaptive(table=by_token_count(given.table()), depth=given.max_depth)


_MAKERS: dict[str, Callable[[PolicyInputs], Policy]] = {
    "schedule": _schedule,
    "one-width": _one_width,
    "gate": _gate,
    "controller": _controller,
    "oracle": lambda given: Oracle(gate=_gate(given)),
    "vllm-adaptive": _vllm,
    "sglang": lambda given: SglangLadder(steps=tuple(sorted({min(s, given.max_depth) for s in (1, 3, 7)}))),
    "turbospec": lambda given: TurboSpec(table=by_token_count(given.table())),
    "cascade": lambda given: Cascade(max_depth=given.max_depth),
}
NAMES = ("none", "off", "fixed:K", *_MAKERS)


def check_policy(name: str, max_depth: int) -> int | None:
    """Drafts that the engine must make room for, None without speculation; refuses a name that is not one."""
    if name == "none":
        return None
    if name in _MAKERS or name == "off":
        return max_depth
    kind, _, depth = name.partition(":")
    if kind == "fixed" and depth.isascii() and depth.isdigit():
        if not 0 <= int(depth) <= max_depth:
            raise ScenarioError(f"policy {name}: the depth must lie in 0..{max_depth}")
        return int(depth)
    raise CatalogError(f"unknown policy {name!r}{nearest_names(kind, NAMES)}; known: {', '.join(NAMES)}")


def find_policy(name: str, given: PolicyInputs) -> PolicyChoice:
    held = check_policy(name, given.max_depth)
    if name in _MAKERS:
        return PolicyChoice(name=name, policy=_MAKERS[name](given), held_depth=held, told=name == "oracle")
    depth = int(name.partition(":")[2]) if name.startswith("fixed:") else 0
    return PolicyChoice(name=name, policy=FixedDepth(depth=depth), held_depth=held)
