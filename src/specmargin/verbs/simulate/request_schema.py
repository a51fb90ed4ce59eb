"""The request of `simulate`: options of the command line, keys of a scenario file (TOML), and the cells of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from specmargin.answers.numbers_schema import MAX_CONTEXT, NUMBER, parse_number
from specmargin.answers.request_schema import (
    DEFAULT_DEPTH,
    DRAFTS,
    LOAD,
    MODEL,
    PRICES,
    QUESTION,
    ScenarioRequest,
    Shown,
    read_request,
)
from specmargin.errors import ScenarioError
from specmargin.files import read_toml
from specmargin.limits import MAX_BATCH, MAX_DEPTH
from specmargin.modes import FLEET_POLICIES, POLICIES, Find, Router, Scheduling
from specmargin.schema import StrictModel
from specmargin.verbs.plan.request_schema import RANGE_RATIO, RangeField

if TYPE_CHECKING:
    from specmargin.simulator.workload import Length

_MAX_REQUESTS = 10_000_000
_MOST_INSTANCES = 1024
_LARGEST_LN = 17.0  # of a length: e^17 is more than MAX_CONTEXT tokens
_LOADS = ("qps", "sessions_per_second", "concurrency", "trace", "hours")
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
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)


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
    sessions_per_second: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Sessions of --turns that start per second (Poisson), instead of --qps."),
        LOAD.as_("RATE"),
    ] = None
    turns: Annotated[
        LengthTable,
        LENGTH,
        Field(description="Turns per session; a prompt is the history and --isl new tokens."),
        LOAD.as_("N", "1"),
    ] = LengthTable(tokens=1)
    think_seconds: Annotated[
        float,
        Field(ge=0, lt=1e9, description="Mean time between an answer and the session's next turn (exponential)."),
        LOAD.as_("SECONDS"),
    ] = 10.0
    shared_prefix: Annotated[
        int,
        Field(ge=0, le=MAX_CONTEXT, description="Tokens of a system prompt before the --isl tokens, equal for all."),
        NUMBER,
        LOAD.as_("TOKENS"),
    ] = 0
    prefix_hit: Annotated[
        float,
        Field(ge=0, lt=1, description="Fraction of input tokens found in the prefix cache, if only that is known."),
        LOAD.as_("FRACTION"),
    ] = 0.0
    hash_tokens: Annotated[
        int, Field(ge=1, le=MAX_CONTEXT, description="Tokens per block hash of a trace; Mooncake's have 512."), KEY
    ] = 512
    cancel_share: Annotated[
        float,
        Field(ge=0, le=1, description="Share of requests that clients cancel, after --cancel-tokens or -seconds."),
        LOAD.as_("FRACTION"),
    ] = 0.0
    cancel_tokens: Annotated[
        LengthTable | None, LENGTH, Field(description="Output tokens after which they are cancelled."), LOAD.as_("N")
    ] = None
    cancel_seconds: Annotated[
        float | None,
        Field(gt=0, lt=1e9, description="Seconds after arrival at which they are cancelled."),
        LOAD.as_("SECONDS"),
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
        Field(
            ge=1,
            le=MAX_BATCH,
            description="Maximum sequences per step, as in vLLM: of each data-parallel rank (SGLang: of all ranks).",
        ),
        PRICES.as_("N", "the engine's on this GPU, or --concurrency if that is more"),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Field(ge=1, le=MAX_CONTEXT, description="Maximum tokens per step, of ranks as --max-num-seqs: 8192, 16k."),
        NUMBER,
        PRICES.as_("N", "the engine's on this GPU"),
    ] = None
    no_prefix_cache: Annotated[
        bool,
        Field(description="Compute shared prefixes again, as with vLLM's --no-enable-prefix-caching."),
        PRICES,
    ] = False
    scheduling: Annotated[
        Scheduling,
        Field(description="As vLLM's --scheduling-policy: fcfs, or priority (of categories, or in a trace)."),
        PRICES.as_("POLICY"),
    ] = Scheduling.FCFS
    router: Annotated[
        Router | None,
        Field(
            description="Simulate every data-parallel rank with a batch of its own, in lockstep, behind this router: "
            "round-robin, least-requests or prefix. Policies are then "
            f"{', '.join(FLEET_POLICIES)}."
        ),
        LOAD.as_("NAME", "one batch, spread evenly over ranks"),
    ] = None
    prefill_instances: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MOST_INSTANCES,
            description="Prefill on this many instances of their own, each with the same --gpus; KV moves to the "
            "--decode-instances over the links of one machine, or the network (--fabric).",
        ),
        LOAD.as_("N", "prompts are read where tokens are decoded"),
    ] = None
    decode_instances: Annotated[
        int,
        Field(ge=1, le=_MOST_INSTANCES, description="Instances that decode, with --prefill-instances."),
        LOAD.as_("N"),
    ] = 1
    ttft_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time to first token, in ms."), QUESTION.as_("MS")
    ] = None
    tpot_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time between tokens, in ms."), QUESTION.as_("MS")
    ] = None
    find: Annotated[
        Find | None,
        Field(description="Find the largest rate, or number of users, that meets --ttft-slo and --tpot-slo."),
        QUESTION.as_("LOAD").needed,
    ] = None
    percentile: Annotated[
        float,
        Field(ge=50, lt=100, description="Percentile of the requests at which --find holds targets: 90, 99.9."),
        QUESTION.as_("PERCENT"),
    ] = 99.0
    seeds: Annotated[
        int,
        Field(ge=1, le=100, description="Seeds that --find repeats the search with, for its interval."),
        QUESTION.as_("N"),
    ] = 5
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
        if self.find is not None:
            self._check_search(where)
        elif sum(getattr(self, name) is not None for name in _LOADS) != 1:
            raise ScenarioError(
                f"{where}give one load: --qps, --concurrency or --trace (in files also hours with hourly_qps; of "
                "sessions --sessions-per-second)"
            )
        if (self.hours is None) != (self.hourly_qps is None):
            raise ScenarioError(f"{where}hours and hourly_qps go together: requests per second at each hour")
        self._check_clients(where)
        if self.decode_instances > 1 and self.prefill_instances is None:
            raise ScenarioError(
                f"{where}--decode-instances goes with --prefill-instances; without it, give the load of one engine"
            )
        request = self if self.router is None or "policy" in self.model_fields_set else self._voting()
        given = "context" in self.model_fields_set or self.trace is not None
        return request if given else request._at_mean_context()

    def _voting(self) -> SimulateRequest:
        """The default policies of ranks behind a router."""
        return self.model_copy(update={"policy": "vote,best-fixed,none"})

    def _check_search(self, where: str) -> None:
        if any(getattr(self, name) is not None for name in (*_LOADS, "requests")):
            raise ScenarioError(
                f"{where}--find chooses the load: leave out --qps, --concurrency, --trace and --requests"
            )
        if self.ttft_slo is None and self.tpot_slo is None:
            raise ScenarioError(f"{where}--find needs a target in ms: --tpot-slo, --ttft-slo or both")
        if self.has_sessions or self.cancel_share > 0.0:
            raise ScenarioError(f"{where}--find is for single requests: leave out sessions and cancelled requests")

    def _at_mean_context(self) -> SimulateRequest:
        """With the context of its requests, as `plan` has it under a load; of sessions, with half of their history."""
        from specmargin.simulator.workload import mean_tokens

        isl, osl, turns = (mean_tokens(each.length(self.range_ratio)) for each in (self.isl, self.osl, self.turns))
        history = self.shared_prefix + (turns - 1.0) / 2.0 * (isl + osl)
        return self.model_copy(update={"context": max(round(history + isl + osl / 2.0), 1)})

    def _check_clients(self, where: str) -> None:
        """Sessions and cancelled requests whose options contradict each other."""
        if self.turns.tokens != 1 and self.qps is not None:
            raise ScenarioError(f"{where}--qps counts requests; with --turns give --sessions-per-second")
        if self.has_sessions and (self.trace is not None or self.hours is not None):
            what = "a trace has its own requests" if self.trace is not None else "hourly rates are of single requests"
            raise ScenarioError(f"{where}{what}; leave out --turns and --shared-prefix, or give another load")
        if self.has_sessions and self.prefix_hit > 0.0:
            raise ScenarioError(f"{where}--prefix-hit is for prompts of unknown content; sessions have their own hits")
        given = self.cancel_tokens is not None or self.cancel_seconds is not None
        if given != (self.cancel_share > 0.0):
            raise ScenarioError(f"{where}--cancel-share goes with --cancel-tokens or --cancel-seconds")

    @property
    def is_steady(self) -> bool:
        """Measured between ramp and drain: a constant load of single requests, of no given number."""
        constant = self.qps is not None or self.concurrency is not None or self.find is not None
        return constant and self.requests is None and not self.has_sessions and self.cancel_share == 0.0

    @property
    def has_sessions(self) -> bool:
        """Sessions of several turns, or single requests with a common beginning."""
        return self.sessions_per_second is not None or self.turns.tokens != 1 or self.shared_prefix > 0


def completed(request: SimulateRequest) -> tuple[SimulateRequest, Path]:
    """The request with the keys of its scenario file, and the folder to which paths are relative."""
    if not request.model.endswith(".toml"):
        return request.check_complete(), Path()
    path = Path(request.model)
    base = read_toml(path, ScenarioError)
    set_fields = {name: getattr(request, name) for name in request.model_fields_set - {"model"}}
    given = {name: value for name, value in set_fields.items() if value is not None}  # None in Python: not given
    if given.keys() & {*_LOADS, "find"}:
        base = {name: value for name, value in base.items() if name not in (*_LOADS, "hourly_qps", "requests", "find")}
    for name in _FILES:
        if name in given and Path(given[name]).exists():
            given[name] = str(Path(given[name]).resolve())  # relative to the working directory, not to the file
    merged = read_request(SimulateRequest, base | given, source=str(path))
    return merged.check_complete(str(path)), path.parent
