"""The user's prompts as token ids: with real weights, routing and acceptance are then those of real text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specmargin.errors import InputError
from specmargin.files import read_json


def read_prompts(path: Path, model: str) -> tuple[tuple[int, ...], ...]:
    """A JSON list, or an object of lists by category: texts, which need the model's tokenizer, or token ids."""
    prompts = list(_prompts(read_json(path, InputError)))
    if not prompts:
        raise InputError(f"{path}: holds no prompts; expected a JSON list of texts or of lists of token ids")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(_encoded(texts, model)) if texts else iter(())
    return tuple(next(encoded) if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)


def _prompts(values: Any) -> Iterator[str | list[int]]:
    if isinstance(values, str) or (isinstance(values, list) and values and all(isinstance(v, int) for v in values)):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _prompts(value)


def _encoded(texts: list[str], model: str) -> list[tuple[int, ...]]:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 (comes with every engine)
    except ModuleNotFoundError:
        raise InputError("tokenizers is not installed; give prompts as token ids, or run where the engine is") from None
    file = Path(model) / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{file} is needed to encode prompts and does not exist; give token ids instead")
    tokenizer = Tokenizer.from_file(str(file))
    return [tuple(tokenizer.encode(text).ids) for text in texts]
