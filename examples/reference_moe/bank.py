"""Exact speculative sampling, recorded: what was drafted with what confidence, accepted, and routed where.

No key-value cache: every pass computes its sequences from their beginning. At this size that costs seconds on a GPU,
and leaves nothing that could be subtly wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model import Qwen3
from settings import Clock, Progress, RecipeError, Settings, whole_file, whole_folder
from tokenizers import Tokenizer
from torch import Tensor
from training import precision

_SEQUENCES = 192  # that run together
_END = 0  # end of text is never drawn: a request goes on until it is long enough


@dataclass(frozen=True, slots=True)
class Request:
    category: str
    tokens: list[int]


@dataclass(slots=True)
class Batch:
    """Sequences side by side: (sequences, positions) with room for what is to come, and how long each is now."""

    tokens: Tensor
    length: Tensor

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.length.numel(), device=self.length.device)[:, None]


@torch.no_grad()
def capture(target: Qwen3, draft: Qwen3, requests: list[Request], settings: Settings, clock: Clock) -> dict[str, Any]:
    """Rounds of all requests, as arrays by round."""
    progress = Progress("bank")
    device = next(target.parameters()).device
    generator = torch.Generator(device).manual_seed(settings.seed)
    steps: list[dict[str, Any]] = []
    cut = ""
    for done, step in _all_rounds(target, draft, requests, settings, generator):
        steps.append(step)
        progress.show(done, f"{sum(step['accept'].size for step in steps):,} rounds")
        if clock.left("bank") <= 0 and done < 1.0:
            cut = f" (the time was up at {done:.0%})"
            break
    if not steps:
        raise RecipeError("the bank has no rounds: there are no prompts")
    found = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    found["category"] = np.array([requests[i].category for i in found["prompt_idx"]])
    accepted = found["accept"]
    progress.done(f"{accepted.size:,} rounds of {len(requests)} requests, {accepted.mean():.2f} accepted{cut}")
    return found


def _all_rounds(
    target: Qwen3, draft: Qwen3, requests: list[Request], settings: Settings, generator: torch.Generator
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Batch after batch: the part that is done, and the rounds of a step."""
    for first in range(0, len(requests), _SEQUENCES):
        batch = requests[first : first + _SEQUENCES]
        for part, rounds in _generated(target, draft, batch, settings, generator):
            rounds["prompt_idx"] += first
            yield (first + part * len(batch)) / len(requests), rounds


