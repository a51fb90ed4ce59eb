"""The sequences of a live engine: limits, acceptance history and pending drafts of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.experimental import structref

from specmargin.acceptance.calibration import FORGETTING, Logistic
from specmargin.acceptance.compiled import CalibratorTables, CompiledCalibrator, calibrated
from specmargin.compiling import StructType, compiled_entry, entry
from specmargin.policies.kernel.types import Expectation
from specmargin.records import Rows, joined, rows_of
from specmargin.step import FloatArray, IntArray

DEPTH_ARGUMENT = "specmargin_depth"
CLASS_ARGUMENT = "specmargin_class"
_NO_LIMIT = 1 << 30
_NO_ROW = 0  # history row of unknown requests


@dataclass(slots=True, kw_only=True)
class LiveRequest:
    """One request. `number` is derived from the request id, so that it is the same in every process."""

    number: int
    limit: int = _NO_LIMIT  # deepest draft that the request allows
    group: str = "all"
    history_row: int = _NO_ROW  # in `Histories.rows`
    captured: bool = False
    rounds: int = 0  # captured so far

    @property
    def is_limited(self) -> bool:
        return self.limit < _NO_LIMIT

    @classmethod
    def of(cls, request_id: str, arguments: Mapping[str, Any] | None, history_row: int = _NO_ROW) -> LiveRequest:
        """Read the request's arguments. Invalid values are ignored."""
        arguments = arguments or {}
        limit = arguments.get(DEPTH_ARGUMENT)
        valid = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0  # False for NaN
        group = arguments.get(CLASS_ARGUMENT)
        return cls(
            number=_number(request_id),
            limit=int(min(limit or 0, _NO_LIMIT)) if valid else _NO_LIMIT,
            group=group[:64] if isinstance(group, str) and group else "all",
            history_row=history_row,
        )


def _number(request_id: str) -> int:
    """A 63-bit hash: a collision, which would mix two requests in a bank, is unlikely among a million requests."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) >> 1


class Batch:
    """The sequences of a step. Reused while the sequences stay the same, as in most steps."""

    __slots__ = ("history_rows", "ids", "limited", "requests")

    def __init__(self, ids: Sequence[str], requests: Mapping[str, LiveRequest]) -> None:
        self.ids = list(ids)
        self.requests = [requests.get(request_id) or LiveRequest(number=0) for request_id in ids]
        self.history_rows: IntArray = np.array([request.history_row for request in self.requests], dtype=np.int64)
        self.limited = any(request.is_limited for request in self.requests)


@dataclass(slots=True, kw_only=True)
class StepDone:
    """The outcome of one step, by decoding sequence. Ids and contexts are empty unless `Driver.by_request`."""

    verified: IntArray
    accepted: IntArray
    verified_tokens: int
    accepted_tokens: int
    request_ids: Sequence[str] = ()
    contexts: Sequence[int] = ()
    prompt_tokens: int
    seconds: float  # NaN: not timed
    distinct_experts: float = math.nan
    # Of a gate in the workers:
    expected: Expectation | None = None
    acceptance: npt.NDArray[np.float32] | None = None  # (sequences, depth): conditional, of tokens that were drafted
    depth: int = 0  # of the deepest draft before any was cut
    confidence: npt.NDArray[np.float32] | None = None  # (sequences, depth): of the drafter, for a capture
    worker_faults: int = 0  # so far

    @classmethod
    def of(cls, verified: IntArray, accepted: IntArray, **others: Any) -> StepDone:
        """With the tokens counted."""
        tokens = int(verified.sum()), int(accepted.sum())
        return cls(verified=verified, accepted=accepted, verified_tokens=tokens[0], accepted_tokens=tokens[1], **others)

    @classmethod
    def nothing(cls, prompt_tokens: int = 0) -> StepDone:
        """No sequence decoded."""
        nobody = np.zeros(0, dtype=np.int64)
        return cls.of(nobody, nobody, prompt_tokens=prompt_tokens, seconds=math.nan)


class History:
    """Acceptance in the recent rounds of one sequence."""

    accepted: float  # tokens, decayed
    tried: float  # tokens reached, decayed
    log_odds: float  # of acceptance, as in `calibration.history_of`


class Histories:
    """Histories of all live sequences, one row each. Rows of finished requests are reused."""

    def __init__(self, capacity: int = 64) -> None:
        self.rows = rows_of(History, capacity)
        self._free = list(range(capacity - 1, _NO_ROW, -1))

    def allocate(self) -> int:
        if not self._free:
            before = self.rows.size
            self.rows = joined(self.rows, rows_of(History, before))
            self._free = list(range(2 * before - 1, before - 1, -1))
        history_row = self._free.pop()
        for name in ("accepted", "tried", "log_odds"):
            self.rows[name][history_row] = 0.0
        return history_row

    def release(self, history_row: int) -> None:
        if history_row != _NO_ROW:
            self._free.append(history_row)

    def learn(self, batch: Batch, verified: IntArray, accepted: IntArray) -> None:
        _learn(self.rows, batch.history_rows, verified, accepted)


class Drafts:
    """Confidences of the pending drafts: one row per request, or None."""

    __slots__ = ("confidence", "ids", "seconds")

    def __init__(self, ids: Sequence[str] = (), confidence: object = None, seconds: float = 0.0) -> None:
        self.ids, self.confidence, self.seconds = ids, confidence, seconds

    def rows(self) -> npt.NDArray[np.float32] | None:
        """(requests, depth), not yet checked to be probabilities; None if missing or of the wrong shape."""
        if self.confidence is None:
            return None
        try:
            rows = np.ascontiguousarray(self.confidence, dtype=np.float32)  # dtype of the worker
        except (TypeError, ValueError, OverflowError, RuntimeWarning):
            return None
        return rows if rows.ndim == 2 and rows.shape[0] == len(self.ids) else None

    def by_request(self) -> dict[str, npt.NDArray[np.float32]]:
        """Rows that hold probabilities only, by request."""
        rows = self.rows()
        if rows is None or not rows.shape[1]:
            return {}
        valid_by_row = np.all((rows >= 0.0) & (rows <= 1.0), axis=1)  # False for NaN
        return {request_id: row for request_id, row, valid in zip(self.ids, rows, valid_by_row, strict=True) if valid}


class _Memory(NamedTuple):
    """Buffers of `Survivals`, by sequence and depth, with the calibrator's tables."""

    confidence: FloatArray
    history: FloatArray  # by sequence
    missing: IntArray  # sequences without a valid row
    survival: FloatArray
    tables: CalibratorTables
    is_calibrated: bool


