"""Banks of draft rounds: tokens drafted, the drafter's confidences, and tokens accepted.

The specdec-calibration layout (`acceptance.parquet` and `speculator.parquet`, joined on their keys), a CSV of rounds
(`commits,category,a0..`), or vLLM's detailed speculation metrics (JSON lines). Any number of files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specmargin.errors import AcceptanceError, MissingExtraError, needs_extra
from specmargin.files import Columns, as_numbers, read_csv, read_json_lines, scan_parquet
from specmargin.limits import MAX_DEPTH
from specmargin.step import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import polars as pl

KEYS = ("model", "speculator", "config", "category", "prompt_idx", "turn", "round_idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds in order of (prompt, turn, round). Confidences are NaN where a bank has none, or nothing was drafted."""

    category_by_round: tuple[str, ...]
    prompt_by_round: IntArray  # the request: rounds of the same request are not independent
    round_index: IntArray
    drafted_by_round: IntArray
    accepted_by_round: IntArray
    confidence_by_round_depth: FloatArray
    speculator: str
    source: str

    def __post_init__(self) -> None:
        if self.drafted_by_round.size == 0:
            raise AcceptanceError(f"{self.source}: has no rounds")
        wrong = (self.accepted_by_round < 0) | (self.accepted_by_round > self.drafted_by_round)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise AcceptanceError(
                f"{self.source}: round {first} accepts {self.accepted_by_round[first]} of "
                f"{self.drafted_by_round[first]} draft tokens"
            )
        if int(self.drafted_by_round.max()) > self.depth:
            raise AcceptanceError(
                f"{self.source}: a round drafts {self.drafted_by_round.max()} tokens, but there are {self.depth} depths"
            )
        confidence = self.confidence_by_round_depth
        values = confidence[~np.isnan(confidence)]
        if values.size and not np.all((values >= 0.0) & (values <= 1.0)):
            raise AcceptanceError(f"{self.source}: confidences must lie in 0..1")

    @property
    def count(self) -> int:
        return int(self.drafted_by_round.size)

    @property
    def depth(self) -> int:
        return int(self.confidence_by_round_depth.shape[1])

    @property
    def has_confidence(self) -> bool:
        """Whether every drafted token has a confidence."""
        return bool(self.drafted_by_round.any()) and not bool(self._without_confidence.any())

    @property
    def _without_confidence(self) -> BoolArray:
        drafted = np.arange(self.depth) < self.drafted_by_round[:, np.newaxis]
        return np.asarray((drafted & np.isnan(self.confidence_by_round_depth)).any(axis=1))

    @property
    def accepted_by_round_depth(self) -> BoolArray:
        return np.asarray(np.arange(self.depth) < self.accepted_by_round[:, np.newaxis])

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(self.category_by_round))

    def chosen(self, mask: BoolArray) -> Rounds:
        categories = tuple(self.category_by_round[i] for i in np.flatnonzero(mask))
        return replace(self, category_by_round=categories, **{name: getattr(self, name)[mask] for name in _ARRAYS})

    def with_confidence(self) -> Rounds | None:
        """The requests in which every drafted token has a confidence, whole so that histories stay complete; None if
        there are none. The first drafts of a live engine have no confidences."""
        incomplete = np.unique(self.prompt_by_round[self._without_confidence])
        complete = ~np.isin(self.prompt_by_round, incomplete)
        rounds = self.chosen(complete) if complete.any() else None
        return rounds if rounds is not None and rounds.has_confidence else None

    def of_category(self, name: str) -> Rounds:
        return self.chosen(np.array([category == name for category in self.category_by_round]))


_ARRAYS = (
    "prompt_by_round",
    "round_index",
    "drafted_by_round",
    "accepted_by_round",
    "confidence_by_round_depth",
)


def read_bank(paths: Sequence[Path]) -> Rounds:
    """All files as one bank; they must be of one drafter."""
    parts = [_read(path) for path in paths]
    speculators = dict.fromkeys(part.speculator for part in parts if part.speculator)
    if len(speculators) > 1:
        raise AcceptanceError(f"these banks are of several drafters ({', '.join(speculators)}); profile one at a time")
    return parts[0] if len(parts) == 1 else _joined(parts)


def _read(path: Path) -> Rounds:
    try:
        return _read_any(path)
    except (AcceptanceError, MissingExtraError):
        raise
    except Exception as error:  # a file from elsewhere may fail in any way: name the file
        raise AcceptanceError(f"{path}: is not understood as a bank ({type(error).__name__}: {error})") from None


