"""The compiled form of a policy. All kernels have the same array types, so that the code is compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specmargin.policies.kernel.budget import Priced
from specmargin.policies.kernel.gate import Scratch
from specmargin.policies.kernel.learn import Learned
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.kernel.types import Kernel, LookAhead, Option, Rules
from specmargin.records import rows_of
from specmargin.step import FloatArray, IntArray

_SUREST = 0.999  # planned acceptance: a certain token would never be learned to fail
_NO_PRICES = PriceTable.of(
    rest_seconds=np.zeros((2, 2)),
    draft_seconds=np.zeros((2, 2)),
    expert_seconds=np.zeros(2),
    effective_by_depth=np.ones(2),
)


def schedule_kernel(depth_by_batch: IntArray) -> Kernel:
    """A depth by batch size, and nothing else."""
    kernel = make_kernel(_NO_PRICES, None)
    ahead = kernel.rules.ahead._replace(depth_by_batch=_int64_copy(depth_by_batch))
    return kernel._replace(rules=kernel.rules._replace(ahead=ahead))


def make_kernel(
    table: PriceTable,
    ahead: LookAhead | None,
    *,
    prior_survival: FloatArray | None = None,
    candidates: tuple[int, ...] | None = None,
    budgets: bool = False,
    learn_times: bool = True,
    tuning: Tuning | None = None,
) -> Kernel:
    """With a look-ahead it gates; with a `prior_survival` it learns. `candidates`: depths that the engine runs well;
    None: all. `budgets`: its workers gate drafts. `learn_times`: of its steps."""
    depths, tuned = table.max_depth, (tuning or Tuning()).as_rows()
    rules = Rules(
        table=table,
        ahead=_look_ahead_arrays(ahead, depths),
        prior=np.zeros(depths) if prior_survival is None else conditional_of(prior_survival, depths),
        allowed=np.isin(np.arange(depths + 1), range(depths + 1) if candidates is None else candidates),
        tuning=tuned,
        learns=prior_survival is not None,
        learns_times=learn_times,
        gates=ahead is not None,
        budgets=budgets,
        early_stop=ahead is not None and table.by_pass,
    )
    gated_batch = table.max_batch if budgets else 0
    learned_batch = table.max_batch if prior_survival is not None else 0
    scratch = Scratch.of(table.max_batch, depths)
    return Kernel(
        rules=rules,
        learned=Learned.nothing(learned_batch, depths, tuned, times=learn_times, gated_batch=gated_batch),
        scratch=scratch,
        options=rows_of(Option, depths + 1),
        priced=Priced.shared(table, tuned, scratch, gated_batch * depths),
    )


def conditional_of(survival: FloatArray, depths: int) -> FloatArray:
    """Acceptance of each token given that the ones before it were accepted; constant beyond the last given depth."""
    known = np.clip(survival[:depths], 1e-6, 1.0)
    conditional = np.clip(known / np.concatenate([[1.0], known[:-1]]), 0.0, _SUREST)
    return np.pad(conditional, (0, depths - conditional.size), mode="edge")


def _look_ahead_arrays(ahead: LookAhead | None, depths: int) -> LookAhead:
    """Of the types that kernels are compiled for; placeholders if there is none."""
    if ahead is None:
        return LookAhead(np.zeros(1, dtype=np.int64), np.zeros(1), np.ones((1, 2)), np.zeros(depths))
    depth_by_batch, *others = ahead
    return LookAhead(_int64_copy(depth_by_batch), *map(_float64_copy, others))


def _float64_copy(values: npt.NDArray[Any]) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64).copy()


def _int64_copy(values: npt.NDArray[Any]) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64).copy()
