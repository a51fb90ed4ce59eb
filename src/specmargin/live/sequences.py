"""The sequences of a live engine: what each allows, how its last rounds went, and the drafts that they hold."""

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
from specmargin.compiling import StructType, compiled, entry
from specmargin.records import Rows, joined, rows_of
from specmargin.step import FloatArray, IntArray

DEPTH_ARGUMENT = "specmargin_depth"
CLASS_ARGUMENT = "specmargin_class"
_NO_LIMIT = 1 << 30
_NOBODY = 0  # the place of requests that we never heard of


@dataclass(slots=True, kw_only=True)
class Live:
    """One request. `number` is the same in every process, without their talking to each other."""

    number: int
    limit: int = _NO_LIMIT  # deepest draft that it allows
    group: str = "all"
    place: int = _NOBODY  # in the histories
    captured: bool = False
    rounds: int = 0  # so far, where they are captured

    @classmethod
    def of(cls, request_id: str, arguments: Mapping[str, Any] | None, place: int = _NOBODY) -> Live:
        """What the request asks for; what cannot be read is not a wish."""
        given = arguments or {}
        limit = given.get(DEPTH_ARGUMENT)
        limited = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0  # False for NaN
        group = given.get(CLASS_ARGUMENT)
        return cls(
            number=_number(request_id),
            limit=int(min(limit or 0, _NO_LIMIT)) if limited else _NO_LIMIT,
            group=group[:64] if isinstance(group, str) and group else "all",
            place=place,
        )


def _number(request_id: str) -> int:
    """63 bits: of a million requests, no two are likely to share one, which would spoil their bank."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) >> 1


class Batch:
    """The sequences of a step. Most steps have those of the step before, so it is kept."""

    __slots__ = ("drafted", "ids", "limited", "lives", "places")

    def __init__(self, ids: Sequence[str], known: Mapping[str, Live]) -> None:
        self.ids = list(ids)
        self.lives = [known.get(request_id) or Live(number=0) for request_id in ids]
        self.places: IntArray = np.array([live.place for live in self.lives], dtype=np.int64)
        self.drafted = np.zeros_like(self.places)  # to be filled
        self.limited = any(live.limit < _NO_LIMIT for live in self.lives)


@dataclass(slots=True, kw_only=True)
class StepDone:
    """One step as the engine saw it, by decoding sequence."""

    request_ids: list[str]
    verified: list[int]
    accepted: list[int]
    contexts: list[int]
    prompt_tokens: int
    seconds: float  # NaN where it was not timed
    distinct_experts: float = math.nan


class History:
    """How the last rounds of one sequence went."""

    accepted: float  # tokens, forgetting
    tried: float  # tokens reached, forgetting
    log_odds: float  # that its tokens are accepted, as `calibration.history_of` has it


class Histories:
    """Histories of every live sequence, by place. Places of requests that are over are given again."""

    def __init__(self, places: int = 64) -> None:
        self.rows = rows_of(History, places)
        self._free = list(range(places - 1, _NOBODY, -1))

    def take(self) -> int:
        if not self._free:
            before = self.rows.size
            self.rows = joined(self.rows, rows_of(History, before))
            self._free = list(range(2 * before - 1, before - 1, -1))
        place = self._free.pop()
        for name in ("accepted", "tried", "log_odds"):
            self.rows[name][place] = 0.0
        return place

    def give_back(self, place: int) -> None:
        if place != _NOBODY:
            self._free.append(place)

    def learn(self, batch: Batch, verified: IntArray, accepted: IntArray) -> None:
        _learn(self.rows, batch.places, verified, accepted)


class Drafts:
    """Confidences of the drafts in hand: a row a request, or None."""

    __slots__ = ("confidence", "ids", "seconds")

    def __init__(self, ids: Sequence[str] = (), confidence: object = None, seconds: float = 0.0) -> None:
        self.ids, self.confidence, self.seconds = ids, confidence, seconds

    def rows(self) -> npt.NDArray[np.float32] | None:
        """(requests, depth); None where none came, or where they do not fit. Whether they are probabilities is seen
        later."""
        if self.confidence is None:
            return None
        try:
            rows = np.ascontiguousarray(self.confidence, dtype=np.float32)  # as a worker has them
        except (TypeError, ValueError, OverflowError, RuntimeWarning):
            return None
        return rows if rows.ndim == 2 and rows.shape[0] == len(self.ids) else None

    def by_request(self) -> dict[str, npt.NDArray[np.float32]]:
        """Only rows of probabilities."""
        rows = self.rows()
        if rows is None or not rows.shape[1]:
            return {}
        good = np.all((rows >= 0.0) & (rows <= 1.0), axis=1)  # False for NaN
        return {request_id: row for request_id, row, fine in zip(self.ids, rows, good, strict=True) if fine}


class _Memory(NamedTuple):
    """Of `Survivals`: made once, by sequence and depth, with the calibrator's tables."""

    confidence: FloatArray
    history: FloatArray  # by sequence
    missing: IntArray  # sequences that have no usable row
    survival: FloatArray
    tables: CalibratorTables
    is_calibrated: bool


