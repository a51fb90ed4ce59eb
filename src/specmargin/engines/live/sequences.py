"""The sequences of a live engine: what each allows, how its last rounds went, and the draft that it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from specmargin.acceptance.calibration import FORGETTING, Logistic
from specmargin.acceptance.compiled import CompiledCalibrator
from specmargin.step import FloatArray

DEPTH_ARGUMENT = "specmargin_depth"
CLASS_ARGUMENT = "specmargin_class"
_NO_LIMIT = 1 << 30
_NOTHING: FloatArray = np.zeros(0)


@dataclass(slots=True, kw_only=True)
class Live:
    """One request. `number` is the same in every process, without their talking to each other."""

    number: int
    limit: int = _NO_LIMIT  # deepest draft that it allows
    group: str = "all"
    rounds: int = 0
    confidence: FloatArray | None = None  # of the draft in hand
    captured: bool = False
    hits: float = 0.0
    tries: float = 0.0
    history: float = 0.0  # log-odds that its tokens are accepted, as `calibration.history_of` has it

    @classmethod
    def of(cls, request_id: str, arguments: Mapping[str, Any] | None) -> Live:
        """What the request asks for; what cannot be read is not a wish."""
        given = arguments or {}
        limit = given.get(DEPTH_ARGUMENT)
        limited = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0  # False for NaN
        group = given.get(CLASS_ARGUMENT)
        return cls(
            number=_number(request_id),
            limit=int(min(limit or 0, _NO_LIMIT)) if limited else _NO_LIMIT,
            group=group[:64] if isinstance(group, str) and group else "all",
        )

    def learn(self, verified: int, accepted: int) -> None:
        self.rounds += 1
        self.hits = FORGETTING * self.hits + accepted
        self.tries = FORGETTING * self.tries + min(accepted + 1, verified)
        share = min(max((self.hits + 0.5) / (self.tries + 1.0), 1e-4), 1.0 - 1e-4)
        self.history = math.log(share / (1.0 - share))


def _number(request_id: str) -> int:
    """63 bits: of a million requests, no two are likely to share one, which would spoil their bank."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) >> 1


@dataclass(kw_only=True)
class Survivals:
    """Confidences of a batch into survivals: calibrated where the policy knows how, as they are where it does not."""

    calibrator: Logistic | None
    max_batch: int
    max_depth: int
    _compiled: CompiledCalibrator | None = field(init=False)
    _confidence: FloatArray = field(init=False)
    _history: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._compiled = None if self.calibrator is None else CompiledCalibrator(self.calibrator, self.max_batch)
        depth = self.max_depth if self.calibrator is None else min(self.max_depth, self.calibrator.depths)
        self._confidence, self._history = np.zeros((self.max_batch, depth)), np.zeros(self.max_batch)
        if self._compiled is not None:  # compiled now, not in the first step
            self._compiled.survival(self._confidence[:1], self._history[:1])

    def of(self, batch: Sequence[Live], mean: Callable[[], FloatArray]) -> FloatArray | None:
        """(sequences, depth); None where no sequence has a usable confidence. `mean` stands in for some."""
        count, depth = len(batch), self._confidence.shape[1]
        if count > self.max_batch:
            return None
        confidence, missing = self._confidence[:count], []
        for i, sequence in enumerate(batch):
            row = sequence.confidence
            if row is None or not row.size:
                missing.append(i)
                confidence[i] = 0.0
                continue
            width = min(row.size, depth)
            confidence[i, :width] = row[:width]
            confidence[i, width:] = 0.0
            self._history[i] = sequence.history
        if len(missing) == count:
            return None
        if self._compiled is None:
            survival = np.asarray(np.cumprod(confidence, axis=1), dtype=np.float64)
        else:
            survival = self._compiled.survival(confidence, self._history[:count])
        learned = mean() if missing else _NOTHING
        for i in missing:
            width = min(learned.size, depth)
            survival[i, :width] = learned[:width]
            survival[i, width:] = 0.0
        return survival


def usable(confidence: object, sequences: int) -> list[FloatArray | None]:
    """A row of confidences a sequence; None where one of them is no probability, or where they do not fit."""
    try:
        rows = np.asarray(confidence, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return [None] * sequences
    if rows.ndim != 2 or rows.shape[0] != sequences:
        return [None] * sequences
    good = np.all((rows >= 0.0) & (rows <= 1.0), axis=1)  # False for NaN
    return list(rows) if good.all() else [row if fine else None for row, fine in zip(rows, good, strict=True)]
