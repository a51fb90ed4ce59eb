"""The time per output token of a served row, from a price model.

In steady state every step decodes the whole batch and prefills prompts beside it. A request has one prompt and
`output_tokens` steps, so a step contains `concurrency / output_tokens` prompts on average. The price of a prompt is the
time that its chunks add to a decode step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lab.validation.served.rows import ServedRow, architecture_of
from specmargin.acceptance.survival import parse_acceptance
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE
from specmargin.step import Step

_CHUNK_TOKENS = 8192  # default chunk of vLLM, SGLang and TensorRT-LLM
Wrapper = Callable[[Sequence[ServedRow]], Iterable[ServedRow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Kernel time of a row, and the quantities that engine time depends on."""

    row: ServedRow
    decode_seconds: float
    prefill_seconds: float  # per step
    layers: int
    sequences: float  # per engine process

    @property
    def kernel_seconds(self) -> float:
        return self.decode_seconds + self.prefill_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    rows: tuple[Prediction, ...]
    refused: dict[str, int]  # number of rows by reason


def predict(rows: Sequence[ServedRow], prices: str, *, progress: Wrapper = iter) -> Predictions:
    """Kernel times under `datasheet`, `laws` or `tables`."""
    by_configuration: dict[object, Prediction | str] = {}
    predictions: list[Prediction] = []
    refused: dict[str, int] = {}
    for row in progress(rows):
        key = row.configuration
        if key not in by_configuration:
            by_configuration[key] = _predict_or_refuse(row, prices)
        result = by_configuration[key]
        if isinstance(result, str):
            refused[result] = refused.get(result, 0) + 1
        else:
            predictions.append(
                Prediction(
                    row=row,
                    decode_seconds=result.decode_seconds,
                    prefill_seconds=result.prefill_seconds,
                    layers=result.layers,
                    sequences=result.sequences,
                )
            )
    return Predictions(rows=tuple(predictions), refused=refused)


def _predict_or_refuse(row: ServedRow, prices: str) -> Prediction | str:
    try:
        return _predict(row, architecture_of(row.model, row.weights), prices)
    except InputError as error:
        return str(error)


def _predict(row: ServedRow, architecture: Architecture, prices: str) -> Prediction:
    device = find_device(row.device)
    scenario = Scenario(
        architecture=architecture,
        device=device,
        prices=find_prices(prices, device, row.engine, RooflineForm.PER_COMPONENT),
        routing=find_routing(None, architecture),  # as `plan` does
        drafter=FREE,
        survival=parse_acceptance("0"),
        layout=row.layout,
        context=0.0,
    )
    pricer = Pricer(scenario)
    copies = row.layout.sequence_ranks  # each data-parallel rank decodes its share and prefills its own prompts
    sequences = math.ceil(row.concurrency / copies)
    decode = Step.uniform(batch=sequences * copies, context=row.prompt_tokens + row.output_tokens / 2.0)
    decode_seconds = float(pricer.verify(decode).total_seconds)
    chunks = math.ceil(row.prompt_tokens / _CHUNK_TOKENS)
    earlier = row.prompt_tokens * (chunks - 1.0) / (2.0 * chunks)  # mean context of a chunk
    prompts = Step.prompts(count=copies, tokens=row.prompt_tokens / chunks, context=earlier)
    added = float(pricer.verify(decode.joined(prompts)).total_seconds) - decode_seconds
    return Prediction(
        row=row,
        decode_seconds=decode_seconds,
        prefill_seconds=added * chunks / copies * row.concurrency / row.output_tokens,
        layers=architecture.layers,
        sequences=sequences,
    )
