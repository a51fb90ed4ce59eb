"""Policy files as `specmargin plan --policy` writes them now: price tables and gains of a gate, by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tests.golden.adapters.controllers import look_ahead_of, policy_of
from tests.golden.comparison import Table

MAX_BATCH, MAX_DEPTH = 64, 6
DRAFTERS = {"passes": "mtp", "block": "dflash"}  # by the name of the policy
SCHEMA: Mapping[str, pl.DataType] = {
    "policy": pl.String(),
    "field": pl.String(),
    "index": pl.Int64(),  # of the row of an array
    "values": pl.List(pl.Float64()),
}
KEY = ("policy", "field", "index")


def sample() -> npt.NDArray[np.float64]:
    """Survivals of rounds, which a look-ahead is made of."""
    chances = np.random.default_rng(20_260_801).beta(4.0, 1.2, (400, MAX_DEPTH))
    return np.asarray(np.cumprod(chances, axis=1))


def policy_text(name: str) -> str:
    return policy_of(DRAFTERS[name], sample(), max_batch=MAX_BATCH, max_depth=MAX_DEPTH)


def look_ahead_text(name: str) -> str:
    return look_ahead_of(policy_text(name), sample())


def policies_table() -> Table:
    rows = [
        {"policy": name, "field": field, "index": index, "values": values}
        for name in DRAFTERS
        for field, array in _arrays(json.loads(policy_text(name)), "")
        for index, values in enumerate(array.tolist())
    ]
    return Table(name="policies", keys=KEY, frame=pl.DataFrame(rows, schema=dict(SCHEMA), orient="row").sort(KEY))


def _arrays(value: Any, path: str) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Every number and every array of numbers, in two dimensions."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _arrays(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | int | float) and not isinstance(value, bool):
        yield path, np.atleast_2d(np.array(value, dtype=np.float64))