@structref.register
class _HandleType(StructType):
    pass


class _Handle(structref.StructRefProxy):
    """The buffers as compiled code holds them."""

    if TYPE_CHECKING:
        memory: _Memory

    def __new__(cls, memory: _Memory) -> _Handle:  # Numba's own compiles anew in every process
        return _held(memory)


structref.define_proxy(_Handle, _HandleType, ["memory"])  # type: ignore[no-untyped-call]


@entry
def _held(memory: _Memory) -> _Handle:
    return _Handle(memory)


class Survivals:
    """Turns the confidences of a batch into survivals, calibrated if the policy has a calibrator."""

    def __init__(self, *, calibrator: Logistic | None, max_batch: int, max_depth: int) -> None:
        self.max_batch = max_batch
        self._depth = max_depth if calibrator is None else min(max_depth, calibrator.depths)
        compiled_calibrator = None if calibrator is None else CompiledCalibrator(calibrator, max_batch)
        self._in_order = np.arange(max_batch)
        self._memory = _Memory(
            confidence=np.zeros((max_batch, self._depth)),
            history=np.zeros(max_batch),
            missing=np.zeros(max_batch, dtype=np.int64),
            survival=np.zeros((max_batch, self._depth)),
            tables=CalibratorTables.nothing() if compiled_calibrator is None else compiled_calibrator.tables,
            is_calibrated=compiled_calibrator is not None,
        )
        self._handle = _Handle(self._memory)

    def of(
        self, batch: Batch, drafts: Drafts, histories: Histories, mean: Callable[[], FloatArray]
    ) -> tuple[FloatArray | None, int]:
        """Survival (sequences, depth), valid until the next call, and the number of invalid rows. None if no sequence
        has a valid row; sequences without one get the `mean`."""
        count, rows = len(batch.ids), drafts.rows()
        if rows is None:
            return None, 0 if drafts.confidence is None else count
        if count > self.max_batch:
            return None, 0
        row_by_sequence = (
            self._in_order[:count] if drafts.ids == batch.ids else _rows_by_sequence(drafts.ids, batch.ids)
        )
        missing, invalid = _fill(self._handle, rows, row_by_sequence, histories.rows, batch.history_rows)
        if missing == count:
            return None, invalid
        survival = self._memory.survival[:count]
        if missing:
            mean_survival = mean()[: self._depth]
            survival[self._memory.missing[:missing]] = np.pad(mean_survival, (0, self._depth - mean_survival.size))
        return survival, invalid


def _rows_by_sequence(all_ids: Sequence[str], ids: Sequence[str]) -> IntArray:
    """Index of each of `ids` in `all_ids`; -1 if absent."""
    index_by_id = {request_id: i for i, request_id in enumerate(all_ids)}
    return np.array([index_by_id.get(request_id, -1) for request_id in ids], dtype=np.int64)


# --- compiled ---


@entry
def _fill(
    handle: _Handle,
    rows: npt.NDArray[np.float32],
    row_by_sequence: IntArray,
    histories: Rows[History],
    history_rows: IntArray,
) -> tuple[int, int]:
    """Fill the survivals of a batch, and `missing` with the sequences without a valid row. Returns the number of these,
    and the number of rows that hold values outside 0..1."""
    memory = handle.memory
    confidence, history, missing, survival = memory.confidence, memory.history, memory.missing, memory.survival
    width, depth, count, invalid = rows.shape[1], confidence.shape[1], 0, 0
    for i in range(row_by_sequence.size):
        history[i] = histories[history_rows[i]].log_odds
        row = row_by_sequence[i]
        valid = row >= 0 and width > 0
        for d in range(width if valid else 0):
            if not 0.0 <= rows[row, d] <= 1.0:  # also NaN
                valid = False
                invalid += 1
                break
        if not valid:
            missing[count] = i
            count += 1
        for d in range(depth):
            confidence[i, d] = rows[row, d] if valid and d < width else 0.0
    if memory.is_calibrated:
        calibrated(confidence[: row_by_sequence.size], history, memory.tables, survival)
        return count, invalid
    for i in range(row_by_sequence.size):
        alive = 1.0
        for d in range(depth):
            alive *= confidence[i, d]
            survival[i, d] = alive
    return count, invalid


@compiled_entry
def _learn(histories: Rows[History], history_rows: IntArray, verified: IntArray, accepted: IntArray) -> None:
    for i in range(history_rows.size):
        if history_rows[i] == _NO_ROW or verified[i] == 0:
            continue
        history = histories[history_rows[i]]
        history.accepted = FORGETTING * history.accepted + accepted[i]
        history.tried = FORGETTING * history.tried + min(accepted[i] + 1, verified[i])
        share = min(max((history.accepted + 0.5) / (history.tried + 1.0), 1e-4), 1.0 - 1e-4)
        history.log_odds = math.log(share / (1.0 - share))