def _read_any(path: Path) -> Rounds:
    if path.is_dir():
        parts = [] if (path / "acceptance.parquet").is_file() else sorted(path.rglob("part-*/acceptance.parquet"))
        if parts:
            return _read_bank(*parts)
        path = path / "acceptance.parquet"
    if not path.is_file():
        raise AcceptanceError(f"{path}: no such file; give a bank's folder, acceptance.parquet, a .csv or a .jsonl")
    match path.suffix:
        case ".parquet":
            return _read_bank(path)
        case ".csv":
            return _read_csv(path)
        case ".jsonl" | ".json":
            return _read_metrics(path)
    raise AcceptanceError(f"{path}: a bank is .parquet, .csv or .jsonl")


def _read_bank(path: Path, *more: Path) -> Rounds:
    """One bank, or the parts of one that a live engine captured."""
    with needs_extra():
        import polars as pl  # noqa: PLC0415 (an extra)
    accepted = _scan(path, *more, columns=(*KEYS, "accept"))
    schema = accepted.collect_schema()
    depth = _checked_depth(sum(name.startswith("acc") and name[3:].isdigit() for name in schema.names()), path)
    speculator_path = path.with_name("speculator.parquet")
    read = [name for name in (*KEYS, "accept", "depth") if name in schema]
    nested = [name for name in read if schema[name].is_nested()]
    if nested:
        raise AcceptanceError(f"{path}: the column {nested[0]!r} holds lists; write one value per round")
    frame = accepted.select(read).collect()
    duplicates = frame.height - frame.select(KEYS).unique().height
    if duplicates:
        raise AcceptanceError(f"{path}: {duplicates} rounds are duplicates (the same {', '.join(KEYS)})")
    names = [f"conf{d}" for d in range(depth)]
    if speculator_path.is_file():
        others = (part.with_name("speculator.parquet") for part in more)
        speculator = _scan(speculator_path, *others, columns=(*KEYS, *names)).collect()
        joined = frame.join(speculator.select(*KEYS, *names), on=KEYS, how="left")
        missing = joined.height - joined.drop_nulls("conf0").height if depth else 0
        if joined.height != frame.height or missing == frame.height:
            raise AcceptanceError(
                f"{speculator_path}: its rounds do not join with those of {path.name} on {', '.join(KEYS)}"
            )
        if missing:
            raise AcceptanceError(f"{speculator_path}: lacks {missing} of the {frame.height} rounds of {path.name}")
        frame = joined
    else:
        frame = frame.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in names)
    _single_value(frame, "model", path)
    frame = frame.sort(["prompt_idx", "turn", "round_idx"], maintain_order=True)
    drafted = frame["depth"].to_numpy() if "depth" in frame.columns else np.full(frame.height, depth)
    return Rounds(
        category_by_round=_categories(frame["category"].cast(pl.String).to_list(), frame.height),
        prompt_by_round=_requests(frame),
        round_index=frame["round_idx"].to_numpy().astype(np.int64),
        drafted_by_round=drafted.astype(np.int64),
        accepted_by_round=frame["accept"].to_numpy().astype(np.int64),
        confidence_by_round_depth=frame.select(names).to_numpy().astype(np.float64),
        speculator=_single_value(frame, "speculator", path),
        source=str(path.parent.name or path.name),
    )


def _scan(*paths: Path, columns: Sequence[str]) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415 (an extra)

    return pl.concat([scan_parquet(path, columns, AcceptanceError) for path in paths])


def _requests(frame: pl.DataFrame) -> IntArray:
    import polars as pl  # noqa: PLC0415 (an extra)

    keys = frame.select(pl.struct("category", "prompt_idx", "turn")).to_series()
    return keys.rank("dense").to_numpy().astype(np.int64)


def _single_value(frame: pl.DataFrame, column: str, path: Path) -> str:
    values = frame[column].unique().to_list()
    if len(values) > 1:
        raise AcceptanceError(f"{path}: has several values of {column} ({', '.join(map(str, values[:4]))}); split it")
    return str(values[0])


