"""The sequences of a live engine: limits and pending drafts of each, and the outcome of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from specmargin.policies.kernel.types import Expectation
from specmargin.step import IntArray

DEPTH_ARGUMENT = "specmargin_depth"
CLASS_ARGUMENT = "specmargin_class"
_NO_LIMIT = 1 << 30


@dataclass(slots=True, kw_only=True)
class LiveRequest:
    """One request. `number` is derived from the request id, so that it is the same in every process."""

    number: int
    limit: int = _NO_LIMIT  # deepest draft that the request allows
    group: str = "all"
    captured: bool = False
    rounds: int = 0  # captured so far

    @property
    def is_limited(self) -> bool:
        return self.limit < _NO_LIMIT

    @classmethod
    def of(cls, request_id: str, arguments: Mapping[str, Any] | None) -> LiveRequest:
        """Read the request's arguments. Invalid values are ignored."""
        arguments = arguments or {}
        limit = arguments.get(DEPTH_ARGUMENT)
        valid = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0  # False for NaN
        group = arguments.get(CLASS_ARGUMENT)
        return cls(
            number=_number(request_id),
            limit=int(min(limit or 0, _NO_LIMIT)) if valid else _NO_LIMIT,
            group=group[:64] if isinstance(group, str) and group else "all",
        )


def _number(request_id: str) -> int:
    """A 63-bit hash: a collision, which would mix two requests in a bank, is unlikely among a million requests."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) >> 1


class Batch:
    """The sequences of a step. Reused while the sequences stay the same, as in most steps."""

    __slots__ = ("ids", "requests")

    def __init__(self, ids: Sequence[str], requests: Mapping[str, LiveRequest]) -> None:
        self.ids = list(ids)
        self.requests = [requests.get(request_id) or LiveRequest(number=0) for request_id in ids]


@dataclass(slots=True, kw_only=True)
class StepDone:
    """The outcome of one step, by decoding sequence. Ids and contexts are empty unless rounds are captured."""

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


def confidence_by_request(ids: Sequence[str], confidence: object) -> dict[str, npt.NDArray[np.float32]]:
    """Rows that hold probabilities only, by request; nothing if there is not one row per request."""
    if confidence is None:
        return {}
    try:
        rows = np.ascontiguousarray(confidence, dtype=np.float32)  # dtype of the worker
    except (TypeError, ValueError, OverflowError, RuntimeWarning):
        return {}
    if rows.ndim != 2 or rows.shape[0] != len(ids) or not rows.shape[1]:
        return {}
    valid_by_row = np.all((rows >= 0.0) & (rows <= 1.0), axis=1)  # False for NaN
    return {request_id: row for request_id, row, valid in zip(ids, rows, valid_by_row, strict=True) if valid}
