"""Captures of routed experts, streamed: the rounds of a bank, or the tokens that an engine returned.

A bank (specdec-calibration layout) is `routing.npy`, (positions, layers, k), with `routing_meta.parquet` beside it, one
row per position. vLLM and SGLang return one array per request, (tokens, layers, k), which is cut into consecutive runs.
Arrays are memory-mapped and counted in pieces, so that memory does not grow with the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specmargin.errors import RoutingError
from specmargin.files import check_readable, scan_parquet
from specmargin.step import IntArray

if TYPE_CHECKING:
    import polars as pl

ExpertIds = npt.NDArray[np.unsignedinteger[Any]]

_PIECE_ROWS = 1 << 17
_TURNS = 1_000_003  # more than any conversation has
RETURNED_RUN = 16  # positions of the runs cut from returned tokens
_EXPECTED = "give the .npy that an engine returned, or a bank's folder"
META = "routing_meta.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some runs of one category: their positions in sequence, and the start, length and request of each run."""

    category: str
    experts: ExpertIds  # (positions, layers, k)
    start_by_run: IntArray
    length_by_run: IntArray
    request_by_run: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One file of expert ids, opened but not read."""

    path: Path
    category: str  # of a returned array; a bank has categories in its meta
    positions: int
    shape: tuple[int, int]  # layers, experts per token
    meta: Path | None

    @property
    def experts(self) -> ExpertIds:
        """Mapped on each access, so that thousands of captures do not stay open."""
        return _mapped(self.path)

    @property
    def longest_run(self) -> int:
        """Run length that at least 1% of the rounds reach; returned tokens are cut into runs of 16."""
        if self.meta is None:
            return min(self.positions, RETURNED_RUN)
        lengths = _scan(self.meta, self.path, self.positions).group_by("routing_block_idx").len().select("len")
        return int(lengths.collect(engine="streaming").to_series().quantile(0.99, "lower") or 1)

    def pieces(self) -> Iterator[Piece]:
        return self._returned() if self.meta is None else self._bank(self.meta)

    def _returned(self) -> Iterator[Piece]:
        experts = self.experts
        rows = _PIECE_ROWS // RETURNED_RUN * RETURNED_RUN
        for first in range(0, self.positions, rows):
            part = np.asarray(experts[first : first + rows])
            starts = np.arange(0, part.shape[0], RETURNED_RUN, dtype=np.int64)
            yield Piece(
                category=self.category,
                experts=part,
                start_by_run=starts,
                length_by_run=np.diff(np.append(starts, part.shape[0])),
                request_by_run=np.zeros_like(starts),
            )

    def _bank(self, meta: Path) -> Iterator[Piece]:
        import polars as pl  # noqa: PLC0415 (an extra)

        frame = _scan(meta, self.path, self.positions)
        unfinished: pl.DataFrame | None = None  # the last round of a piece, which may go on in the next one
        for first in range(0, self.positions, _PIECE_ROWS):
            part = frame.slice(first, _PIECE_ROWS).collect()
            part = part if unfinished is None else pl.concat([unfinished, part])
            if first + _PIECE_ROWS < self.positions:
                last_block = part["routing_block_idx"][-1]
                unfinished = part.filter(pl.col("routing_block_idx") == last_block)
                part = part.filter(pl.col("routing_block_idx") != last_block)
            yield from self._rounds(part, meta)

    def _rounds(self, part: pl.DataFrame, meta: Path) -> Iterator[Piece]:
        index = part["routing_idx"].to_numpy().astype(np.int64)
        position = part["position"].to_numpy().astype(np.int64)
        block = part["routing_block_idx"].to_numpy()
        new = np.append(True, block[1:] != block[:-1])
        starts = np.flatnonzero(new)
        lengths = np.diff(np.append(starts, block.size))
        within = np.arange(block.size) - np.repeat(starts, lengths)
        if not np.array_equal(position, within):
            wrong = int(np.flatnonzero(position != within)[0])
            raise RoutingError(
                f"{meta}: 'position' of round {block[wrong]} is {position[wrong]} where {within[wrong]} is expected; "
                "rows must be sorted by round and position, each once"
            )
        if index.size and not (index.min() >= 0 and index.max() < self.positions):
            raise RoutingError(
                f"{meta}: 'routing_idx' {index.max()} is beyond the {self.positions} rows of {self.path}"
            )
        category = part["category"].to_numpy()[starts]
        prompt, turn = (part[name].to_numpy().astype(np.int64)[starts] for name in ("prompt_idx", "turn"))
        request = prompt * _TURNS + turn
        for name in dict.fromkeys(category.tolist()):
            chosen = category == name
            rows = np.repeat(chosen, lengths)
            picked = index[rows]
            contiguous = picked.size and picked[-1] - picked[0] + 1 == picked.size and np.all(np.diff(picked) == 1)
            mapped = self.experts
            experts = mapped[picked[0] : picked[-1] + 1] if contiguous else mapped[picked]
            chosen_lengths = lengths[chosen]
            yield Piece(
                category=str(name),
                experts=np.asarray(experts),
                start_by_run=np.append(0, np.cumsum(chosen_lengths)[:-1]).astype(np.int64),
                length_by_run=chosen_lengths.astype(np.int64),
                request_by_run=request[chosen],
            )


_COLUMNS = ["category", "prompt_idx", "turn", "routing_idx", "routing_block_idx", "position"]


@cache
def _scan(meta: Path, array: Path, positions: int) -> pl.LazyFrame:
    """The meta of a bank, after the checks that are cheap on the whole file: columns, length, duplicates."""
    frame = scan_parquet(meta, _COLUMNS, RoutingError)  # names the extra where Polars is missing
    import polars as pl  # noqa: PLC0415

    wrong = [name for name in _COLUMNS[1:] if not frame.collect_schema()[name].is_integer()]
    if wrong:
        raise RoutingError(f"{meta}: the column {wrong[0]!r} must hold whole numbers")
    frame = frame.select(_COLUMNS).with_columns(pl.col("category").cast(pl.String))
    rows, distinct, empty = (
        frame.select(
            pl.len(), pl.col("routing_idx").n_unique().alias("distinct"), pl.col("category").null_count().alias("empty")
        )
        .collect(engine="streaming")
        .row(0)
    )
    if rows != positions:
        raise RoutingError(f"{meta}: has {rows} rows for the {positions} positions of {array}; they must match")
    if distinct != rows:
        raise RoutingError(f"{meta}: 'routing_idx' has {rows - distinct} duplicates; every position must occur once")
    if empty:
        raise RoutingError(f"{meta}: {empty} rows have no 'category'")
    return frame


# --- opening ---


def open_captures(specs: Sequence[str]) -> list[Capture]:
    """Files or folders, each as PATH or CATEGORY=PATH: a bank's folder or `routing.npy`, or a returned array."""
    captures: list[Capture] = []
    for spec in specs:
        category, _, path = spec.rpartition("=") if "=" in spec and not Path(spec).exists() else ("", "", spec)
        captures += _open(Path(path), category)
    if not captures:
        raise RoutingError("no captures were given")
    layers, k = captures[0].shape
    for capture in captures[1:]:
        if capture.shape != (layers, k):
            raise RoutingError(
                f"{capture.path}: {capture.shape[0]} layers of {capture.shape[1]} experts per token, but "
                f"{captures[0].path} has {layers} of {k}; captures of one profile must be of one model"
            )
    return captures


