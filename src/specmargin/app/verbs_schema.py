"""The request of each verb: its fields in addition to the scenario's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from specmargin.answers.request_schema import (
    DRAFTS,
    LOAD,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_DEPTH,
    MAX_REQUESTS,
    MODEL,
    NUMBER,
    PRICES,
    QUESTION,
    ScenarioRequest,
    Shown,
)
from specmargin.modes import POLICIES


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
