"""A Hugging Face `config.json` (or a folder with one, or an id in the local hub cache) -> Architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specmargin.architecture.config import Config
from specmargin.architecture.families import (
    deepseek,
    deepseek_v4,
    dense,
    general,
    glm_next,
    kimi_linear,
    mixture,
    nemotron,
    qwen_hybrid,
    windowed,
)
from specmargin.architecture.families.builder import FamilyReader, Reading
from specmargin.architecture.precision import BF16, Precision, precision_of_dtype
from specmargin.architecture.quantization import QuantizationScheme, all_weights, read_scheme, unquantized
from specmargin.architecture.types import Architecture
from specmargin.errors import ArchitectureError, UnknownFamilyError
from specmargin.files import STANDARD_INPUT, origin, read_json
from specmargin.sources import Source, published

FAMILIES: dict[str, FamilyReader] = {
    "bailing_moe_v2": mixture.bailing_moe_v2,
    "cohere2": dense.cohere2,
    "cohere2_moe": mixture.cohere2_moe,
    "deepseek_v3": deepseek.latent,
    "deepseek_v32": partial(deepseek.latent, selects=True),
    "deepseek_v4": deepseek_v4.deepseek_v4,
    "deepseek_v41": deepseek_v4.deepseek_v41,
    "gemma4": windowed.gemma4,
    "glm4_moe": mixture.glm4_moe,
    "glm5_next": glm_next.glm5_next,
    "glm4_moe_lite": deepseek.latent,
    "glm_ocr": dense.glm_ocr,
    "glm_moe_dsa": partial(deepseek.latent, selects=True),
    "gpt_oss": mixture.gpt_oss,
    "hy_v3": mixture.hy_v3,
    "kimi_linear": kimi_linear.kimi_linear,
    "laguna": windowed.laguna,
    "llama": dense.llama,
    "llama4": windowed.llama4,
    "mimo": dense.mimo,
    "mimo_v2": windowed.mimo_v2,
    "minimax_m2": mixture.minimax_m2,
    "minimax_m3": mixture.minimax_m3,
    "mistral": dense.mistral,
    "mixtral": mixture.mixtral,
    "nemotron-nas": dense.nemotron_nas,
    "nemotron_h": nemotron.nemotron_h,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_5": qwen_hybrid.qwen3_5,
    "qwen3_5_moe": qwen_hybrid.qwen3_5,
    "qwen3_moe": mixture.qwen3_moe,
    "qwen3_next": qwen_hybrid.qwen3_next,
    "qwen4_exp": qwen_hybrid.qwen4_exp,
    "step3p5": windowed.step3p5,
}
# Other values of `model_type`, and the family that they are read as.
_FAMILY_OF = {
    "bailing_moe": "bailing_moe_v2",
    "deepseek_ref": "deepseek_v4",
    "deepseek_v41_text": "deepseek_v41",
    "gemma4_text": "gemma4",
    "glm5_next_text": "glm5_next",
    "gemma4_unified_text": "gemma4",
    "glm_ocr_text": "glm_ocr",
    "kimi_k2": "deepseek_v3",
    "llama4_text": "llama4",
    "mimo_v2_flash": "mimo_v2",
    "minimax_m3_vl": "minimax_m3",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "qwen4_exp_text": "qwen4_exp",
}

# Families that are refused, and why: a refusal is better than a wrong price.
REFUSED = {
    "step3p7": "this form of it does not state the heads of its sliding layers (attention_other_setting); "
    "step-3.7-flash is bundled, and the text_config of the model itself (step3p5) is read",
    "deepseek_v2": "its configuration mixes two generations of MLA; DeepSeek V3 and later are read",
}

_INHERITED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")


def read_architecture(
    values: Mapping[str, Any],
    *,
    name: str,
    origin: str,
    quantization: Mapping[str, Any] | None = None,
    weights: Precision | None = None,
    source: Source | None = None,
) -> Architecture:
    """The architecture of one configuration; `weights` overrides how its linear layers are stored."""
    text = _text_section(values, origin)
    given = text.get("model_type") or values.get("model_type")
    if given is not None and not isinstance(given, str):
        raise ArchitectureError(f"{origin}: 'model_type' must be text, got {given!r}")
    model_type = str(given)
    family = _FAMILY_OF.get(model_type, model_type)
    reader = _reader(family, origin)
    try:
        reading = Reading(
            name=name,
            family=family,
            config=Config(origin=origin, values=text),
            scheme=_scheme(text, quantization, weights, origin),
            source=source or published(f"{origin} (Hugging Face configuration)"),
        )
        return reader(reading)
    except ArchitectureError as error:  # the dataclasses validate themselves without knowing the file
        if str(error).startswith(origin):
            raise
        raise type(error)(f"{origin}: {error}") from None
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, re.error) as error:
        # Readers check the keys they name; this covers other values of the wrong type, such as a list for a number.
        raise ArchitectureError(
            f"{origin}: a value has the wrong type for the family {model_type!r} ({error})"
        ) from error


def load_architecture(path: Path, *, weights: Precision | None = None, name: str | None = None) -> Architecture:
    """Read a `config.json`, or a model folder that holds one (with `hf_quant_config.json` beside it)."""
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not os.path.lexists(file):
        raise ArchitectureError(f"{path}: no config.json here; give the file itself, a model folder, or a bundled name")
    if str(path) not in STANDARD_INPUT and not os.path.lexists(file):
        raise ArchitectureError(f"{path}: no such file; give a config.json, a model folder, or a bundled name")
    values = _read_json(file)
    quantization_file = file.with_name("hf_quant_config.json")
    quantization = None
    if quantization_file.is_file():
        quantization = _read_json(quantization_file).get("quantization")
        if not isinstance(quantization, dict):
            raise ArchitectureError(
                f"{quantization_file}: the section 'quantization' is missing; repair or remove the file"
            )
    return read_architecture(
        values,
        name=name or _name(file),
        origin=origin(file),
        quantization=quantization,
        weights=weights,
    )


def _name(file: Path) -> str:
    if not file.is_file():  # standard input, or a pipe of the shell
        return "stdin"
    return file.parent.resolve().name if file.name == "config.json" else file.stem


def cached_config(hub_id: str) -> Path | None:
    """The newest snapshot of `org/name` in the local Hugging Face cache, or None. Nothing is downloaded."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = cache / f"models--{hub_id.replace('/', '--')}" / "snapshots"
    if not snapshots.is_dir():
        return None
    folders = [folder for folder in snapshots.iterdir() if (folder / "config.json").exists()]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _read_json(file: Path) -> dict[str, Any]:
    values = read_json(file, ArchitectureError)
    if not isinstance(values, dict):
        raise ArchitectureError(
            f"{origin(file)}: a model configuration is a JSON object, not a {type(values).__name__}"
        )
    return values


