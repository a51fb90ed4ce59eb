"""The compiled form of a policy. All kernels have the same array types, so that the code is compiled once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.policies.kernel.budget import Priced
from specmargin.policies.kernel.gate import Scratch
from specmargin.policies.kernel.learn import Learned
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.kernel.tuning import Tuning
from specmargin.policies.kernel.types import Kernel, Option, Rules
from specmargin.policies.study.lookahead import LookAhead
from specmargin.records import rows_of
from specmargin.step import FloatArray, IntArray

_NO_PRICES = PriceTable.of(
    rest_seconds=np.zeros((2, 2)),
    draft_seconds=np.zeros((2, 2)),
    expert_seconds=np.zeros(2),
    effective_by_depth=np.ones(2),
)


class _LookAheadArrays(NamedTuple):
    """A look-ahead as arrays of fixed types; placeholders if there is none."""

    depth_by_batch: IntArray
    rate_by_batch: FloatArray
    option_by_batch: FloatArray
    next_acceptance: FloatArray

    @classmethod
    def of(cls, ahead: LookAhead | None, max_depth: int) -> _LookAheadArrays:
        if ahead is None:
            return cls(np.zeros(1, dtype=np.int64), np.zeros(1), np.ones((1, 2)), np.zeros(max_depth))
        return cls(
            _int64_copy(ahead.depth_by_batch),
            _float64_copy(ahead.rate_by_batch),
            _float64_copy(ahead.option_by_batch),
            _float64_copy(ahead.next_acceptance),
        )


def schedule_kernel(depth_by_batch: IntArray) -> Kernel:
    """A depth by batch size, and nothing else."""
    ahead = _LookAheadArrays.of(None, 1)._replace(depth_by_batch=_int64_copy(depth_by_batch))
    return _make_kernel(_NO_PRICES, ahead, gates=False, learns=False)


def gate_kernel(table: PriceTable, ahead: LookAhead) -> Kernel:
    """The ragged gate with the depths of its look-ahead; it learns nothing."""
    return _make_kernel(table, _LookAheadArrays.of(ahead, table.max_depth), gates=True, learns=False)


def controller_kernel(
    table: PriceTable,
    prior_survival: FloatArray,
    ahead: LookAhead | None,
    *,
    candidates: tuple[int, ...] | None,
    budgets: bool = False,
    learn_times: bool = True,
    tuning: Tuning,
) -> Kernel:
    """`candidates`: depths that the engine runs well; None: all. `budgets`: its workers gate drafts. `learn_times`: of
    its steps."""
    return _make_kernel(
        table,
        _LookAheadArrays.of(ahead, table.max_depth),
        gates=ahead is not None,
        learns=True,
        prior=_conditional(prior_survival, table.max_depth),
        candidates=candidates,
        budgets=budgets,
        learn_times=learn_times,
        tuning=tuning,
    )


def _make_kernel(
    table: PriceTable,
    ahead: _LookAheadArrays,
    *,
    gates: bool,
    learns: bool,
    prior: FloatArray | None = None,
    candidates: tuple[int, ...] | None = None,
    budgets: bool = False,
    learn_times: bool = True,
    tuning: Tuning | None = None,
) -> Kernel:
    depths, tuned = table.max_depth, (tuning or Tuning()).as_rows()
    allowed = np.isin(np.arange(depths + 1), range(depths + 1) if candidates is None else candidates)
    rules = Rules(
        table=table,
        **ahead._asdict(),
        prior=_float64_copy(np.zeros(depths) if prior is None else prior),
        allowed=allowed,
        tuning=tuned,
        learns=learns,
        learns_times=learn_times,
        gates=gates,
        budgets=budgets,
        early_stop=gates and table.by_pass,
    )
    gated_batch = table.max_batch if budgets else 0
    scratch = Scratch.of(table.max_batch, depths)
    return Kernel(
        rules=rules,
        learned=Learned.nothing(depths, tuned, times=learn_times, gated_batch=gated_batch),
        scratch=scratch,
        options=rows_of(Option, depths + 1),
        priced=Priced.shared(table, tuned, scratch, gated_batch * depths),
    )


def _conditional(survival: FloatArray, depths: int) -> FloatArray:
    """Acceptance of each token given that the ones before it were accepted; constant beyond the last given depth."""
    clipped = np.clip(survival[:depths], 1e-6, 1.0)
    conditional = clipped / np.concatenate([[1.0], clipped[:-1]])
    padded = np.pad(conditional, (0, depths - conditional.size), mode="edge")
    return np.asarray(np.clip(padded, 0.0, 0.999))


def _float64_copy(values: npt.NDArray[Any]) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64).copy()


def _int64_copy(values: npt.NDArray[Any]) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64).copy()
