"""A tokenizer whose tokens are words, so that the words of an answer can be counted as its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """`w0 w1 …`, in the files that Hugging Face's fast tokenizers read."""
    words = {f"w{i}": i for i in range(vocabulary)}
    described: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w1"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0", "unk_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
