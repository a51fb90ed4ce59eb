"""The time to the first token of served rows: the direct test of what prompts cost, by kind of attention and GPU.

Only rows with few requests at a time and long prompts: with more, requests wait for each other, and short prompts are
launches and HTTP. What is predicted are the kernels of the prompt's chunks, one after another, without engine time: a
measured time is longer by what the host takes, and by what else runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lab.validation.served.rows import ServedRow, architecture_of
from lab.validation.served.tpot import CHUNK_TOKENS, Wrapper, by_deployment, row_pricer
from specmargin.errors import InputError
from specmargin.prices.kernels.kinds import attention_kind
from specmargin.step import FloatArray, Step

_MOST_REQUESTS = 4  # per data-parallel copy: the fewest that the rows have
_SHORTEST_PROMPT = 4096
_KINDS = ("dsa", "mla", "gdn", "attention")  # of a model with several, the first names it


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenLine:
    """Predicted over measured time to the first token: medians, by price source."""

    kind: str
    device: str
    engine: str
    rows: int
    ratios: dict[str, float]


def first_token_lines(rows: Sequence[ServedRow], sources: Sequence[str], progress: Wrapper) -> list[FirstTokenLine]:
    chosen = [row for row in rows if _is_quiet(row) and row.prompt_tokens >= _SHORTEST_PROMPT]
    ratios: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for group in progress(by_deployment(chosen)):
        for source in sources:
            for row, ratio in _ratios(group, source):
                by_source = ratios.setdefault((_kind(row), row.device, row.engine), {})
                by_source.setdefault(source, []).append(ratio)
    return [
        FirstTokenLine(
            kind=kind,
            device=device,
            engine=engine,
            rows=len(by_source[sources[0]]),
            ratios={source: float(np.median(values)) for source, values in by_source.items()},
        )
        for (kind, device, engine), by_source in sorted(ratios.items())
    ]


def _is_quiet(row: ServedRow) -> bool:
    return row.concurrency <= _MOST_REQUESTS * row.layout.sequence_ranks


def _kind(row: ServedRow) -> str:
    layers = [group.layer.attention for group in architecture_of(row.model, row.weights).groups]
    kinds = {attention_kind(attention) for attention in layers if attention is not None}
    return next((kind for kind in _KINDS if kind in kinds), "other")


def _ratios(rows: list[ServedRow], source: str) -> Iterator[tuple[ServedRow, float]]:
    try:
        pricer = row_pricer(rows[0], source)
    except InputError:
        return
    prompt = np.array([row.prompt_tokens for row in rows], dtype=np.float64)
    chunks = np.ceil(prompt / CHUNK_TOKENS)
    seconds: FloatArray = np.zeros(prompt.size)
    for index in range(int(chunks.max())):
        tokens = prompt / chunks
        step = Step.prompts(count=rows[0].layout.sequence_ranks, tokens=tokens, context=index * tokens)
        seconds = seconds + np.where(index < chunks, np.asarray(pricer.verify(step).total_seconds), 0.0)
    yield from ((row, float(time / row.ttft_seconds)) for row, time in zip(rows, seconds, strict=True))
