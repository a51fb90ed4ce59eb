"""The time per output token of a served row, from a price model.

In steady state every step decodes the whole batch and prefills prompts beside it. A request has one prompt and
`output_tokens` steps, so a step contains `concurrency / output_tokens` prompts on average. The price of a prompt is the
time that its chunks add to a decode step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from lab.validation.served.rows import ServedRow, architecture_of
from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import FREE
from specmargin.step import Step

CHUNK_TOKENS = 8192  # default chunk of vLLM, SGLang and TensorRT-LLM
Rows = list[ServedRow]
Item = TypeVar("Item")


class Wrapper(Protocol):
    """Iterates over items and shows how far it is; `iter` shows nothing."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]: ...


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
    """Kernel times under `datasheet`, `laws` or `tables`. Rows that differ in their load alone are priced together."""
    by_identity: dict[str, Prediction] = {}
    refused: dict[str, int] = {}
    for group in progress(by_deployment(rows)):
        try:
            by_identity.update((prediction.row.identity, prediction) for prediction in _predicted(group, prices))
        except InputError as error:
            refused[str(error)] = refused.get(str(error), 0) + len(group)
    return Predictions(
        rows=tuple(by_identity[row.identity] for row in rows if row.identity in by_identity), refused=refused
    )


def by_deployment(rows: Sequence[ServedRow]) -> list[Rows]:
    """Rows that differ in their load alone."""
    groups: dict[object, Rows] = {}
    for row in rows:
        groups.setdefault((row.model, row.weights, row.device, row.engine, row.layout), []).append(row)
    return list(groups.values())


def _predicted(rows: Rows, prices: str) -> Iterator[Prediction]:
    pricer = row_pricer(rows[0], prices)
    copies = rows[0].layout.sequence_ranks  # each data-parallel rank decodes its share and prefills its own prompts
    concurrency, prompt, output = np.array(
        [(row.concurrency, row.prompt_tokens, row.output_tokens) for row in rows], dtype=np.float64
    ).T
    sequences = np.ceil(concurrency / copies)
    decode = Step.uniform(batch=sequences * copies, context=prompt + output / 2.0)
    decode_seconds = np.asarray(pricer.verify(decode).total_seconds)
    chunks = np.ceil(prompt / CHUNK_TOKENS)
    earlier = prompt * (chunks - 1.0) / (2.0 * chunks)  # mean context of a chunk
    prompts = Step.prompts(count=copies, tokens=prompt / chunks, context=earlier)
    added = np.asarray(pricer.verify(decode.joined(prompts)).total_seconds) - decode_seconds
    prefill_seconds = added * chunks / copies * concurrency / output
    for row, decoding, prefilling, count in zip(rows, decode_seconds, prefill_seconds, sequences, strict=True):
        yield Prediction(
            row=row,
            decode_seconds=float(decoding),
            prefill_seconds=float(prefilling),
            layers=pricer.scenario.architecture.layers,
            sequences=float(count),
        )


def row_pricer(row: ServedRow, prices: str) -> Pricer:
    architecture, device = architecture_of(row.model, row.weights), find_device(row.device)
    return Pricer(
        Scenario(
            architecture=architecture,
            device=device,
            prices=find_prices(prices, device, row.engine, RooflineForm.PER_COMPONENT),
            routing=find_routing(None, architecture),  # as `plan` does
            drafter=FREE,
            survival=parse_acceptance("0"),
            layout=row.layout,
            context=0.0,
        )
    )