@structref.register
class _HandleType(StructType):
    pass


class _Handle(structref.StructRefProxy):
    """The memory as compiled code keeps it."""

    if TYPE_CHECKING:

        def __init__(self, memory: _Memory) -> None: ...

        memory: _Memory


structref.define_proxy(_Handle, _HandleType, ["memory"])  # type: ignore[no-untyped-call]


class Survivals:
    """Confidences of a batch into survivals: calibrated where the policy knows how, as they are where it does not."""

    def __init__(self, *, calibrator: Logistic | None, max_batch: int, max_depth: int) -> None:
        self.max_batch = max_batch
        self._depth = max_depth if calibrator is None else min(max_depth, calibrator.depths)
        known = None if calibrator is None else CompiledCalibrator(calibrator, max_batch)
        self._in_order = np.arange(max_batch)
        self._memory = _Memory(
            confidence=np.zeros((max_batch, self._depth)),
            history=np.zeros(max_batch),
            missing=np.zeros(max_batch, dtype=np.int64),
            survival=np.zeros((max_batch, self._depth)),
            tables=CalibratorTables.nothing() if known is None else known.tables,
            is_calibrated=known is not None,
        )
        self._handle = _Handle(self._memory)

    def of(
        self, batch: Batch, drafts: Drafts, histories: Histories, mean: Callable[[], FloatArray]
    ) -> tuple[FloatArray | None, int]:
        """(sequences, depth), valid until the next call, and how many promised rows cannot be used; None where no
        sequence has a usable one. `mean` stands in for some."""
        count, rows = len(batch.ids), drafts.rows()
        if rows is None:
            return None, 0 if drafts.confidence is None else count
        if count > self.max_batch:
            return None, 0
        at = self._in_order[:count] if drafts.ids == batch.ids else _places(drafts.ids, batch.ids)
        missing, bad = _fill(self._handle, rows, at, histories.rows, batch.places)
        if missing == count:
            return None, bad
        survival = self._memory.survival[:count]
        if missing:
            learned = mean()[: self._depth]
            survival[self._memory.missing[:missing]] = np.pad(learned, (0, self._depth - learned.size))
        return survival, bad


def _places(all_ids: Sequence[str], ids: Sequence[str]) -> IntArray:
    """Of each of `ids` among all; -1 where it is not."""
    at = {request_id: i for i, request_id in enumerate(all_ids)}
    return np.array([at.get(request_id, -1) for request_id in ids], dtype=np.int64)


# --- compiled ---


@entry
def _fill(
    handle: _Handle, rows: npt.NDArray[np.float32], at: IntArray, histories: Rows[History], places: IntArray
) -> tuple[int, int]:
    """Fill the memory's survivals for a batch, and `missing` with those that have no usable row; how many they are, and
    how many rows there are that hold a number that is no probability."""
    memory = handle.memory
    confidence, history, missing, survival = memory.confidence, memory.history, memory.missing, memory.survival
    width, depth, count, bad = rows.shape[1], confidence.shape[1], 0, 0
    for i in range(at.size):
        history[i] = histories[places[i]].log_odds
        row = at[i]
        known = row >= 0 and width > 0
        for d in range(width if known else 0):
            if not 0.0 <= rows[row, d] <= 1.0:  # also NaN
                known = False
                bad += 1
                break
        if not known:
            missing[count] = i
            count += 1
        for d in range(depth):
            confidence[i, d] = rows[row, d] if known and d < width else 0.0
    if memory.is_calibrated:
        calibrated(confidence[: at.size], history, memory.tables, survival)
        return count, bad
    for i in range(at.size):
        alive = 1.0
        for d in range(depth):
            alive *= confidence[i, d]
            survival[i, d] = alive
    return count, bad


@compiled
def _learn(histories: Rows[History], places: IntArray, verified: IntArray, accepted: IntArray) -> None:
    for i in range(places.size):
        if places[i] == _NOBODY or verified[i] == 0:
            continue
        history = histories[places[i]]
        history.accepted = FORGETTING * history.accepted + accepted[i]
        history.tried = FORGETTING * history.tried + min(accepted[i] + 1, verified[i])
        share = min(max((history.accepted + 0.5) / (history.tried + 1.0), 1e-4), 1.0 - 1e-4)
        history.log_odds = math.log(share / (1.0 - share))
