"""What a compiled policy is made of: constant rules, what it learns, and scratch memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specmargin.policies.kernel.budget import Priced
from specmargin.policies.kernel.gate import Scratch
from specmargin.policies.kernel.learn import Learned
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.records import Rows
from specmargin.step import BoolArray, FloatArray, IntArray


class LookAhead(NamedTuple):
    """By batch size, from 0 (not used): the depth to draft before confidences are known, and what the gate decides by.
    `study/lookahead.py` computes it."""

    depth_by_batch: IntArray
    rate_by_batch: FloatArray  # tokens per second at which the gate charges time
    option_by_batch: FloatArray  # (batches, 2): `sequence_factor` and `pass_factor` of `EarlyStop`
    next_acceptance: FloatArray  # by depth: of the next token, given that all before it are accepted

    def depth(self, batch: int) -> int:
        return int(self.depth_by_batch[min(batch, self.depth_by_batch.size - 1)])

    def rate(self, batch: int) -> float:
        return float(self.rate_by_batch[min(batch, self.rate_by_batch.size - 1)])


class Rules(NamedTuple):
    """The constant inputs of a policy. Arrays by batch and by depth start at 0."""

    table: PriceTable
    ahead: LookAhead  # of a schedule only its depths are used
    prior: FloatArray  # by depth: conditional acceptance
    allowed: BoolArray  # by depth: the engine runs it well; the table says at which batches it fits a graph
    tuning: Rows[Tuning]
    learns: bool
    learns_times: bool  # of steps; False: prices are used as they are
    gates: bool  # confidences of the drafts are known before they are verified
    budgets: bool  # the engine's workers gate drafts: how many tokens are verified is decided before these are known
    early_stop: bool  # single drafts may end between two passes


class Option:
    """A depth at the current batch, by what was learned."""

    committed: float  # tokens per sequence and round
    alive: float  # probability that the whole draft is accepted
    acceptance: float  # of the token at this depth, if those before it were accepted
    rounds: float  # that this acceptance is learned from, the prior included
    goodput: float  # tokens per sequence and second where drafts are verified whole, without the machine's speed
    log_goodput: float  # its logarithm, as the drafts are verified
    whole: float  # its logarithm where they are verified whole; differs only where workers gate them
    verified: int  # tokens per sequence that are verified, to the nearest one
    verify_weight: float  # how much the logarithm of its round moves with the slope of that verification
    draft_weight: float  # and with drafting


class Kernel(NamedTuple):
    rules: Rules
    learned: Learned
    scratch: Scratch
    options: Rows[Option]  # by depth, from 0
    priced: Priced  # what budgets are taken by


class Expectation(NamedTuple):
    """What the gate expects of the drafts that it shortened; compared with their outcome."""

    depths: IntArray
    accepted: float  # tokens
    reached: float  # tokens before the first rejection and that one
    unseen: FloatArray  # (2, depth): expected tokens reached and accepted among those left out
    acceptance: FloatArray  # (sequences, depth): of a token if those before it are accepted; negative: not drafted

    @classmethod
    def nothing(cls, max_depth: int) -> Expectation:
        return cls(np.zeros(0, dtype=np.int64), 0.0, 0.0, np.zeros((2, max_depth)), np.zeros((0, max_depth)))
