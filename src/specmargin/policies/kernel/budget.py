"""How many draft tokens of all its sequences a step verifies. Which ones is decided on the GPU, after the launch.

The engine must know the total before it launches the step, because it picks the CUDA graph by it. The confidences of
the drafts are not known on the host by then, so the value of a total is estimated from recent rounds of the same
sequences: in each round tokens are taken in the order of the ragged gate, and the total with the most tokens per second
over all rounds is chosen, unless verifying all of them is nearly as good. One round predicts the next one of a large
batch well, and of a single sequence badly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specmargin.compiler import (
    HandleBase,
    StructType,
    compiled,
    compiled_entry,
    define_handle,
    entry,
    fast_apart,
    register,
)
from specmargin.policies.kernel.gate import Scratch, depth_of, fill_weights, sequence_of, sort_tokens
from specmargin.policies.kernel.prices import FIRST_CONTEXT, PriceTable, ragged_parts
from specmargin.policies.kernel.tuning import Tuning
from specmargin.records import Rows
from specmargin.step import FloatArray, IntArray

# Floors of arithmetic, far below any token that pays:
LEAST_KEY = 1e-12  # tokens below it are ranked alike
LEAST_SURVIVAL = 1e-9  # tokens that cannot survive are sorted too, last
_LEAST_WEIGHT = 1e-6


@compiled_entry
def rounds_for(tuning: Tuning, batch: int) -> int:
    """How many of its recent rounds a batch is judged by."""
    return min(max(tuning.enough_sequences // max(batch, 1), 1), tuning.recent_rounds)


class StepShape(NamedTuple):
    """What a step runs beside the draft tokens that it verifies."""

    sampling: int  # sequences that get a token
    prompt_tokens: int
    draft_seconds: float  # of drafting at its end
    most: int  # draft tokens that the engine can verify in one step


class Priced(NamedTuple):
    """What budgets are taken by, with the memory to do it."""

    table: PriceTable
    tuning: Rows[Tuning]
    sizes: IntArray  # positions of the captured graphs, rising; steps are padded to them
    scratch: Scratch
    tokens: FloatArray  # by budget: expected tokens, summed over rounds
    seconds: FloatArray  # by budget, the same

    @classmethod
    def of(cls, table: PriceTable, tuning: Rows[Tuning], sizes: IntArray) -> Priced:
        scratch = Scratch.of(table.max_batch, table.max_depth)
        return cls.shared(table, tuning, scratch, table.max_batch * table.max_depth, sizes)

    @classmethod
    def shared(
        cls, table: PriceTable, tuning: Rows[Tuning], scratch: Scratch, most: int, sizes: IntArray | None = None
    ) -> Priced:
        """With memory that others use too. `most`: the largest budget. Without `sizes` steps are not padded."""
        sizes = np.zeros(0, dtype=np.int64) if sizes is None else sizes
        return cls(table, tuning, sizes, scratch, np.zeros(most + 1), np.zeros(most + 1))


@register
class _HandleType(StructType):
    pass


class Handle(HandleBase):
    """The prices as compiled code holds them: passing their arrays would take longer than the decision."""

    if TYPE_CHECKING:

        def __init__(self, priced: Priced) -> None: ...

        priced: Priced


define_handle(Handle, _HandleType, "priced")


@entry
def held(priced: Priced) -> Handle:
    """Compiled once and cached: the constructor that Python calls would be compiled in every process."""
    return Handle(priced)


@entry
def best_budget(
    handle: Handle, survival: FloatArray, drafted: IntArray, shape: StepShape, factors: FloatArray
) -> tuple[int, float, float]:
    """`choose_budget` for Python: all of these rounds."""
    return choose_budget(handle.priced, survival, survival.shape[0], drafted, shape, factors)


@fast_apart
def choose_budget(
    priced: Priced, survival: FloatArray, rounds: int, drafted: IntArray, shape: StepShape, factors: FloatArray
) -> tuple[int, float, float]:
    """Draft tokens to verify, and the tokens per second expected with them and with whole drafts. `survival`: (rounds,
    sequences, depth), as deep as the prices, of which the first `rounds` and the sequences that `drafted` has are used.
    `factors`: by depth from 0, of the price of verifying that deep."""
    batch, deepest, total = drafted.size, survival.shape[2], 0
    for i in range(batch):
        total += min(drafted[i], deepest)
    total = min(total, shape.most)
    priced.tokens[: total + 1] = 0.0
    priced.seconds[: total + 1] = 0.0
    for r in range(rounds):
        one = survival[r, :batch]
        sort_tokens(priced.table, one, drafted, 0.0, 0.0, priced.scratch)
        _add_round(priced, one, shape, factors, total)
    best, budget = -1.0, 0
    for n in range(total + 1):
        value = priced.tokens[n] / priced.seconds[n]
        if value > best:
            best, budget = value, n
    whole = priced.tokens[total] / priced.seconds[total]
    return (total, whole, whole) if whole * (1.0 + priced.tuning[0].worth_cutting) >= best else (budget, best, whole)


@compiled
def _add_round(priced: Priced, survival: FloatArray, shape: StepShape, factors: FloatArray, total: int) -> None:
    """Add what every budget would give and take in a round whose tokens are sorted."""
    table, sizes, order = priced.table, priced.sizes, priced.scratch.order
    batch, deepest = survival.shape
    effective, rest_by_depth = table.effective_by_depth, table.rest_seconds[batch, :, 0]
    per_token = max((rest_by_depth[deepest] - rest_by_depth[0]) / (batch * deepest), 0.0)
    fixed = shape.draft_seconds + per_token * shape.prompt_tokens
    positions = batch * effective[0] + shape.prompt_tokens * (effective[deepest] - effective[deepest - 1])
    alone = batch + shape.prompt_tokens
    tokens, graph = float(shape.sampling), 0
    for n in range(total + 1):
        if n > 0:
            i, d = sequence_of(order[n - 1]), depth_of(order[n - 1])
            tokens += survival[i, d]
            positions += effective[d + 1] - effective[d]
        while graph < sizes.size and sizes[graph] < alone + n:
            graph += 1
        padded = sizes[graph] if graph < sizes.size else alone + n
        depth = min((padded - alone) / batch, float(deepest))
        rest, experts = ragged_parts(table, batch, depth, positions, FIRST_CONTEXT)
        low = min(int(n / batch), deepest - 1)
        factor = factors[low] + (n / batch - low) * (factors[low + 1] - factors[low])
        priced.tokens[n] += tokens
        priced.seconds[n] += fixed + (rest + experts) * factor


@entry
def fill_token_weights(table: PriceTable, batch: int, weights: FloatArray) -> None:
    """Fill `weights`, by depth, with what survival is multiplied by to rank tokens, as in `sort_tokens`."""
    fill_weights(table, batch, weights)


def token_weights(table: PriceTable, depths: int) -> FloatArray:
    """(batch, depth), from batch 0, which is not used. Positive."""
    weights = np.ones((table.max_batch + 1, depths))
    for batch in range(1, table.max_batch + 1):
        fill_token_weights(table, batch, weights[batch])
    return np.clip(np.nan_to_num(weights, nan=1.0, posinf=1.0), _LEAST_WEIGHT, 1.0 / _LEAST_WEIGHT)


def ranking_keys(survival: FloatArray, weights: FloatArray) -> FloatArray:
    """(sequences, depth): what tokens are ranked by. Never rises along a sequence, so that the best tokens of a batch
    are a prefix of each draft."""
    return np.minimum.accumulate(np.asarray(survival * weights), axis=1)


def ranking_confidences(confidence: FloatArray, weights: FloatArray) -> FloatArray:
    """Conditional probabilities whose running product is `ranking_keys`, for an engine that ranks by that product."""
    clean = np.clip(np.nan_to_num(confidence, nan=0.0), 0.0, 1.0)
    keys = np.maximum(ranking_keys(np.asarray(np.cumprod(clean, axis=1, dtype=np.float64)), weights), LEAST_KEY)
    before = np.concatenate([np.ones((keys.shape[0], 1)), keys[:, :-1]], axis=1)
    return np.asarray(keys / before)
