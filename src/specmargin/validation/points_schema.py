"""The file of measured speed-ups that `specmargin validate speedups` reads: one row per measurement (CSV)."""

from __future__ import annotations

import csv
import re
from pathlib import Path

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
    draft_weights: str | None = None
    draft_vocabulary: int | None = Field(default=None, ge=1)
    isl: int | None = Field(default=None, ge=1)
    osl: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)  # of the server; None: the engine's default
    context: float = Field(default=1024.0, ge=0.0)
    prefill_inside: bool = False
    engine_time: str | None = None  # as the option; None: that of the release, or of the engine
    release: str | None = None  # of the engine
    launch_us: float | None = Field(default=None, gt=0.0)  # of the host, where the source times steps without graphs
    unit: str = ""  # of the figure: "TPOT ms" for the time between tokens
    stated_as: str = ""  # the source's words; what they name gives what the row lacks

    @model_validator(mode="before")
    @classmethod
    def _fill_from_words(cls, row: dict[str, object]) -> dict[str, object]:
        """What the words of a row say of its drafter and its engine; its columns have precedence."""
        words = {name: str(row.get(name) or "") for name in ("engine", "stated_as", "assumed")}
        return _stated(**words) | row

    @property
    def named_engine_time(self) -> str | None:
        """The row's own; that of its release; None: the engine's default. A baseline may be synchronous as well."""
        if self.engine_time is not None or self.release is None:
            return self.engine_time
        host = "" if self.launch_us is None else f":{self.launch_us:g}us"
        return f"{self.engine}:{self.release}" + (":sync" if _SYNC_BASELINE in self.stated_as else "") + host

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
        rows = list(csv.DictReader(read_text(path, InputError).splitlines(keepends=True)))
    except csv.Error as error:
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
