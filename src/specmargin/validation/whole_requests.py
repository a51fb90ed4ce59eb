"""Figures of whole requests, simulated as their benchmark ran them: users in a closed loop, prompts included.

The same simulation as `plan --concurrency --range-ratio 0`: rows have no column for a spread of lengths. Most sources
state no lengths: those of the dataset that a row names are assumed. Prompts: mean characters per turn of the question
files that EAGLE's evaluation uses (github.com/SafeAILab/EAGLE, eagle/data), at 4 characters per token. Answers: 512
tokens, as answers to Spec-Bench's questions average 501 under a limit of 512
(github.com/tenstorrent/tt-inference-server/pull/3699).
"""

from __future__ import annotations

from dataclasses import dataclass

from specmargin.acceptance.survival import parse_acceptance
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.errors import ScenarioError
from specmargin.simulator.service import Service, ServiceLoad, service
from specmargin.validation.points_schema import Point

# Prompts of a load generator whose lengths are stated: the default of `vllm bench serve` and of sglang.bench_serving.
# Their throughput is over the whole run, with ramp and drain. Datasets are run at a constant batch.
_GENERATED_REQUESTS = 1000
_OUTPUT_TOKENS = 512
_INPUT_TOKENS_BY_DATASET = {"alpaca": 14, "gsm8k": 59, "humaneval": 124, "mtbench": 51}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    speedup: float  # of output tokens per second, or of the time between tokens where that is the figure
    prefill_share: float  # of the time without speculation
    shortened: str | None = None  # how many requests were left out because nothing is compiled


def load_of(point: Point, batched_tokens: int, *, limits_per_rank: bool = True) -> ServiceLoad | None:
    """With the lengths that the row states, or those assumed for its dataset; None for one without known lengths.

    `batched_tokens`: the engine's tokens per step, unless the row states its server's.
    """
    text = point.stated_as.lower().replace("-", "")
    prompt_tokens = point.isl or next((n for name, n in _INPUT_TOKENS_BY_DATASET.items() if name in text), None)
    if prompt_tokens is None:
        return None
    stated = point.isl is not None and point.osl is not None
    return ServiceLoad(
        prompt_tokens=prompt_tokens,
        output_tokens=point.osl or _OUTPUT_TOKENS,
        users=point.batch,
        max_num_batched_tokens=point.max_num_batched_tokens or batched_tokens,
        limits_per_rank=limits_per_rank,
        requests=_GENERATED_REQUESTS if stated else None,
    )


def closed_loop(pricer: Pricer, point: Point, load: ServiceLoad) -> Loop:
    accepting = pricer.with_survival(parse_acceptance(f"length:{point.tokens_per_round}@{point.depth}"))
    answer = service(accepting, load, Schedule.fixed(point.depth, last=point.batch))
    return Loop(
        speedup=_token_time(answer, point) if point.is_token_time else answer.speedup,
        prefill_share=answer.plain.prefill_share,
        shortened=answer.shortened,
    )


def _token_time(answer: Service, point: Point) -> float:
    plain, speculating = answer.plain.tpot_seconds, answer.speculating.tpot_seconds
    if plain is None or speculating is None:
        raise ScenarioError(f"{point.id}: one output token has no time between tokens; give osl of at least 2")
    return plain / speculating
