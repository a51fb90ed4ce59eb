"""The request of `plan`, and the fields that describe a load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from specmargin.answers.numbers_schema import MAX_CONTEXT, NUMBER, listed, parse_numbers
from specmargin.answers.request_schema import (
    DEFAULT_DEPTH,
    DRAFTER_HELP,
    LOAD,
    QUESTION,
    DepthField,
    DrafterField,
    GpuField,
    ScenarioRequest,
)
from specmargin.limits import MAX_BATCH

MAX_USERS = 8192  # concurrent requests of a plan
RANGE_RATIO = 0.5  # of the lengths of requests: assumed, because lengths of real traffic vary

ConcurrencyField = Annotated[
    int | None,
    Field(ge=1, le=MAX_USERS, description="Concurrent requests; simulates the service, including prefill."),
    LOAD.as_("N").needed,
]
RateField = Annotated[
    float | None, Field(gt=0, le=1e6, description="Requests per second, instead of --concurrency."), LOAD.as_("RATE")
]
InputField = Annotated[
    int | None,
    Field(ge=1, le=MAX_CONTEXT, description="Input tokens per request (with --concurrency or --qps)."),
    NUMBER,
    LOAD.as_("TOKENS").needed,
]
OutputField = Annotated[
    int | None,
    Field(ge=1, le=MAX_CONTEXT, description="Output tokens per request (with --concurrency or --qps)."),
    NUMBER,
    LOAD.as_("TOKENS").needed,
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
    Field(gt=0, lt=1e9, description="Target for the time between tokens, in ms (with a load or --at-batch)."),
    LOAD.as_("MS"),
]
GpuHourField = Annotated[
    float | None,
    Field(ge=0, lt=1e9, description="US dollars per GPU-hour, to show costs."),
    QUESTION.as_("PRICE", "a cloud's list price"),
]


def parse_prices(given: object) -> object:
    """`2.5`, or `h100=2.5,h200=3.5`: a price for each GPU."""
    prices = _read_prices(given) if isinstance(given, str) else given
    for price in prices.values() if isinstance(prices, Mapping) else (prices,):
        if isinstance(price, int | float) and not 0.0 <= price < 1e9:
            raise ValueError(f"a price is at least 0 and below 1e9, got {price:g}")
    return prices


def _read_prices(given: str) -> float | dict[str, float]:
    try:
        if "=" not in given:
            return float(given)
        pairs = [part.partition("=") for part in given.split(",")]
        return {name.strip(): float(price) for name, _, price in pairs}
    except ValueError:
        raise ValueError(
            f"{given!r} is neither a price such as 2.5 nor one per GPU such as h100=2.5,h200=3.5"
        ) from None


_OF_REQUESTS = {"isl", "osl", "range_ratio", "prefix_hit", "max_num_batched_tokens"}


class PlanRequest(ScenarioRequest):
    gpu: Annotated[
        GpuField,
        Field(
            min_length=1,
            description="A bundled device (`specmargin gpus`) or your own as FILE.toml. Several, for one table: "
            "h100,h200 or 4xh100,8xh200:ep.",
        ),
    ]
    drafter: Annotated[
        DrafterField, Field(description=f"{DRAFTER_HELP} Several: mtp,eagle; all ranks those that the model can have.")
    ] = None
    batch: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(partial(parse_numbers, largest=MAX_BATCH)),
        Field(description="Batch sizes: 1,4,16 or 1-64."),
        LOAD.as_("LIST", "1, 2, 4 ... up to what fits").needed,
    ] = None
    at_batch: Annotated[
        int | None,
        Field(ge=1, le=MAX_BATCH, description="The batch that the verdict is about; also a row of the table."),
        LOAD.as_("N", "the smallest at which it pays"),
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
    decode_only: Annotated[
        bool,
        Field(
            description="The decode instance of a disaggregated pair: prompts are read elsewhere and their KV arrives."
        ),
        LOAD,
    ] = False
    max_num_batched_tokens: Annotated[
        int | None,
        Field(ge=64, le=MAX_CONTEXT, description="Maximum tokens per step, as in vLLM; longer prompts are split."),
        NUMBER,
        LOAD.as_("N", "the engine's on this GPU"),
    ] = None
    tpot_slo: TpotField = None
    depth: DepthField = DEFAULT_DEPTH
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
            description="Compare with other prices: datasheet, laws, tables or FILE.json. acceptance:0.9 (or what else "
            "--acceptance takes): with another acceptance; acceptance:x2: a drafter twice as good, with half as many "
            "rejections at every position. unverified: with committing every draft token, a lossy upper bound that "
            "shows what verification costs."
        ),
        QUESTION.as_("SOURCE"),
    ] = None
    gpu_hour_price: Annotated[
        float | dict[str, float] | None,
        BeforeValidator(parse_prices),
        Field(description="US dollars per GPU-hour, to show costs: 2.5, or one per GPU: h100=2.5,h200=3.5."),
        QUESTION.as_("PRICE", "a cloud's list price"),
    ] = None

    @model_validator(mode="after")
    def _one_load(self) -> PlanRequest:
        given = self.model_fields_set
        loads = [f"--{name}" for name in ("concurrency", "qps") if getattr(self, name) is not None]
        if len(loads) > 1:
            raise ValueError("give one load: --concurrency or --qps")
        if not loads and given & _OF_REQUESTS:
            raise ValueError("--isl, --osl and the options of requests need a load: add --concurrency or --qps")
        if self.decode_only and self.prefix_hit:
            raise ValueError("--prefix-hit: with --decode-only no prompt is read here; leave it out")
        if self.tpot_slo is not None and not loads and self.at_batch is None:
            raise ValueError("--tpot-slo needs a load: --qps or --concurrency, or a batch: --at-batch")
        if loads and (self.isl is None or self.osl is None):
            raise ValueError(f"{loads[0]} needs --isl and --osl (input and output tokens per request)")
        if loads and given & {"batch", "at_batch", "context"}:
            raise ValueError(f"{loads[0]} determines batch and context: leave out --batch, --at-batch and --context")
        return self
