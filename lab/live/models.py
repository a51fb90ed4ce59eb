"""The served models: the reference MoE if available, else a small one with random weights."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    target: Path
    draft: Path
    prompts: dict[str, list[list[int]]]  # token ids, by category
    is_reference: bool


def reference_folder() -> Path | None:
    configured = os.environ.get("SPECMARGIN_REFERENCE_MOE")
    folder = Path(configured) if configured else ROOT.parent / "shared" / "reference-moe"
    return folder if (folder / "target" / "config.json").is_file() else None


@cache
def find_pair(scratch: Path) -> Pair:
    folder = reference_folder()
    return _reference(folder) if folder is not None else _random(scratch)


def _reference(folder: Path) -> Pair:
    from tokenizers import Tokenizer  # noqa: PLC0415 (only in the live environment)

    tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
    texts = json.loads((folder / "prompts.json").read_text())
    prompts = {
        name: [tokenizer.encode(text).ids[:160] for text in category]
        for name, category in texts.items()
        if name in ("cpp", "python", "prose")
    }
    return Pair(target=folder / "target", draft=folder / "draft", prompts=prompts, is_reference=True)


def _random(scratch: Path) -> Pair:
    """A Qwen3-MoE of a few layers with random weights, and a drafter that is the same model with a little noise: its
    acceptance is high enough for tests, not for a study."""
    import torch  # noqa: PLC0415
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = Qwen3MoeForCausalLM(config).to(torch.float32)
    model.lm_head.weight.data *= 6.0  # sharper: greedy choices must not depend on rounding
    target, draft = scratch / "target", scratch / "draft"
    model.save_pretrained(target)
    for parameter in model.parameters():
        parameter.data += 0.02 * parameter.data.std() * torch.randn_like(parameter)
    model.save_pretrained(draft)
    for folder in (target, draft):
        _save_tokenizer(folder)
    generator = torch.Generator().manual_seed(1)
    prompts = {
        name: [torch.randint(1, 512, (24,), generator=generator).tolist() for _ in range(40)]
        for name in ("cpp", "python", "prose")
    }
    return Pair(target=target, draft=draft, prompts=prompts, is_reference=False)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    words = {f"w{i}": i for i in range(512)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0", "unk_token": "w1"})
    )