def _read_csv(path: Path) -> Rounds:
    """`commits` (accepted + 1), `category`, confidences `a0..`; `drafted` if rounds differ in depth."""
    table = read_csv(path, AcceptanceError)
    if "commits" not in table:
        raise AcceptanceError(f"{path}: lacks the column 'commits'")
    commits = _whole_numbers(path, table, "commits")
    names = sorted((n for n in table if n[:1] == "a" and n[1:].isdigit()), key=lambda n: int(n[1:]))
    depth = _checked_depth(len(names) or int(commits.max(initial=1)) - 1, path)
    confidence = [as_numbers(table[name]) for name in names] or [np.full(commits.size, np.nan)] * max(depth, 1)
    rounds = np.arange(commits.size)
    return Rounds(
        category_by_round=_categories(table.get("category"), commits.size),
        prompt_by_round=_dense_ranks(table["prompt"]) if "prompt" in table else rounds,
        round_index=rounds,
        drafted_by_round=(
            _whole_numbers(path, table, "drafted") if "drafted" in table else np.full(commits.size, depth)
        ),
        accepted_by_round=commits - 1,
        confidence_by_round_depth=np.stack(confidence, axis=1),
        speculator="",
        source=path.name,
    )


def _whole_numbers(path: Path, table: Columns, name: str) -> IntArray:
    try:
        return np.array([int(value) for value in table[name]], dtype=np.int64)
    except (TypeError, ValueError):
        raise AcceptanceError(f"{path}: the column {name!r} must hold whole numbers") from None


def _dense_ranks(values: Sequence[Any]) -> IntArray:
    """From 0, in the order of numbers where all are numbers."""
    try:
        return np.asarray(np.unique(as_numbers(values), return_inverse=True)[1])
    except ValueError:
        return np.asarray(np.unique(np.array(values, dtype=str), return_inverse=True)[1])


def _read_metrics(path: Path) -> Rounds:
    """vLLM's per-request metrics: one line per request, with the tokens drafted and accepted in every round."""
    table = read_json_lines(path, AcceptanceError)
    for name in ("per_step_drafted", "per_step_accepted"):
        if name not in table:
            raise AcceptanceError(f"{path}: lacks the field {name!r} (a list, one number per round)")
    lengths = [len(drafted or ()) for drafted in table["per_step_drafted"]]
    drafted, accepted = (
        _joined_lists(path, table, name, lengths) for name in ("per_step_drafted", "per_step_accepted")
    )
    deepest = _checked_depth(int(drafted.max(initial=1)), path)
    categories = _categories(table.get("category"), len(lengths))
    return Rounds(
        category_by_round=tuple(np.repeat(np.array(categories, dtype=object), lengths).tolist()),
        prompt_by_round=np.repeat(np.arange(len(lengths)), lengths),
        round_index=np.arange(drafted.size),
        drafted_by_round=drafted,
        accepted_by_round=accepted,
        confidence_by_round_depth=np.full((drafted.size, max(deepest, 1)), np.nan),
        speculator="",
        source=path.name,
    )


def _joined_lists(path: Path, table: Columns, name: str, lengths: Sequence[int]) -> IntArray:
    """The lists of all requests one after the other."""
    for line, (values, length) in enumerate(zip(table[name], lengths, strict=True), start=1):
        if len(values or ()) != length:
            raise AcceptanceError(f"{path}: request {line} has {len(values or ())} {name} for {length} rounds")
    return np.array([int(value) for values in table[name] for value in values or ()], dtype=np.int64)


def _checked_depth(depth: int, path: Path) -> int:
    """Before anything of that size is allocated."""
    if depth > MAX_DEPTH:
        raise AcceptanceError(f"{path}: a round drafts {depth:,} tokens; at most {MAX_DEPTH} are read")
    return depth


def _categories(names: Sequence[Any] | None, count: int) -> tuple[str, ...]:
    """Each name once in memory, however many rounds it has."""
    return ("rounds",) * count if names is None else tuple(sys.intern(str(name)) for name in names)


def _joined(parts: Sequence[Rounds]) -> Rounds:
    depth = max(part.depth for part in parts)
    confidence = [
        np.pad(part.confidence_by_round_depth, ((0, 0), (0, depth - part.depth)), constant_values=np.nan)
        for part in parts
    ]
    offsets = np.cumsum([0, *(int(part.prompt_by_round.max()) + 1 for part in parts[:-1])])
    requests = [part.prompt_by_round + offset for part, offset in zip(parts, offsets, strict=True)]
    arrays = {name: [getattr(part, name) for part in parts] for name in _ARRAYS}
    arrays |= {"prompt_by_round": requests, "confidence_by_round_depth": confidence}
    return Rounds(
        category_by_round=tuple(name for part in parts for name in part.category_by_round),
        **{name: np.concatenate(values) for name, values in arrays.items()},
        speculator=next((part.speculator for part in parts if part.speculator), ""),
        source=", ".join(part.source for part in parts),
    )