def _open(path: Path, category: str) -> list[Capture]:
    if path.is_dir():
        bank = path / "routing.npy"
        if bank.is_file():
            return _open(bank, category)
        parts = sorted(path.rglob("part-*/routing.npy"))  # captured by a live engine
        if parts:
            return [capture for part in parts for capture in _open(part, category)]
        arrays = sorted(path.glob("*.npy"))
        if not arrays:
            raise RoutingError(f"{path}: contains no .npy file")
        return [capture for array in arrays for capture in _open(array, category or path.name)]
    experts = _mapped(path)
    meta = path.with_name(META)
    if path.name == "routing.npy" and not meta.is_file():
        raise RoutingError(f"{path}: {META} is missing beside it")
    is_bank = path.name == "routing.npy"
    if is_bank and category:
        raise RoutingError(f"{path}: the categories of a bank are in its {META}; give it without {category!r}=")
    positions, layers, k = experts.shape
    return [
        Capture(
            path=path,
            category=category or path.stem,
            positions=positions,
            shape=(layers, k),
            meta=meta if is_bank else None,
        )
    ]


def _mapped(path: Path) -> ExpertIds:
    check_readable(path, RoutingError)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # NumPy's words are about pickles, whatever the file is
        raise RoutingError(f"{path}: not a complete .npy file of expert ids; {_EXPECTED}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 3:
        raise RoutingError(f"{path}: must be one array of (tokens, layers, experts per token)")
    if array.dtype not in (np.uint8, np.uint16):
        raise RoutingError(f"{path}: expert ids are {array.dtype}; they must be uint8 or uint16")
    if array.shape[0] == 0 or array.shape[1] == 0 or array.shape[2] == 0:
        raise RoutingError(f"{path}: is empty ({array.shape})")
    return array
