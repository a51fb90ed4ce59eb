"""What a server says of its own settings: model, release, speculation, graphs and limits, each where it answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from specmargin.errors import EngineError
from specmargin.live.engine_metrics import EngineReading
from specmargin.live.observation import ServerSettings
from specmargin.live.server import Server

Page = Callable[[str], Any]  # by path; None where the server does not have it

#: vLLM's `CUDAGraphMode` (config/compilation.py) as JSON has it: numbers, or pairs of decode and mixed batches.
_GRAPH_MODES = {"0": "NONE", "1": "PIECEWISE", "2": "FULL"}
_GRAPH_MODES |= {"[2, 0]": "FULL_DECODE_ONLY", "[2, 1]": "FULL_AND_PIECEWISE"}


def read_settings(server: Server, reading: EngineReading) -> ServerSettings:
    def page(path: str) -> Any:
        try:
            return json.loads(server.page(path))
        except (EngineError, ValueError, RecursionError):
            return None

    readers = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llamacpp": _llamacpp}
    told = readers[reading.engine](page, reading)
    return ServerSettings(**told, plug_in=reading.plug_in).filled_from(ServerSettings(**_listed(page("/v1/models"))))


def _listed(models: Any) -> dict[str, Any]:
    first = _first(_at(models, "data"))
    return {
        "model": _text(_at(first, "root")) or _text(_at(first, "id")),
        "max_context": _count(_at(first, "max_model_len")),
    }


def _vllm(page: Page, reading: EngineReading) -> dict[str, Any]:
    """`/server_info` answers where VLLM_SERVER_DEV_MODE is set; `cache_config_info` is on the metrics page."""
    info = page("/server_info?config_format=json")
    config = _at(info, "vllm_config")
    drafter, graphs = _at(config, "speculative_config"), _at(config, "compilation_config")
    scheduler, parallel = _at(config, "scheduler_config"), _at(config, "parallel_config")
    kv_tokens, blocks, block_tokens = (
        _count(reading.info.get(name)) for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    mode = _at(graphs, "cudagraph_mode")
    return {
        "release": _text(_at(page("/version"), "version")),
        "model": _text(_at(config, "model_config", "model")),
        "gpu": _gpu(_at(info, "system_env", "nvidia_gpu_models")),
        "gpus": _product(_at(parallel, f"{kind}_parallel_size") for kind in ("tensor", "pipeline", "data")),
        "speculates": "drafts" in reading.counters,  # exported only where speculation is configured
        "method": _text(_at(drafter, "method")),
        "depth": _count(_at(drafter, "num_speculative_tokens")) or len(reading.accepted_by_position) or None,
        "schedule": _schedule(_at(drafter, "num_speculative_tokens_per_batch_size")),
        "largest_graph": _count(_at(graphs, "max_cudagraph_capture_size")),
        "graph_mode": None if mode is None else _GRAPH_MODES.get(str(mode), str(mode)),
        "draft_graphs": False if _at(drafter, "enforce_eager") is True else None,
        "eager": _flag(_at(config, "model_config", "enforce_eager")),
        "overlaps": _flag(_at(scheduler, "async_scheduling")),
        "max_sequences": _count(_at(scheduler, "max_num_seqs")),
        "max_step_tokens": _count(_at(scheduler, "max_num_batched_tokens")),
        "kv_tokens": _product((blocks, block_tokens)) if kv_tokens is None else kv_tokens,
    }


def _sglang(page: Page, reading: EngineReading) -> dict[str, Any]:
    """`/server_info` (before 0.5.10: `/get_server_info`) has every argument, and the scheduler's own limits."""
    info = page("/server_info") or page("/get_server_info")
    state = _first(_at(info, "internal_states"))
    method, topk = _text(_at(info, "speculative_algorithm")), _count(_at(info, "speculative_eagle_topk"))
    graphs = _count(_at(info, "cuda_graph_config", "decode", "max_bs")) or _count(_at(info, "cuda_graph_max_bs"))
    eager = _flag(_at(info, "disable_cuda_graph"))
    if _at(info, "cuda_graph_config", "decode", "backend") == "disabled":
        eager = True
    verified = _count(_at(info, "speculative_num_draft_tokens")) if method else 1
    overlapped = _flag(_at(info, "disable_overlap_schedule"))
    return {
        "release": _text(_at(info, "version")),
        "model": _text(_at(info, "model_path")) or _text(_at(page("/get_model_info"), "model_path")),
        "gpus": _product(_at(info, name) for name in ("tp_size", "pp_size")),
        "speculates": True if method or reading.accept_length else False if info is not None else None,
        "method": method and method.lower(),
        "depth": _count(_at(info, "speculative_num_steps")) if method else _count(reading.depth),
        "largest_graph": 0 if eager else _product((graphs, verified)),  # SGLang counts sequences
        "eager": eager,
        "overlaps": None if overlapped is None else not overlapped,
        "max_sequences": _count(_at(state, "effective_max_running_requests_per_dp"))
        or _count(_at(info, "max_running_requests")),
        "max_step_tokens": _count(_at(info, "chunked_prefill_size")),
        "max_context": _count(_at(info, "context_length")) or _count(reading.gauges.get("max_context")),
        "kv_tokens": _count(_at(info, "max_total_num_tokens")) or _count(reading.gauges.get("kv_tokens")),
        "other": {"topk": str(topk)} if method and topk else {},
    }


