"""From what a policy is given to its compiled form. All kernels have the same array types, so that one is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.policies.kernel.decide import Kernel, Rules, Tuning
from specmargin.policies.kernel.gate import Scratch
from specmargin.policies.kernel.learn import Learned
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.lookahead import LookAhead
from specmargin.records import Rows, rows_of
from specmargin.step import FloatArray, IntArray

_NO_PRICES = PriceTable.of(
    rest_seconds=np.zeros((2, 2)),
    draft_seconds=np.zeros((2, 2)),
    expert_seconds=np.zeros(2),
    effective_by_depth=np.ones(2),
)


class _Ahead(NamedTuple):
    """A look-ahead as arrays of fixed types; of no meaning where there is none."""

    depth_by_batch: IntArray
    rate_by_batch: FloatArray
    option_by_batch: FloatArray
    next_acceptance: FloatArray

    @classmethod
    def of(cls, ahead: LookAhead | None, max_depth: int) -> _Ahead:
        if ahead is None:
            return cls(np.zeros(1, dtype=np.int64), np.zeros(1), np.ones((1, 2)), np.zeros(max_depth))
        return cls(
            _whole(ahead.depth_by_batch),
            _real(ahead.rate_by_batch),
            _real(ahead.option_by_batch),
            _real(ahead.next_acceptance),
        )


def schedule_kernel(depth_by_batch: IntArray) -> Kernel:
    """A depth by batch size, and nothing else."""
    ahead = _Ahead.of(None, 1)._replace(depth_by_batch=_whole(depth_by_batch))
    return _kernel(_NO_PRICES, ahead, gates=False, learns=False)


def gate_kernel(table: PriceTable, ahead: LookAhead) -> Kernel:
    """The ragged gate with the depths of its look-ahead; it learns nothing."""
    return _kernel(table, _Ahead.of(ahead, table.max_depth), gates=True, learns=False)


def controller_kernel(
    table: PriceTable,
    prior_survival: FloatArray,
    ahead: LookAhead | None,
    *,
    candidates: tuple[int, ...] | None,
    early_stop: bool,
    tuning: Rows[Tuning],
) -> Kernel:
    """`candidates`: depths that the engine is good at; None: all. `early_stop`: it can end single drafts early."""
    return _kernel(
        table,
        _Ahead.of(ahead, table.max_depth),
        gates=ahead is not None,
        learns=True,
        prior=_conditional(prior_survival, table.max_depth),
        candidates=candidates,
        early_stop=early_stop,
        tuning=tuning,
    )


def _kernel(
    table: PriceTable,
    ahead: _Ahead,
    *,
    gates: bool,
    learns: bool,
    prior: FloatArray | None = None,
    candidates: tuple[int, ...] | None = None,
    early_stop: bool = True,
    tuning: Rows[Tuning] | None = None,
) -> Kernel:
    depths = table.max_depth
    allowed = np.isin(np.arange(depths + 1), [0, *(range(depths + 1) if candidates is None else candidates)])
    chosen = np.flatnonzero(allowed)
    rules = Rules(
        table=table,
        **ahead._asdict(),
        prior=_real(np.zeros(depths) if prior is None else prior),
        allowed=allowed,
        floor=_whole(chosen[np.searchsorted(chosen, np.arange(depths + 1), side="right") - 1]),
        tuning=rows_of(Tuning) if tuning is None else tuning,
        learns=learns,
        gates=gates,
        early_stop=early_stop and table.by_pass,
        selective=early_stop or not table.by_pass,
    )
    return Kernel(rules, Learned.nothing(depths), Scratch.of(table.max_batch, depths))


def _conditional(survival: FloatArray, depths: int) -> FloatArray:
    """Acceptance of each token whose predecessors were accepted; beyond the last known one it stays as it is."""
    known = np.clip(survival[:depths], 1e-6, 1.0)
    conditional = known / np.concatenate([[1.0], known[:-1]])
    padded = np.pad(conditional, (0, depths - conditional.size), mode="edge")
    return np.asarray(np.clip(padded, 0.0, 0.999))


def _real(values: npt.NDArray[Any]) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64).copy()


def _whole(values: npt.NDArray[Any]) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64).copy()
