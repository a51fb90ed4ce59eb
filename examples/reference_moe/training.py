"""Training the target on text and the drafter on the target, with checkpoints and a clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from model import Qwen3, balance_loss
from settings import Clock, Progress, RecipeError, Settings, whole_file
from text import Tokens
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (as everybody writes it)

Loss = Callable[[Tensor], tuple[Tensor, float]]  # tokens -> what is minimised, what is shown

_WARM_UP, _LAST_RATE = 0.03, 0.05  # parts of the schedule and of the peak
_CHECKPOINT_SECONDS = 30.0
_STAGES = {"target": 2, "draft": 3}  # so that no two draw the same numbers


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """Products in bf16 on a GPU; float32 on a CPU, where bf16 gains nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def train_target(tokens: Tokens, settings: Settings, device: torch.device, out: Path, clock: Clock) -> Qwen3:
    target = _made(settings.target, settings, "target").to(device)

    def loss(batch: Tensor) -> tuple[Tensor, float]:
        hidden, routings = target(batch[:, :-1])
        entropy = F.cross_entropy(target.logits(hidden).flatten(0, 1), batch[:, 1:].flatten())
        return entropy + settings.balance * balance_loss(routings), entropy.item()

    _train("target", target, loss, settings.target_steps, tokens, settings, out, clock)
    return target


def train_draft(
    target: Qwen3, tokens: Tokens, settings: Settings, device: torch.device, out: Path, clock: Clock
) -> Qwen3:
    """Distilled: minimise the divergence of the drafter's distribution from the target's, on the same text."""
    draft = _made(settings.draft, settings, "draft").to(device)
    target = target.to(device).eval()

    def loss(batch: Tensor) -> tuple[Tensor, float]:
        with torch.no_grad():
            wanted = target.logits(target(batch[:, :-1])[0]).flatten(0, 1).log_softmax(-1)
        given = draft.logits(draft(batch[:, :-1])[0]).flatten(0, 1).log_softmax(-1)
        divergence = F.kl_div(given, wanted, log_target=True, reduction="batchmean")
        return divergence, divergence.item()

    _train("draft", draft, loss, settings.draft_steps, tokens, settings, out, clock)
    return draft


def _made(shape: Any, settings: Settings, stage: str) -> Qwen3:
    generator = torch.Generator().manual_seed(settings.seed * 1000 + _STAGES[stage])
    return Qwen3(shape).initialise(generator)


def _train(
    stage: str,
    model: Qwen3,
    loss_of: Loss,
    steps: int,
    tokens: Tokens,
    settings: Settings,
    out: Path,
    clock: Clock,
) -> None:
    """Until the steps are done or the time is up, whichever comes first; the learning rate falls with whichever leads.

    So with time enough the result depends on the seed alone, and with too little it is still a finished schedule.
    """
    device = next(model.parameters()).device
    saved = out / "checkpoints" / f"{stage}.pt"
    optimizer = _optimizer(model, settings.learning_rate)
    step, begun, shown = _resumed(saved, model, optimizer)
    allowed = clock.left(stage)
    if allowed <= 0 and step < steps:
        raise RecipeError(f"no time is left to train the {stage}: give more --minutes (what is done so far is kept)")
    stream = torch.from_numpy(tokens.astype(np.int32)).to(device)
    progress, part, last_save = Progress(stage), begun, clock.elapsed
    progress.begin(begun)
    while step < steps and part < 1.0:
        batch = _batch(stream, settings, [settings.seed, _STAGES[stage], step])
        _set_rate(optimizer, settings.learning_rate, part)
        with precision(device):
            loss, now = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not math.isfinite(now):
            raise RecipeError(f"{stage}: the loss is {now} at step {step}; try a lower --learning-rate")
        shown = now if step == 0 else 0.95 * shown + 0.05 * now
        step += 1
        spent = 0.0 if allowed == math.inf else 1.0 - max(clock.left(stage), 0.0) / allowed
        part = max(step / steps, begun + (1.0 - begun) * spent)
        progress.show(part, f"step {step} of {steps}, loss {shown:.3f}")
        if clock.elapsed - last_save > _CHECKPOINT_SECONDS or step == steps // 2:
            _save(saved, model, optimizer, step=step, part=part, shown=shown)
            last_save = clock.elapsed
    why = "" if step == steps else " (the time was up)"
    progress.done(f"{step:,} steps of {batch_tokens(settings):,} tokens, loss {shown:.3f} nats{why}")


def batch_tokens(settings: Settings) -> int:
    return settings.batch * settings.length


def _batch(stream: Tensor, settings: Settings, seed: list[int]) -> Tensor:
    """Windows of the text at random places, which the seed and the step alone decide."""
    places = np.random.default_rng(seed).integers(0, stream.numel() - settings.length - 1, settings.batch)
    start = torch.from_numpy(places).to(stream.device)
    return stream[start[:, None] + torch.arange(settings.length + 1, device=stream.device)].long()


def _optimizer(model: Qwen3, rate: float) -> torch.optim.AdamW:
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    scales = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": scales, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, peak: float, part: float) -> None:
    """Up on a straight line, down on a cosine."""
    fall = (1.0 + math.cos(math.pi * part)) / 2.0
    rate = peak * min((part + 1e-3) / _WARM_UP, _LAST_RATE + (1.0 - _LAST_RATE) * fall)
    for group in optimizer.param_groups:
        group["lr"] = rate


def _save(path: Path, model: Qwen3, optimizer: torch.optim.Optimizer, **progress: float) -> None:
    with whole_file(path) as unfinished:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **progress}, unfinished)


def _resumed(path: Path, model: Qwen3, optimizer: torch.optim.Optimizer) -> tuple[int, float, float]:
    """Steps done, part of the schedule, and the loss then; zeros where there is no checkpoint."""
    if not path.is_file():
        return 0, 0.0, 0.0
    try:
        saved = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RecipeError(f"{path}: not a checkpoint of this run ({error}); delete it to start anew") from None
    return saved["step"], saved["part"], saved["shown"]


@torch.no_grad()
def held_out(target: Qwen3, tokens_by_category: dict[str, Tokens], settings: Settings) -> dict[str, Any]:
    """Nats a token on files that training never saw, and how the experts are used there."""
    device = next(target.parameters()).device
    losses, chosen = {}, []
    for category, tokens in tokens_by_category.items():
        rows = min(tokens.size // (settings.length + 1), settings.batch)
        if rows == 0:
            continue
        batch = torch.from_numpy(tokens[: rows * (settings.length + 1)].astype(np.int64)).view(rows, -1).to(device)
        with precision(device):
            hidden, routings = target(batch[:, :-1])
            logits = target.logits(hidden)
        losses[category] = round(F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item(), 4)
        chosen.append(torch.stack([routing.experts.flatten(0, 1) for routing in routings]))
    if not chosen:
        return {"nats": losses}
    return {"nats": losses, "experts": _usage(torch.cat(chosen, dim=1).cpu().numpy(), target.shape.experts)}


def _usage(experts: npt.NDArray[np.int64], pool: int) -> dict[str, list[float]]:
    """By layer: entropy of the shares over that of equal ones, the largest share over the mean, experts never used."""
    found: dict[str, list[float]] = {"evenness": [], "busiest_over_mean": [], "never_used": []}
    for layer in experts:
        share = np.bincount(layer.ravel(), minlength=pool) / layer.size
        used = share[share > 0]
        found["evenness"].append(round(float(-(used * np.log(used)).sum() / np.log(pool)), 4))
        found["busiest_over_mean"].append(round(float(share.max() * pool), 2))
        found["never_used"].append(int((share == 0).sum()))
    return found
