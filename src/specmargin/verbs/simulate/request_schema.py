"""The request of `simulate`: options of the command line, keys of a scenario file (TOML), and the cells of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from specmargin.answers.request_schema import (
    DEFAULT_DEPTH,
    DRAFTS,
    LOAD,
    MAX_CONTEXT,
    MODEL,
    NUMBER,
    PRICES,
    QUESTION,
    ScenarioRequest,
    Shown,
    parse_number,
    read_request,
)
from specmargin.errors import ScenarioError
from specmargin.files import read_toml
from specmargin.limits import MAX_BATCH, MAX_DEPTH
from specmargin.modes import POLICIES
from specmargin.schema import StrictModel
from specmargin.verbs.plan.request_schema import RANGE_RATIO, RangeField

if TYPE_CHECKING:
    from specmargin.simulator.workload import Length

_MAX_REQUESTS = 10_000_000
_LARGEST_LN = 17.0  # of a length: e^17 is more than MAX_CONTEXT tokens
_LOADS = ("qps", "concurrency", "trace", "hours")
_FILES = ("trace", "acceptance", "bank")  # keys whose paths are relative to the scenario file
KEY = Shown(panel=LOAD.panel, key=True)


class LengthTable(StrictModel):
    """`tokens`; or `ln_mean` and `ln_sd` (lognormal); or `least` and `most` alone (uniform)."""

    tokens: int | None = Field(default=None, ge=1)
    ln_mean: float | None = Field(default=None, ge=0, le=_LARGEST_LN)
    ln_sd: float | None = Field(default=None, ge=0, le=_LARGEST_LN)
    least: int | None = Field(default=None, ge=1)
    most: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_kind(self) -> LengthTable:
        lognormal = self.ln_mean is not None and self.ln_sd is not None
        uniform = self.least is not None and self.most is not None and self.ln_mean is None
        if (self.tokens is not None) + lognormal + uniform != 1:
            raise ValueError("a length is a number, {ln_mean, ln_sd} or {least, most}")
        return self

    def length(self, range_ratio: float) -> Length:
        """What is drawn: around a number within `range_ratio`, otherwise as the table says."""
        from specmargin.simulator.workload import (
            LognormalLength,
            UniformLength,
            length_around,
        )

        if self.tokens is not None:
            return length_around(self.tokens, range_ratio)
        if self.ln_mean is not None and self.ln_sd is not None:
            most = 131_072 if self.most is None else self.most
            return LognormalLength(ln_mean=self.ln_mean, ln_sd=self.ln_sd, least=self.least or 1, most=most)
        return UniformLength(least=self.least or 1, most=self.most or 1)

    @model_serializer
    def _plain(self) -> int | dict[str, Any]:
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return given if self.tokens is None else self.tokens


def _fixed_length(given: Any) -> Any:
    """A number alone, or text such as `4k`."""
    number = parse_number(given)
    if not isinstance(number, int) or isinstance(number, bool):
        return given
    if not 1 <= number <= MAX_CONTEXT:
        raise ValueError(f"must be 1 to {MAX_CONTEXT:,} tokens, got {number}")
    return {"tokens": number}


LENGTH = BeforeValidator(_fixed_length)


class CategoryTable(StrictModel):
    """A kind of request, with what differs from the other requests."""

    name: str = Field(min_length=1)
    weight: float = Field(default=1.0, ge=0)
    acceptance: str | None = None
    routing: str | None = None
    isl: Annotated[LengthTable, LENGTH] | None = None
    osl: Annotated[LengthTable, LENGTH] | None = None


class SimulateRequest(ScenarioRequest):
    """A load served by an engine under policies. A scenario file given as the model provides all other fields."""

    unused: ClassVar[Mapping[str, str]] = {"draft_p_min": "policies decide here how long drafts are"}

    model: Annotated[
        str,
        Field(min_length=1, description="A model (with --gpu and a load), or a scenario file."),
        Shown(panel="Model and GPUs", argument=True, metavar="MODEL|FILE.toml"),
    ]
    gpu: Annotated[str, Field(description="A bundled device, or your own as FILE.toml."), MODEL.as_("GPU")] = ""
    policy: Annotated[
        str,
        Field(description=f"{', '.join(POLICIES)}; separate several with commas to compare them."),
        QUESTION.as_("NAMES").needed,
    ] = "controller,none"
    qps: Annotated[
        float | None, Field(gt=0, le=1e6, description="Requests per second (Poisson)."), LOAD.as_("RATE").needed
    ] = None
    concurrency: Annotated[
        int | None,
        Field(ge=1, le=_MAX_REQUESTS, description="Concurrent requests: a closed loop of this many users."),
        LOAD.as_("N").needed,
    ] = None
    trace: Annotated[str | None, Field(description="Request trace, CSV or JSONL."), LOAD.as_("FILE").needed] = None
    hours: Annotated[
        tuple[float, ...] | None, Field(description="Hours from 0 on, between which the rate is interpolated."), KEY
    ] = None
    hourly_qps: Annotated[tuple[float, ...] | None, Field(description="Requests per second at each hour."), KEY] = None
    requests: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MAX_REQUESTS,
            description="A benchmark of this many requests, measured with its ramp and drain, as `vllm bench serve` "
            "does. Without it: a service in its steady state.",
        ),
        LOAD.as_("N", "as many as a steady state takes"),
    ] = None
    burst: Annotated[
        int, Field(ge=1, le=_MAX_REQUESTS, description="Requests per arrival, at the same mean rate."), LOAD.as_("N")
    ] = 1
    isl: Annotated[
        LengthTable, LENGTH, Field(description="Input tokens per request: 1000, 4k."), LOAD.as_("TOKENS", "1000").needed
    ] = LengthTable(tokens=1000)
    osl: Annotated[
        LengthTable, LENGTH, Field(description="Output tokens per request: 200, 1k."), LOAD.as_("TOKENS", "200").needed
    ] = LengthTable(tokens=200)
    range_ratio: RangeField = RANGE_RATIO
    categories: Annotated[tuple[CategoryTable, ...], Field(description="Kinds of requests."), KEY] = ()
    bank: Annotated[
        str | None,
        Field(description="Bank of rounds to replay. Otherwise rounds are drawn from --acceptance."),
        DRAFTS.as_("FOLDER"),
    ] = None
    depth: Annotated[
        int,
        Field(ge=1, le=MAX_DEPTH, description="Maximum draft depth; a deeper --policy fixed:K raises the default."),
        QUESTION.as_("N"),
    ] = DEFAULT_DEPTH
    max_num_seqs: Annotated[
        int | None,
        Field(ge=1, le=MAX_BATCH, description="Maximum sequences per step, as in vLLM."),
        PRICES.as_("N", "the engine's on this GPU, or --concurrency if that is more"),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Field(ge=1, le=MAX_CONTEXT, description="Maximum tokens per step, as in vLLM: 8192, 16k."),
        NUMBER,
        PRICES.as_("N", "the engine's on this GPU"),
    ] = None
    ttft_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time to first token, in ms."), QUESTION.as_("MS")
    ] = None
    tpot_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time between tokens, in ms."), QUESTION.as_("MS")
    ] = None
    gpu_hour_price: Annotated[
        float | None, Field(gt=0, lt=1e9, description="US dollars per GPU-hour, to show costs."), QUESTION.as_("PRICE")
    ] = None
    seed: Annotated[
        int, Field(ge=0, description="Random seed; equal seeds give identical results."), QUESTION.as_("N")
    ] = 0

    def check_complete(self, source: str = "") -> SimulateRequest:
        """A device and one load; neither is required of options that go with a scenario file."""
        where = f"{source}: " if source else ""
        if not self.gpu:
            raise ScenarioError(f"{where}name a device with --gpu (`specmargin gpus` lists them)")
        if sum(getattr(self, name) is not None for name in _LOADS) != 1:
            raise ScenarioError(
                f"{where}give one load: --qps, --concurrency or --trace (in files also hours with hourly_qps)"
            )
        if (self.hours is None) != (self.hourly_qps is None):
            raise ScenarioError(f"{where}hours and hourly_qps go together: requests per second at each hour")
        return self if "context" in self.model_fields_set or self.trace is not None else self._at_mean_context()

    def _at_mean_context(self) -> SimulateRequest:
        """With the context of its requests, as `plan` has it under a load."""
        from specmargin.simulator.workload import mean_tokens

        isl, osl = (mean_tokens(each.length(self.range_ratio)) for each in (self.isl, self.osl))
        return self.model_copy(update={"context": max(round(isl + osl / 2.0), 1)})


def completed(request: SimulateRequest) -> tuple[SimulateRequest, Path]:
    """The request with the keys of its scenario file, and the folder to which paths are relative."""
    if not request.model.endswith(".toml"):
        return request.check_complete(), Path()
    path = Path(request.model)
    base = read_toml(path, ScenarioError)
    set_fields = {name: getattr(request, name) for name in request.model_fields_set - {"model"}}
    given = {name: value for name, value in set_fields.items() if value is not None}  # None in Python: not given
    if given.keys() & set(_LOADS):
        base = {name: value for name, value in base.items() if name not in (*_LOADS, "hourly_qps")}
    for name in _FILES:
        if name in given and Path(given[name]).exists():
            given[name] = str(Path(given[name]).resolve())  # relative to the working directory, not to the file
    merged = read_request(SimulateRequest, base | given, source=str(path))
    return merged.check_complete(str(path)), path.parent