def _text_section(values: Mapping[str, Any], origin: str) -> Mapping[str, Any]:
    """The language model's part: multimodal configurations keep it in `text_config`."""
    nested = values.get("text_config")
    if nested is None:
        return values
    if not isinstance(nested, Mapping):
        raise ArchitectureError(f"{origin}: 'text_config' must be an object")
    inherited = {key: values[key] for key in _INHERITED if values.get(key) is not None}
    return {**inherited, **{key: value for key, value in nested.items() if value is not None}}


def _reader(family: str, origin: str) -> FamilyReader:
    if family in FAMILIES:
        return FAMILIES[family]
    if family in REFUSED:
        raise UnknownFamilyError(f"{origin}: the family {family!r} is not read: {REFUSED[family]}")
    if family == "None":
        raise ArchitectureError(f"{origin}: the key 'model_type' is missing, so the family is unknown")
    return general.general


def _scheme(
    text: Mapping[str, Any], quantization: Mapping[str, Any] | None, weights: Precision | None, origin: str
) -> QuantizationScheme:
    dtype = text.get("torch_dtype") or text.get("dtype")
    base = precision_of_dtype(str(dtype)) if dtype else BF16
    if weights is not None:
        return all_weights(weights, base)
    section = text.get("quantization_config")
    section = quantization if section in (None, {}) else section
    if section is None:
        return unquantized(base)
    if not isinstance(section, Mapping):
        raise ArchitectureError(f"{origin}: 'quantization_config' must be an object")
    return read_scheme(section, base=base, origin=origin)
