"""Models as Hugging Face folders: `config.json`, `model.safetensors` (bf16), the tokenizer."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
from model import Qwen3
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from settings import END_OF_TEXT, PAD, RecipeError, Shape, whole_folder
from torch import Tensor

_EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def write_model(model: Qwen3, folder: Path, tokenizer: Path) -> None:
    weights = {name: part.contiguous() for name, part in _split(model).items()}
    with whole_folder(folder) as unfinished:
        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "model.safetensors").chmod(0o644)  # readable by a server of another user
        (unfinished / "config.json").write_text(json.dumps(model.shape.config(), indent=1) + "\n")
        shutil.copy(tokenizer, unfinished / "tokenizer.json")
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "pad_token": PAD,
            "model_max_length": model.shape.max_positions,
        }
        (unfinished / "tokenizer_config.json").write_text(json.dumps(described) + "\n")


def read_model(folder: Path) -> Qwen3:
    """With the weights as they were written, that is rounded to bf16: what an engine will serve."""
    try:
        shape = Shape.of(json.loads((folder / "config.json").read_text()))
        files = sorted(folder.glob("*.safetensors"))
        found = {name: part.float() for file in files for name, part in load_file(file).items()}
        model = Qwen3(shape)
        model.load_state_dict(_joined(found))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RecipeError(f"{folder}: not a Qwen3 model that this recipe wrote ({error})") from None
    return model


def _split(model: Qwen3) -> dict[str, Tensor]:
    """By Hugging Face's names: experts one by one. The LM head is tied to the embedding and not written."""
    found: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        part = weight.detach().to("cpu", torch.bfloat16)
        prefix, _, projection = name.removesuffix(".weight").rpartition(".")
        if not model.shape.experts or not prefix.endswith(".mlp") or projection == "gate":
            found[f"model.{name}"] = part
            continue
        pieces = part.chunk(model.shape.experts, dim=1 if projection == "down_proj" else 0)
        found |= {f"model.{prefix}.experts.{e}.{projection}.weight": piece for e, piece in enumerate(pieces)}
    return found


def _joined(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    found: dict[str, Tensor] = {}
    pieces: dict[tuple[str, str], dict[int, Tensor]] = {}
    for name, weight in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            found[name.removeprefix("model.")] = weight
        else:
            pieces.setdefault((expert[1], expert[3]), {})[int(expert[2])] = weight
    for (prefix, projection), by_expert in pieces.items():
        ordered = [by_expert[e] for e in range(len(by_expert))]
        joined = torch.cat(ordered, dim=1 if projection == "down_proj" else 0)
        found[f"{prefix.removeprefix('model.')}.{projection}.weight"] = joined
    return found
