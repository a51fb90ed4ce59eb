"""The served models: a folder as `examples/reference_moe` writes it, or the same shapes with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import CATALOG
from lab.live.word_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from torch import Generator, Tensor

CATEGORIES = ("cpp", "python", "prose")
_PROMPT_TOKENS = 160
_PROMPTS = 24  # per category, of the random pair
_SHARPNESS = 6.0  # standard deviation of logits: greedy choices must not depend on rounding
_QUERY_NORM = 3.0  # sharper attention: the next token depends on a few of the tokens before
_REST = 0.1  # of the target's computation beyond what the drafter shares, in parts of the shared one
_DRAFTER_WIDTH = 128

Shapes = dict[str, tuple[int, ...]]
Weights = dict[str, "Tensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    folder: Path
    prompts: dict[str, list[list[int]]]  # token ids, by category

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def draft(self) -> Path:
        return self.folder / "draft"


def read_pair(folder: Path) -> Pair:
    """A target, its drafter and prompts, as the recipe of the reference MoE or `random_pair` wrote them."""
    from tokenizers import Tokenizer  # noqa: PLC0415 (only in the live environment)

    if not (folder / "target" / "config.json").is_file():
        recipe = "examples/reference_moe/recipe.py"
        raise SystemExit(f"{folder}: no reference MoE there; `python {recipe} --out {folder}` trains one")
    tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
    texts = json.loads((folder / "prompts.json").read_text())
    prompts = {name: [tokenizer.encode(text).ids[:_PROMPT_TOKENS] for text in texts[name]] for name in CATEGORIES}
    return Pair(folder=folder, prompts=prompts)


# --- random weights ---


def random_pair(folder: Path) -> Pair:
    """The shapes of the reference MoE with random weights, and a drafter that shares some of them.

    The drafter is the target's embedding, first attention and head. What else the target computes is a tenth as large:
    of greedy drafts 0.74, 0.54, 0.40, 0.30 and 0.22 survive by depth, and the drafter is surer where it is right
    (0.63 against 0.37 on average). Good enough for tests of engine and plug-in, not for a study of acceptance.
    """
    import torch  # noqa: PLC0415 (only in the live environment)

    entry = json.loads((CATALOG / "models" / "reference-moe.json").read_text())
    target = entry["config"] | {"tie_word_embeddings": False}  # a tied random head repeats the current token
    draft = target | {"model_type": "qwen3", "num_hidden_layers": 1, "intermediate_size": _DRAFTER_WIDTH}
    generator = torch.Generator().manual_seed(0)
    weights = _target_weights(target, generator)
    _write_model(folder / "target", target, weights, "Qwen3MoeForCausalLM")
    _write_model(folder / "draft", draft, _draft_weights(draft, weights, generator), "Qwen3ForCausalLM")
    (folder / "prompts.json").write_text(json.dumps(_random_texts(target["vocab_size"], generator)))
    return read_pair(folder)


def _target_weights(config: dict[str, Any], generator: Generator) -> Weights:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    experts = {
        f"mlp.experts.{expert}.{name}": shape
        for expert in range(config["num_experts"])
        for name, shape in _mlp(hidden, config["moe_intermediate_size"]).items()
    }
    layer = _attention(config) | {"mlp.gate": (config["num_experts"], hidden)} | experts
    weights = {
        f"model.layers.{number}.{name}.weight": _drawn(name, shape, generator, first=number == 0)
        for number in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    return weights | {
        "model.embed_tokens.weight": _normal((vocabulary, hidden), 1.0, generator),
        "model.norm.weight": _drawn("norm", (hidden,), generator),
        "lm_head.weight": _normal((vocabulary, hidden), _SHARPNESS * hidden**-0.5, generator),
    }


def _draft_weights(config: dict[str, Any], target: Weights, generator: Generator) -> Weights:
    """Those of the target that exist in a dense model of one layer, and a small MLP of its own."""
    shared = [f"model.layers.0.{name}.weight" for name in _attention(config)]
    shared += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    own = _mlp(config["hidden_size"], config["intermediate_size"])
    return {name: target[name] for name in shared} | {
        f"model.layers.0.mlp.{name}.weight": _drawn(name, shape, generator) for name, shape in own.items()
    }


def _attention(config: dict[str, Any]) -> Shapes:
    hidden, size = config["hidden_size"], config["head_dim"]
    queries, keys = size * config["num_attention_heads"], size * config["num_key_value_heads"]
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "post_attention_layernorm": (hidden,),
    }


def _mlp(hidden: int, width: int) -> Shapes:
    return {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}


def _drawn(name: str, shape: tuple[int, ...], generator: Generator, *, first: bool = False) -> Tensor:
    """Norms are constant. Matrices keep the scale of their input, except those that add little to the residual."""
    import torch  # noqa: PLC0415

    if len(shape) == 1:
        return torch.full(shape, _QUERY_NORM if name.endswith("q_norm") else 1.0)
    little = name.endswith("down_proj") or (name.endswith("o_proj") and not first)
    return _normal(shape, (_REST if little else 1.0) * shape[1] ** -0.5, generator)


def _normal(shape: tuple[int, ...], deviation: float, generator: Generator) -> Tensor:
    import torch  # noqa: PLC0415

    return deviation * torch.randn(shape, generator=generator)


def _random_texts(vocabulary: int, generator: Generator) -> dict[str, list[str]]:
    import torch  # noqa: PLC0415

    words = torch.randint(1, vocabulary, (len(CATEGORIES), _PROMPTS, _PROMPT_TOKENS), generator=generator).tolist()
    return {
        name: [" ".join(f"w{word}" for word in text) for text in texts]
        for name, texts in zip(CATEGORIES, words, strict=True)
    }


def _write_model(folder: Path, config: dict[str, Any], weights: Weights, architecture: str) -> None:
    """A Hugging Face folder: configuration, weights in bf16, and a tokenizer whose words are the numbers of tokens."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    described: dict[str, Any] = {
        "intermediate_size": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "norm_topk_prob": True,
    }
    described |= {"hidden_act": "silu", "eos_token_id": 0, "decoder_sparse_step": 1, "mlp_only_layers": []}
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]} | described | config, indent=1))
    rounded = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, config["vocab_size"])
