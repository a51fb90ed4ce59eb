"""The request of each verb: its fields in addition to the scenario's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from specmargin.answers.request_schema import (
    DRAFTS,
    LOAD,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_DEPTH,
    MODEL,
    NUMBER,
    PRICES,
    QUESTION,
    ScenarioRequest,
    Shown,
    listed,
    parse_numbers,
    parse_shares,
)
from specmargin.modes import POLICIES, Hold

MAX_REQUESTS = 10_000_000  # of a simulation
MAX_USERS = 8192  # concurrent requests of a plan
RANGE_RATIO = 0.5  # of the lengths of requests: assumed, because lengths of real traffic vary
_NO_ACCEPTANCE = "no price depends on acceptance"
_FULL_DRAFTS = "drafts of their full depth are priced here"
_NO_OFF_TIME = "no step with speculation configured but disabled is priced here"
DepthField = Annotated[
    int, Field(ge=0, le=MAX_DEPTH, description="Maximum draft depth to consider."), QUESTION.as_("N")
]
Shares = Annotated[tuple[float, ...], BeforeValidator(parse_shares)]
BatchField = Annotated[int, Field(ge=1, le=MAX_BATCH, description="Sequences in the step."), LOAD.as_("N")]

ConcurrencyField = Annotated[
    int | None,
    Field(ge=1, le=MAX_USERS, description="Concurrent requests; simulates the service, including prefill."),
    LOAD.as_("N"),
]
RateField = Annotated[
    float | None, Field(gt=0, le=1e6, description="Requests per second, instead of --concurrency."), LOAD.as_("RATE")
]
InputField = Annotated[
    int | None,
    Field(ge=1, le=MAX_CONTEXT, description="Input tokens per request (with --concurrency or --qps)."),
    NUMBER,
    LOAD.as_("TOKENS"),
]
OutputField = Annotated[
    int | None,
    Field(ge=1, le=MAX_CONTEXT, description="Output tokens per request (with --concurrency or --qps)."),
    NUMBER,
    LOAD.as_("TOKENS"),
]
RangeField = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Lengths vary by this fraction around --isl and --osl, uniformly, as in vLLM's "
        "--random-range-ratio; 0: all equal, which keeps requests in step.",
    ),
    LOAD.as_("FRACTION"),
]
TpotField = Annotated[
    float | None,
    Field(gt=0, lt=1e9, description="Target for the time between tokens, in ms (with --qps)."),
    LOAD.as_("MS"),
]
GpuHourField = Annotated[
    float | None, Field(ge=0, lt=1e9, description="US dollars per GPU-hour, to show costs."), QUESTION.as_("PRICE")
]


_OF_REQUESTS = {"isl", "osl", "range_ratio", "tpot_slo", "prefix_hit", "max_num_batched_tokens"}


class PlanRequest(ScenarioRequest):
    batch: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(partial(parse_numbers, largest=MAX_BATCH)),
        Field(description="Batch sizes: 1,4,16 or 1-64."),
        LOAD.as_("LIST", "1, 2, 4 ... up to what fits"),
    ] = None
    contexts: Annotated[
        tuple[int, ...],
        listed(32),
        Field(description="Also plan at these context lengths: 1k,8k,64k."),
        LOAD.as_("LIST"),
    ] = ()
    concurrency: ConcurrencyField = None
    qps: RateField = None
    isl: InputField = None
    osl: OutputField = None
    range_ratio: RangeField = RANGE_RATIO
    prefix_hit: Annotated[
        float,
        Field(ge=0, lt=1, description="Fraction of input tokens found in the prefix cache."),
        LOAD.as_("FRACTION"),
    ] = 0.0
    max_num_batched_tokens: Annotated[
        int | None,
        Field(ge=64, le=MAX_CONTEXT, description="Maximum tokens per step, as in vLLM; longer prompts are split."),
        NUMBER,
        LOAD.as_("N", "the engine's on this GPU"),
    ] = None
    tpot_slo: TpotField = None
    depth: DepthField = 8
    min_gain: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Ignore smaller gains: the schedule has the fewest ranges within this of the best depths.",
        ),
        QUESTION.as_("FRACTION"),
    ] = 0.02
    max_batch: Annotated[
        int | None,
        Field(ge=1, le=MAX_BATCH, description="Largest batch size in the schedule."),
        QUESTION.as_("N", "512, or what fits if that is more"),
    ] = None
    ignore_graph_limit: Annotated[
        bool, Field(description="Also consider steps beyond the largest CUDA graph, priced without a graph."), QUESTION
    ] = False
    engine_version: Annotated[
        str | None,
        Field(description="Release of the engine that the flags are for: 0.5.23, 1.3.0rc8."),
        QUESTION.as_("RELEASE", "the newest whose rules are known"),
    ] = None
    compare: Annotated[
        str | None,
        Field(
            description="Compare with other prices: datasheet, laws, tables or FILE.json. unverified: compare with "
            "committing every draft token, a lossy upper bound that shows what verification costs."
        ),
        QUESTION.as_("SOURCE"),
    ] = None
    gpu_hour_price: GpuHourField = None

    @model_validator(mode="after")
    def _one_load(self) -> PlanRequest:
        given = self.model_fields_set
        loads = [f"--{name}" for name in ("concurrency", "qps") if getattr(self, name) is not None]
        if len(loads) > 1:
            raise ValueError("give one load: --concurrency or --qps")
        if not loads and given & _OF_REQUESTS:
            raise ValueError("--isl, --osl and the options of requests need a load: add --concurrency or --qps")
        if self.tpot_slo is not None and self.qps is None:
            raise ValueError("--tpot-slo needs a request rate: --qps")
        if loads and (self.isl is None or self.osl is None):
            raise ValueError(f"{loads[0]} needs --isl and --osl (input and output tokens per request)")
        if loads and given & {"batch", "context"}:
            raise ValueError(f"{loads[0]} determines batch and context: leave out --batch and --context")
        return self


class PriceRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": _NO_ACCEPTANCE,
        "draft_p_min": _FULL_DRAFTS,
        "off_ms": _NO_OFF_TIME,
    }

    batch: BatchField = 1
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH, description="Draft tokens per sequence."), LOAD.as_("N")] = 0


class DesignRequest(ScenarioRequest):
    unused: ClassVar[Mapping[str, str]] = {
        "placement": "no profile has the experts of variants, so their placement makes no difference"
    }

    batch: Annotated[int, Field(ge=1, le=MAX_BATCH, description="Target batch size."), QUESTION.as_("N")] = 32
    hold: Annotated[
        Hold,
        Field(description="active: equal active expert parameters; total: equal active and total expert parameters."),
        QUESTION.as_("WHAT"),
    ] = Hold.ACTIVE
    experts: Annotated[
        tuple[int, ...], listed(64), Field(description="Experts per layer to try."), QUESTION.as_("LIST")
    ] = (
        64,
        128,
        256,
        512,
    )
    experts_per_token: Annotated[
        tuple[int, ...] | None,
        listed(64),
        Field(description="Experts per token to try."),
        QUESTION.as_("LIST", "2,4,8,16; with --hold total 1-20"),
    ] = None
    shared: Annotated[
        Shares,
        Field(description="Fractions of the active width in shared experts to try; derived with --hold total."),
        QUESTION.as_("LIST", "0,0.25,0.5"),
    ] = ()
    depth: DepthField = 8


class CoverageRequest(ScenarioRequest):
    """Counting experts needs no prices: the rest of the scenario matters only with a GPU."""

    unused: ClassVar[Mapping[str, str]] = {
        "acceptance": _NO_ACCEPTANCE,
        "drafter": "the experts of the target do not depend on the drafter",
        "draft_p_min": _FULL_DRAFTS,
        "draft_pass_ms": "drafting is not priced here",
        "off_ms": _NO_OFF_TIME,
        "memory_utilization": "memory is not checked here",
    }

    gpu: Annotated[
        str,
        Field(description="Also price the experts on this GPU: their share of a step, by Amdahl's law."),
        QUESTION.as_("GPU", "none: nothing is priced"),
    ] = ""
    positions: Annotated[
        tuple[int, ...], listed(1024), Field(description="Numbers of positions: 1,2,4 or 1-16."), QUESTION.as_("LIST")
    ] = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
    layer: Annotated[
        int | None, Field(ge=0, description="One MoE layer (from 0) instead of the mean."), QUESTION.as_("N")
    ] = None
    batch: BatchField = 1
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="Draft tokens of that step."), LOAD.as_("N")] = 3

    @model_validator(mode="after")
    def _prices_need_a_gpu(self) -> CoverageRequest:
        priced_only = self.model_fields_set - {"model", "routing", "positions", "layer"}
        if not self.gpu and priced_only:
            option = f"--{min(priced_only).replace('_', '-')}"
            raise ValueError(f"{option} changes the cost of experts, not their number: add --gpu")
        return self


class SimulateRequest(ScenarioRequest):
    """A load served by an engine under policies. A scenario file given as the model provides all fields."""

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
        QUESTION.as_("NAMES"),
    ] = "controller,none"
    qps: Annotated[
        float | None, Field(gt=0, le=1e6, description="Requests per second (Poisson)."), LOAD.as_("RATE")
    ] = None
    users: Annotated[
        int | None,
        Field(ge=1, le=MAX_REQUESTS, description="Closed loop with this many concurrent users."),
        LOAD.as_("N"),
    ] = None
    trace: Annotated[str | None, Field(description="Request trace, CSV or JSONL."), LOAD.as_("FILE")] = None
    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS, description="Number of requests."), LOAD.as_("N")] = 400
    burst: Annotated[
        int, Field(ge=1, le=MAX_REQUESTS, description="Requests per arrival, at the same mean rate."), LOAD.as_("N")
    ] = 1
    isl: Annotated[
        int, Field(ge=1, le=MAX_CONTEXT, description="Prompt tokens: 1000, 4k."), NUMBER, LOAD.as_("TOKENS")
    ] = 1000
    osl: Annotated[
        int, Field(ge=1, le=MAX_CONTEXT, description="Output tokens: 200, 1k."), NUMBER, LOAD.as_("TOKENS")
    ] = 200
    bank: Annotated[
        str | None,
        Field(description="Bank of rounds to replay. Otherwise rounds are drawn from --acceptance."),
        DRAFTS.as_("FOLDER"),
    ] = None
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="Maximum draft depth."), QUESTION.as_("N")] = 4
    max_num_seqs: Annotated[
        int, Field(ge=1, le=MAX_BATCH, description="Maximum sequences per step, as in vLLM."), PRICES.as_("N")
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        Field(ge=1, le=MAX_CONTEXT, description="Maximum tokens per step, as in vLLM: 8192, 16k."),
        NUMBER,
        PRICES.as_("N"),
    ] = 8192
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


class ReportRequest(ScenarioRequest):
    """The request of `report` and of the web page: a scenario, and the batch marked in figures or a load."""

    batch: Annotated[
        int, Field(ge=1, le=MAX_BATCH, description="Batch size marked in figures and used in the text."), LOAD.as_("N")
    ] = 16
    concurrency: ConcurrencyField = None
    qps: RateField = None
    isl: InputField = None
    osl: OutputField = None
    range_ratio: RangeField = RANGE_RATIO
    depth: DepthField = 8
    gpu_hour_price: GpuHourField = None

    @model_validator(mode="after")
    def _whole_load(self) -> ReportRequest:
        if self.concurrency is not None and self.qps is not None:
            raise ValueError("give one load: --concurrency or --qps")
        if (self.concurrency is not None or self.qps is not None) and (self.isl is None or self.osl is None):
            raise ValueError("a load needs --isl and --osl (input and output tokens per request)")
        return self

    def as_plan(self) -> PlanRequest:
        """The same question to `plan`. A load determines batch and context."""
        fields = {name: getattr(self, name) for name in (*ScenarioRequest.model_fields, *_PLANNED)}
        if self.concurrency is None and self.qps is None:
            fields |= {"isl": None, "osl": None}
        elif self.isl is not None and self.osl is not None:
            fields["context"] = round(self.isl + self.osl / 2.0)
        return PlanRequest.model_construct(**fields)


_PLANNED = ("concurrency", "qps", "isl", "osl", "range_ratio", "depth", "gpu_hour_price")
