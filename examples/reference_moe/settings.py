"""How large everything is, what is kept of it in a folder, and how the recipe fails, waits and tells."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"  # tokens 0 and 1
_ROPE_THETA, _NORM_EPSILON = 10_000.0, 1e-6


class RecipeError(Exception):
    """What the user can mend, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a Qwen3 model; without experts it is dense, and `intermediate` is its MLP's, else one expert's."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    experts: int = 0
    experts_per_token: int = 0
    rope_theta: float = _ROPE_THETA
    norm_epsilon: float = _NORM_EPSILON

    def config(self) -> dict[str, Any]:
        """The model's `config.json`, in Hugging Face's words."""
        made: dict[str, Any] = {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else "Qwen3ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": 4 * self.hidden if self.experts else self.intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": 1,
            "use_sliding_window": False,
            "max_window_layers": self.layers,
        }
        if self.experts:
            made |= {
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "moe_intermediate_size": self.intermediate,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "router_aux_loss_coef": 0.01,
            }
        return made

    @staticmethod
    def of(config: dict[str, Any]) -> Shape:
        """Of a `config.json` that `config` wrote (or one just like it)."""
        moe = config["model_type"] == "qwen3_moe"
        return Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            intermediate=config["moe_intermediate_size" if moe else "intermediate_size"],
            vocabulary=config["vocab_size"],
            max_positions=config["max_position_embeddings"],
            experts=config["num_experts"] if moe else 0,
            experts_per_token=config["num_experts_per_tok"] if moe else 0,
            rope_theta=config["rope_theta"],
            norm_epsilon=config["rms_norm_eps"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides the result, except the text."""

    seed: int
    target: Shape
    draft: Shape
    megabytes: float  # of text, a category
    target_steps: int
    draft_steps: int
    batch: int  # sequences a training step
    length: int  # tokens of a training sequence
    learning_rate: float
    balance: float  # weight of the load-balancing loss
    prompts: int  # a category
    prompt_tokens: int
    new_tokens: int  # that a request generates, at least
    depth: int  # γ
    temperature: float


FULL = Settings(
    seed=0,
    target=Shape(
        layers=6,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        intermediate=64,
        vocabulary=4096,
        max_positions=1024,
        experts=64,
        experts_per_token=4,
    ),
    draft=Shape(
        layers=2, hidden=128, heads=2, kv_heads=1, head_dim=64, intermediate=384, vocabulary=4096, max_positions=1024
    ),
    megabytes=48.0,
    target_steps=6000,
    draft_steps=4500,
    batch=64,
    length=512,
    learning_rate=2e-3,
    balance=0.01,
    prompts=128,
    prompt_tokens=128,
    new_tokens=128,
    depth=8,
    temperature=0.6,
)

# For tests, and to see the recipe work on a laptop in half a minute: nothing worth studying comes of it.
TINY = replace(
    FULL,
    target=replace(
        FULL.target,
        layers=2,
        hidden=64,
        heads=2,
        kv_heads=1,
        head_dim=32,
        intermediate=32,
        vocabulary=512,
        max_positions=256,
        experts=8,
        experts_per_token=2,
    ),
    draft=replace(
        FULL.draft, layers=1, hidden=32, heads=1, head_dim=32, intermediate=64, vocabulary=512, max_positions=256
    ),
    megabytes=0.2,
    target_steps=60,
    draft_steps=40,
    batch=16,
    length=64,
    learning_rate=4e-3,
    prompts=4,
    prompt_tokens=32,
    new_tokens=24,
)


_ENDS = {"target": 0.60, "draft": 0.80, "bank": 0.97}  # parts of the time at which a stage ends; the rest: writing


class Clock:
    """The budget of one call, and how it is shared out."""

    def __init__(self, minutes: float | None) -> None:
        self._start = time.monotonic()
        self._seconds = None if minutes is None else 60.0 * minutes

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def left(self, stage: str) -> float:
        """Seconds until this stage has to end."""
        return float("inf") if self._seconds is None else _ENDS[stage] * self._seconds - self.elapsed


class Progress:
    """A line on standard error: every half second on a terminal, every ten in a log."""

    def __init__(self, name: str) -> None:
        self._name, self._start, self._from = name, time.monotonic(), 0.0
        self._terminal = sys.stderr.isatty()
        self._next = self._start + self._pause

    @property
    def _pause(self) -> float:
        return 0.5 if self._terminal else 10.0

    def begin(self, part: float) -> None:
        """What a checkpoint had done already does not count for the time left."""
        self._from = part

    def show(self, part: float, detail: str) -> None:
        now = time.monotonic()
        if now < self._next or part <= self._from:
            return
        self._next = now + self._pause
        left = (now - self._start) * (1.0 - part) / (part - self._from)
        line = f"{self._name}: {part:4.0%}, {left:.0f} s left, {detail}"
        print(line, end="\r" if self._terminal else "\n", file=sys.stderr, flush=True)

    def done(self, text: str) -> None:
        clear = "\x1b[K" if self._terminal else ""
        seconds = time.monotonic() - self._start
        print(f"{clear}{self._name}: {text} ({seconds:.0f} s)", file=sys.stderr, flush=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that is there with everything in it or not at all: filled beside its place, then renamed."""
    beside = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    yield beside
    beside.rename(path)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """As `whole_folder`, for a file, which may be replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.unfinished")
    yield beside
    beside.replace(path)
