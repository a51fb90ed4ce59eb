"""The file of measured speed-ups that `specmargin validate speedups` reads: one row per measurement (CSV)."""

from __future__ import annotations

import csv
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from specmargin.errors import InputError
from specmargin.schema import StrictModel, first_complaint


class Point(StrictModel):
    """One measured speed-up: a row of the file. Other columns are ignored, and an empty cell takes the default."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    source: str  # whose measurement it is
    model: str
    gpu: str
    engine: str
    drafter: str
    depth: int = Field(ge=1)
    batch: int = Field(ge=1)
    speedup: float = Field(gt=0.0)
    accept_length: float | None = Field(default=None, ge=1.0)  # tokens per round, including the bonus token
    gpus: int = Field(default=1, ge=1)
    parallel: str = "tp"
    weights: str | None = None
    kv_cache: str | None = None
    isl: int | None = Field(default=None, ge=1)
    osl: int | None = Field(default=None, ge=1)
    context: float = Field(default=1024.0, ge=0.0)
    prefill_inside: bool = False
    engine_time: str | None = None  # as the option; None: that of the engine
    unit: str = ""  # of the figure: "TPOT ms" for the time between tokens
    stated_as: str = ""  # the source's words; a dataset named here gives the lengths that the row lacks

    @property
    def tokens_per_round(self) -> float:
        """The accept length. A row without one cannot be predicted, which is no fault of the other rows."""
        if self.accept_length is None:
            raise InputError("accept_length is empty, and a row is predicted with its own")
        return self.accept_length

    @property
    def is_token_time(self) -> bool:
        return self.unit.upper().startswith("TPOT")

    @property
    def of_whole_requests(self) -> bool:
        """Prompts delay the figure: throughput of whole requests, or the time between tokens while others prefill."""
        return self.prefill_inside or (self.is_token_time and self.isl is not None and self.osl is not None)

    @property
    def waiting_prompts(self) -> int:
        """Prompts that a request waits for: its own, where prefill is inside the figure, and one of each other user.

        Without stated lengths prefill cannot be predicted: decoding alone.
        """
        if self.isl is None or self.osl is None:
            return 0
        return self.batch if self.prefill_inside else self.batch - 1


def read_points(path: Path) -> list[Point]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    if not rows:
        raise InputError(f"{path}: has no rows; columns are described in docs/reference/files.md")
    points = []
    for line, row in enumerate(rows, start=2):
        try:
            points.append(Point.model_validate({name: value for name, value in row.items() if value}))
        except ValidationError as error:
            raise InputError(f"{path}, line {line}: {first_complaint(error)}") from None
    return points
