"""What a server says of its own settings: model, release, speculation, graphs and limits, each where it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specmargin.errors import EngineError
from specmargin.live.engine_metrics import EngineReading
from specmargin.live.observation import ServerSettings
from specmargin.live.server import Server

#: vLLM's `CUDAGraphMode` (config/compilation.py) as JSON has it: numbers, or pairs of decode and mixed batches.
_GRAPH_MODES = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}


def read_settings(server: Server, reading: EngineReading) -> ServerSettings:
    """A page that the server does not have leaves its fields empty."""
    models = _page(server, "/v1/models")
    info = _page(server, "/server_info?config_format=json")
    return ServerSettings(**(_of_models(models) | _of_vllm(info, _page(server, "/version"), reading)))


def _page(server: Server, path: str) -> Any:
    try:
        return json.loads(server.page(path))
    except (EngineError, ValueError, RecursionError):
        return None


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _of_models(models: Any) -> dict[str, Any]:
    listed = _at(models, "data")
    first = listed[0] if isinstance(listed, list) and listed else None
    return {
        "model": _text(_at(first, "root")) or _text(_at(first, "id")),
        "max_context": _number(_at(first, "max_model_len")),
    }


def _of_vllm(info: Any, version: Any, reading: EngineReading) -> dict[str, Any]:
    """`/server_info` answers where VLLM_SERVER_DEV_MODE is set; `cache_config_info` is on the metrics page."""
    blocks, block_tokens = (_number(reading.info.get(name)) for name in ("num_gpu_blocks", "block_size"))
    config = _at(info, "vllm_config")
    graph_mode = _at(config, "compilation_config", "cudagraph_mode")
    speculative = _at(config, "speculative_config")
    sizes = [
        _number(_at(config, "parallel_config", f"{kind}_parallel_size")) for kind in ("tensor", "pipeline", "data")
    ]
    return {
        "release": _text(_at(version, "version")),
        "gpu": _text(_at(info, "system_env", "nvidia_gpu_models")),
        "gpus": None if None in sizes else sizes[0] * sizes[1] * sizes[2],  # type: ignore[operator]
        "method": _text(_at(speculative, "method")),
        "depth": _number(_at(speculative, "num_speculative_tokens")) or len(reading.accepted_by_position) or None,
        "largest_graph": _number(_at(config, "compilation_config", "max_cudagraph_capture_size")),
        "graph_mode": None if graph_mode is None else _GRAPH_MODES.get(str(graph_mode), str(graph_mode)),
        "max_sequences": _number(_at(config, "scheduler_config", "max_num_seqs")),
        "max_step_tokens": _number(_at(config, "scheduler_config", "max_num_batched_tokens")),
        "kv_tokens": None if blocks is None or block_tokens is None else blocks * block_tokens,
    }
