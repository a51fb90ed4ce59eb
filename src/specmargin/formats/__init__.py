"""A schedule in the configuration format of each engine."""

from __future__ import annotations

from specmargin.errors import CatalogError, nearest_names
from specmargin.formats import llamacpp, mlx, sglang, trtllm, vllm
from specmargin.formats.base import EngineFormat

ENGINES: dict[str, EngineFormat] = {
    form.name: form for form in (vllm.FORMAT, sglang.FORMAT, trtllm.FORMAT, llamacpp.FORMAT, mlx.FORMAT)
}
_ALIASES = {
    "tensorrt-llm": "trtllm",
    "trt-llm": "trtllm",
    "tensorrt": "trtllm",
    "llama.cpp": "llamacpp",
    "mlx-lm": "mlx",
}


def find_engine(name: str) -> EngineFormat:
    key = _ALIASES.get(name.lower(), name.lower())
    try:
        return ENGINES[key]
    except KeyError:
        hint = nearest_names(name, ENGINES)
        raise CatalogError(f"unknown engine {name!r}{hint}; known: {', '.join(ENGINES)}") from None
