"""Which models share a tokenizer: a draft model's token ids must mean the same to the target.

A configuration does not name its tokenizer. Its family and the size of its vocabulary tell the published ones apart.
"""

from __future__ import annotations

from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import usable_models

# By tokenizer: how the names of its families begin, and its vocabulary as models pad it.
_TOKENIZERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "Command A": (("cohere",), (256_000,)),
    "DeepSeek-V3": (("deepseek",), (129_280,)),
    "Gemma": (("gemma",), (262_144, 262_208)),
    "GLM-4": (("glm",), (151_552,)),
    "GLM-5": (("glm",), (154_880,)),
    "gpt-oss": (("gpt_oss",), (201_088,)),
    "Kimi-K2": (("deepseek", "kimi"), (163_840,)),
    "Llama 3": (("llama",), (128_256,)),
    "Llama 4": (("llama",), (202_048,)),
    "MiniMax": (("minimax",), (200_064,)),
    "Mixtral": (("mixtral", "mistral"), (32_000,)),
    "Nemotron": (("nemotron",), (131_072,)),
    "North": (("cohere",), (262_144,)),
    "Qwen2 and Qwen3": (("qwen",), (151_936, 152_064)),
    "Qwen3.5": (("qwen",), (248_320,)),
    "Step 3": (("step",), (128_896,)),
}
_NEARLY = 128  # tokens by which vocabularies of one tokenizer differ: llama.cpp's limit for draft models
_SMALLER = 0.2  # of the target's parameters: a draft model holds at most these
_CHEAPER = 0.5  # of the target's parameters per token: a draft model reads at most these in each of its passes
_TRIED = 2  # draft models that `--drafter all` tries


def tokenizer_of(model: Architecture) -> str | None:
    """The name of its tokenizer; None where family and vocabulary are of none that is known."""
    for name, (families, sizes) in _TOKENIZERS.items():
        if model.family.startswith(families) and model.vocabulary in sizes:
            return name
    return None


def same_tokenizer(target: Architecture, draft: Architecture) -> bool | None:
    """Whether token ids mean the same to both; None where it cannot be told."""
    names = tokenizer_of(target), tokenizer_of(draft)
    if None not in names:
        return names[0] == names[1]
    return None if abs(target.vocabulary - draft.vocabulary) <= _NEARLY else False


def draft_models(target: Architecture) -> list[str]:
    """Models that could draft for this one, the smallest first: its tokenizer and generation, much smaller.

    The size of the vocabulary must be the same, which vLLM checks.
    """
    models = usable_models() if tokenizer_of(target) is not None else []
    fitting = [model for model in models if model.name != target.name and _could_draft(model, target)]
    return [model.name for model in sorted(fitting, key=lambda model: model.parameters)[:_TRIED]]


def _could_draft(model: Architecture, target: Architecture) -> bool:
    return (
        model.vocabulary == target.vocabulary
        and tokenizer_of(model) == tokenizer_of(target)
        and _generation(model) == _generation(target)
        and model.parameters <= _SMALLER * target.parameters
        and _read(model) <= _CHEAPER * _read(target)
    )


def _generation(model: Architecture) -> str:
    return model.family.partition("_")[0]


def _read(model: Architecture) -> int:
    return model.active_parameters(count_embedding=False)
