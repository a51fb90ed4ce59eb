"""Whether all ranks of an engine take part in votes, decided once: all of them, or none.

Each rank writes its statement to the store that the ranks share, and reads those of all. The verdict is that of the
rank which writes it first, so that a rank that waited in vain and one that did not come to the same end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

_PREFIX = "specmargin-vote"
_AGREED = "agreed"


class Store(Protocol):
    """PyTorch's `Store`."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    problem: str | None  # why this rank cannot vote
    same: Mapping[str, str]  # what must be the same on all ranks, by name


def agree(store: Store, statement: Statement, *, rank: int, ranks: int, patience: timedelta) -> str | None:
    """Why the ranks do not vote; None: they do. The same on every rank that calls it, if it raises on none."""
    keys = [f"{_PREFIX}/{each}" for each in range(ranks)]
    store.set(keys[rank], json.dumps({"problem": statement.problem, "same": dict(statement.same)}))
    try:
        store.wait(keys, patience)
        verdict = _verdict([_read(store.get(key)) for key in keys])
    except Exception:  # also a statement of another release
        verdict = f"a rank did not say within {patience.total_seconds():.0f} s whether it can vote"
    final = store.compare_set(f"{_PREFIX}/verdict", "", verdict).decode()
    return None if final == _AGREED else final


def _read(text: bytes) -> Statement:
    given = json.loads(text)
    return Statement(problem=given["problem"], same=given["same"])


def _verdict(statements: Sequence[Statement]) -> str:
    for rank, statement in enumerate(statements):
        if statement.problem is not None:
            return f"rank {rank}: {statement.problem}"
    first = statements[0].same
    for rank, statement in enumerate(statements):
        for name in sorted({*first, *statement.same}):
            if first.get(name) != statement.same.get(name):
                return f"ranks 0 and {rank} have different {name}"
    return _AGREED
