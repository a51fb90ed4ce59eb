"""The file of measured speed-ups that `specmargin validate speedups` reads: one row per measurement (CSV)."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_validator

from specmargin.errors import InputError
from specmargin.files import read_text
from specmargin.schema import StrictModel, first_complaint

# "vLLM 0.27.1", "vLLM about 0.14.1", "SGLang v0.5.12". Not a fork's, which has other kernels than the release it left,
# and not 0.1.dev20073, which counts commits.
_RELEASE = re.compile(
    r"\b(vllm|sglang)\s+(?:(?!fork)\w+\s+){0,3}v?(0\.(?!1\.dev)\d+(?:\.\d+)?(?:rc\d+)?)", re.IGNORECASE
)
_SYNC_BASELINE = "sync-matched baseline"
_VOCABULARY = re.compile(r"\b(\d+)k draft vocabulary")
_FOUR_BIT = re.compile(r"\b(int4 module|W4A16 drafter)\b")
#: The newest release of vLLM that runs draft models on its first runner, synchronously (`catalog/engine_releases.py`).
_FIRST_RUNNER = ("first runner", "0.29")
#: Engines whose releases have times of their own (`catalog/engine_releases.py`).
_RELEASED = ("vllm", "sglang")


Row = TypeVar("Row", bound="Setup")


class Setup(StrictModel):
    """What was measured, and on what. Other columns are ignored, and an empty cell takes the default."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    source: str  # whose measurement it is
    model: str
    gpu: str
    engine: str
    batch: int = Field(default=1, ge=1)
    gpus: int = Field(default=1, ge=1)
    parallel: str = "tp"
    weights: str | None = None
    kv_cache: str | None = None
    context: float = Field(default=1024.0, ge=0.0)
    engine_time: str | None = None  # as the option; None: that of the release, or of the engine
    release: str | None = None  # of the engine
    launch_us: float | None = Field(default=None, gt=0.0)  # of the host, where the source times steps without graphs
    cpu: str | None = None  # the processor beside the GPU, of experts in main memory
    n_cpu_moe: int | Literal["all"] | None = None  # layers whose routed experts are in main memory
    backend: str | None = None  # of llama.cpp
    tp: int | None = Field(default=None, ge=1)  # GPUs that split every tensor, where the engine does not by itself
    unit: str = ""  # of the figure: "TPOT ms" for the time between tokens
    stated_as: str = ""  # the source's words; what they name gives what the row lacks

    @property
    def named_engine_time(self) -> str | None:
        """The row's own; that of its release; None: the engine's default. A baseline may be synchronous as well."""
        if self.engine_time is not None or self.release is None or self.engine not in _RELEASED:
            return self.engine_time
        host = "" if self.launch_us is None else f":{self.launch_us:g}us"
        return f"{self.engine}:{self.release}" + (":sync" if _SYNC_BASELINE in self.stated_as else "") + host

    @property
    def placement(self) -> dict[str, object]:
        """Experts in main memory and split tensors, as options; only what the row has of them."""
        everything = self.n_cpu_moe == "all"
        options = {
            "cpu": self.cpu,
            "experts_on": "cpu" if everything else None,
            "n_cpu_moe": None if everything else self.n_cpu_moe,
            "tp": self.tp,
        }
        return {name: value for name, value in options.items() if value is not None}


class PlainPoint(Setup):
    """Plain decoding alone."""

    plain: float = Field(gt=0.0)  # tokens per second


class Point(Setup):
    """One measured speed-up."""

    drafter: str
    depth: int = Field(ge=1)
    speedup: float = Field(gt=0.0)
    accept_length: float | None = Field(default=None, ge=1.0)  # tokens per round, including the bonus token
    draft_weights: str | None = None
    draft_vocabulary: int | None = Field(default=None, ge=1)
    isl: int | None = Field(default=None, ge=1)
    osl: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)  # of the server; None: the engine's default
    prefill_inside: bool = False
    plain: float | None = Field(default=None, gt=0.0)  # without speculation, in `unit`
    speculative: float | None = Field(default=None, gt=0.0)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_words(cls, row: dict[str, object]) -> dict[str, object]:
        """What the words of a row say of its drafter and its engine; its columns have precedence."""
        words = {name: str(row.get(name) or "") for name in ("engine", "stated_as", "assumed")}
        return _stated(**words) | row

    @property
    def tokens_per_round(self) -> float:
        """The accept length. A row without one cannot be predicted, which is no fault of the other rows."""
        if self.accept_length is None:
            raise InputError("accept_length is empty, and a row is predicted with its own")
        return self.accept_length

    @property
    def counts_tokens(self) -> bool:
        """Its figures are tokens per second of decoding one sequence."""
        return self.unit.startswith("tok/s") and self.batch == 1 and not self.of_whole_requests

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
    return _read_rows(path, Point)


def read_plain(path: Path) -> list[PlainPoint]:
    return _read_rows(path, PlainPoint)


def _read_rows(path: Path, schema: type[Row]) -> list[Row]:
    try:
        rows = list(csv.DictReader(read_text(path, InputError).splitlines(keepends=True)))
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    if not rows:
        raise InputError(f"{path}: has no rows; columns are described in docs/reference/files.md")
    points = []
    for line, row in enumerate(rows, start=2):
        try:
            points.append(schema.model_validate({name: value for name, value in row.items() if value}))
        except ValidationError as error:
            raise InputError(f"{path}, line {line}: {first_complaint(error)}") from None
    return points


def _stated(*, engine: str, stated_as: str, assumed: str) -> dict[str, object]:
    stated: dict[str, object] = {}
    if vocabulary := _VOCABULARY.search(stated_as):
        stated["draft_vocabulary"] = 1000 * int(vocabulary[1])
    if _FOUR_BIT.search(stated_as):
        stated["draft_weights"] = "int4-g128"
    release, (runner, last) = _RELEASE.search(stated_as), _FIRST_RUNNER
    if release is not None and release[1].lower() == engine:
        stated["release"] = release[2]
    elif engine == "vllm" and runner in stated_as + assumed:
        stated["release"] = last
    return stated