def _generated(
    target: Qwen3, draft: Qwen3, requests: list[Request], settings: Settings, generator: torch.Generator
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Round after round, until every request is long enough."""
    device, depth = generator.device, settings.depth
    lengths = torch.tensor([len(request.tokens) for request in requests], device=device)
    longest = int(lengths.max()) + settings.new_tokens + 2 * (depth + 1)
    tokens = torch.full((len(requests), longest), _END, device=device)
    for row, request in enumerate(requests):
        tokens[row, : len(request.tokens)] = torch.tensor(request.tokens, device=device)
    end = lengths + settings.new_tokens
    number = 0
    while (active := (lengths < end).nonzero()[:, 0]).numel():
        batch = Batch(tokens[active], lengths[active])
        offered, confidence = _draft(draft, batch, settings, generator)
        accepted, last, experts = _verify(target, batch, offered, settings, generator)
        batch.tokens[batch.rows[:, 0], batch.length + accepted] = last
        context = batch.length.cpu().numpy()
        tokens[active], lengths[active] = batch.tokens, batch.length + accepted + 1
        rounds = {
            "prompt_idx": active.cpu().numpy(),
            "round_idx": np.full(active.numel(), number),
            "context_len": context,
            "accept": accepted.cpu().numpy(),
            "confidence": confidence.cpu().numpy(),
            "experts": experts.cpu().numpy().astype(np.uint8 if target.shape.experts <= 256 else np.uint16),
        }
        number += 1
        yield float(((lengths - end).clamp(max=0) / settings.new_tokens + 1.0).mean()), rounds


def _draft(draft: Qwen3, batch: Batch, settings: Settings, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw γ tokens, one pass each: their distributions, (sequences, γ, vocabulary), and the probability of each drawn.

    The tokens are written into the batch, behind what is committed.
    """
    offered, confidence = [], []
    for ahead in range(settings.depth):
        place = batch.length + ahead
        probability, _ = _distributions(draft, batch, place[:, None] - 1, settings)
        drawn = torch.multinomial(probability[:, 0], 1, generator=generator)
        batch.tokens[batch.rows, place[:, None]] = drawn
        offered.append(probability[:, 0])
        confidence.append(probability[:, 0].gather(1, drawn)[:, 0])
    return torch.stack(offered, dim=1), torch.stack(confidence, dim=1)


def _verify(
    target: Qwen3, batch: Batch, offered: Tensor, settings: Settings, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """One pass over the run of γ + 1 positions: how many drafts are accepted, the token behind them, experts chosen.

    A draft x is kept with probability min(1, p(x) / q(x)); at the first that is not, the token comes from what p has
    above q; where all are kept, from p. What is committed is then distributed exactly as the target's own samples.
    """
    depth = settings.depth
    run = batch.length[:, None] - 1 + torch.arange(depth + 1, device=offered.device)
    wanted, experts = _distributions(target, batch, run, settings)
    drafted = batch.tokens.gather(1, run[:, 1:])[..., None]
    p, q = wanted[:, :depth].gather(2, drafted)[..., 0], offered.gather(2, drafted)[..., 0]
    kept = torch.rand(p.shape, generator=generator, device=p.device) * q < p
    accepted = kept.long().cumprod(1).sum(1)
    nothing = torch.zeros_like(wanted[:, :1])
    above = (wanted - torch.cat([offered, nothing], dim=1)).clamp(min=0)[batch.rows[:, 0], accepted]
    plain = wanted[batch.rows[:, 0], accepted]
    above = torch.where(above.sum(1, keepdim=True) > 0, above, plain)  # p = q up to rounding
    return accepted, torch.multinomial(above, 1, generator=generator)[:, 0], experts


def _distributions(model: Qwen3, batch: Batch, places: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """After the tokens at `places`: (sequences, places, vocabulary), and their experts, (…, places, layers, k)."""
    last = int(places.max()) + 1
    with precision(batch.tokens.device):
        hidden, routings = model(batch.tokens[:, :last])
        logits = model.logits(hidden[batch.rows, places])
    logits[..., _END] = -torch.inf
    chosen = [routing.experts[batch.rows, places] for routing in routings]
    experts = torch.stack(chosen, dim=2) if chosen else torch.zeros(0)
    return (logits / settings.temperature).softmax(-1), experts


# --- files ---


def read_requests(out: Path, settings: Settings) -> list[Request]:
    """From `prompts.json`: by category, as many as are wanted."""
    try:
        tokenizer = Tokenizer.from_file(str(out / "target" / "tokenizer.json"))
        prompts = json.loads((out / "prompts.json").read_text(encoding="utf-8"))
    except Exception as error:  # the tokenizers package raises plain exceptions
        raise RecipeError(f"{out}: the bank needs prompts.json and target/ there ({error})") from None
    found = [
        Request(category, ids[: settings.prompt_tokens])
        for category, texts in prompts.items()
        for text in texts[: settings.prompts]
        if (ids := tokenizer.encode(text).ids)
    ]
    # Mixed, so that all categories lose alike where the clock cuts the capture short.
    return [found[i] for i in np.random.default_rng([settings.seed, 4]).permutation(len(found))]


def keep_rounds(rounds: dict[str, Any], path: Path) -> None:
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, **rounds)


def write_bank(rounds: dict[str, Any], folder: Path, settings: Settings) -> None:
    """In the specdec-calibration layout: acceptance, confidence, routing, and what each routed position was."""
    try:
        import polars as pl  # noqa: PLC0415 (not on every machine with a GPU)
    except ImportError:
        raise RecipeError(
            "writing the bank needs polars (pip install polars); the rounds are kept, so the same command goes on there"
        ) from None
    count, depth = rounds["accept"].size, settings.depth
    small = {"prompt_idx": pl.Int32, "turn": pl.Int16, "round_idx": pl.Int32, "context_len": pl.Int32}
    keys = pl.DataFrame(
        {
            "model": ["reference-moe"] * count,
            "speculator": ["draft_model:reference-draft"] * count,
            "config": [f"t{settings.temperature:g}_g{depth}"] * count,
            "category": rounds["category"].tolist(),
            "prompt_idx": rounds["prompt_idx"],
            "turn": np.zeros(count, dtype=np.int16),
            "round_idx": rounds["round_idx"],
        }
    ).cast({name: kind for name, kind in small.items() if name != "context_len"})
    accept = pl.Series("accept", rounds["accept"], dtype=pl.Int16)
    context = pl.Series("context_len", rounds["context_len"], dtype=pl.Int32)
    kept = [pl.Series(f"acc{d}", rounds["accept"] > d).cast(pl.Int8) for d in range(depth)]
    confidence = [pl.Series(f"conf{d}", rounds["confidence"][:, d], dtype=pl.Float32) for d in range(depth)]
    with whole_folder(folder) as unfinished:
        keys.with_columns(context, accept, *kept).write_parquet(unfinished / "acceptance.parquet")
        keys.with_columns(*confidence).write_parquet(unfinished / "speculator.parquet")
        np.save(unfinished / "routing.npy", rounds["experts"].reshape(-1, *rounds["experts"].shape[2:]))
        _positions(keys, rounds["accept"], depth + 1).write_parquet(unfinished / "routing_meta.parquet")


def _positions(keys: Any, accept: Any, run: int) -> Any:
    """A row a position: the token that was committed last, then the drafts."""
    import polars as pl  # noqa: PLC0415

    position = np.tile(np.arange(run), accept.size)
    block = np.repeat(np.arange(accept.size), run)
    return keys[block].with_columns(
        pl.Series("routing_idx", np.arange(block.size), dtype=pl.Int64),
        pl.Series("routing_block_idx", block, dtype=pl.Int32),
        pl.col("prompt_idx").alias("request_idx"),
        pl.Series("position", position, dtype=pl.Int16),
        pl.Series("accepted", position <= accept[block]),
    )


def summary(rounds: dict[str, Any], pool: int) -> dict[str, Any]:
    """Mean accepted and first-token acceptance by category, and the distinct experts of a run."""
    found: dict[str, Any] = {"rounds": int(rounds["accept"].size), "categories": {}}
    for category in dict.fromkeys(rounds["category"].tolist()):
        mine = rounds["category"] == category
        accept, experts = rounds["accept"][mine], rounds["experts"][mine]
        touched = np.zeros((*experts.shape[::2], pool), dtype=bool)  # rounds, layers
        row, layer = np.ogrid[: experts.shape[0], : experts.shape[2]]
        for position in range(experts.shape[1]):
            touched[row[..., None], layer[..., None], experts[:, position]] = True
        found["categories"][category] = {
            "rounds": int(mine.sum()),
            "mean_accepted": round(float(accept.mean()), 3),
            "first_accepted": round(float((accept > 0).mean()), 3),
            "distinct_experts_of_a_run": round(float(touched.sum(-1).mean()), 2),
        }
    return found