def _trtllm(page: Page, reading: EngineReading) -> dict[str, Any]:
    """Labels of its `…_config_info`; their names are those of PR 12636."""
    info, gauges = reading.info, reading.gauges
    enabled = info.get("spec_enabled")
    return {
        "release": _text(_at(page("/version"), "version")),
        "model": info.get("model") or None,
        "gpu": info.get("gpu_type") or None,
        "gpus": _count(info.get("gpu_count")),
        "speculates": None if enabled is None else enabled.lower() == "true",
        "method": info.get("spec_method", "").lower() or None,
        "depth": _count(info.get("spec_num_tokens")) or len(reading.drafted_by_position) or None,
        "max_context": _count(info.get("max_model_len")),
        "max_sequences": _count(gauges.get("max_sequences")),
        "max_step_tokens": _count(gauges.get("max_step_tokens")),
        "kv_tokens": _product(gauges.get(name) for name in ("kv_blocks", "block_tokens")),
    }


def _llamacpp(page: Page, reading: EngineReading) -> dict[str, Any]:
    """`/slots` has the speculation of each slot, `/props` the server's defaults."""
    props, slots = page("/props"), page("/slots")
    rows = [slot for slot in slots if isinstance(slot, Mapping)] if isinstance(slots, list) else []
    methods = [_text(_at(slot, "params", "speculative.types")) for slot in rows]
    defaults = _at(props, "default_generation_settings")
    return {
        "release": _text(_at(props, "build_info")),
        "model": _text(_at(props, "model_path")),
        "speculates": any(slot.get("speculative") is True for slot in rows) if rows else None,
        "method": next((method for method in methods if method not in (None, "none")), None),
        "depth": len(reading.accepted_by_position) or None,
        "max_sequences": _count(_at(props, "total_slots")),
        "max_context": _count(_at(defaults, "n_ctx")),
        "temperature": _real(_at(defaults, "params", "temperature")),
    }


# --- values of other people's JSON ---


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _real(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    number = _real(value)
    return None if number is None or number < 0.0 else int(number)


def _product(values: Any) -> int | None:
    counts = [_count(value) for value in values]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _gpu(listed: Any) -> str | None:
    """Of `nvidia-smi -L`: "GPU 0: NVIDIA H100 80GB HBM3 (UUID: …)"."""
    match = re.search(r"(?:GPU \d+: )?([^\n(]*[^\n( ])", listed) if isinstance(listed, str) else None
    return None if match is None else match[1]


def _schedule(rows: Any) -> tuple[tuple[int, int, int], ...]:
    listed = [row for row in rows if isinstance(row, list) and len(row) == 3] if isinstance(rows, list) else []
    counts = [tuple(_count(value) for value in row) for row in listed]
    return tuple((row[0], row[1], row[2]) for row in counts if None not in row)  # type: ignore[misc]
