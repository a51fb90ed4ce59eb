"""vLLM: `--speculative-config` with `num_speculative_tokens_per_batch_size`.

Ranges are inclusive and start at 1; the last one's K goes on beyond its end; K is clamped to
`num_speculative_tokens`. Full CUDA graphs are captured for the K's of the table, up to 512 positions a step (1024
on Blackwell). Switched off by vLLM under data parallelism. (vllm/v1/spec_decode/dynamic/utils.py, August 2026)
"""

from __future__ import annotations

import json
from typing import Any

from specmargin.decisions.schedule import make_schedule
from specmargin.engines.formats.base import (
    NOT_CONFIGURED,
    OVERLAP_NOTE,
    EngineConfig,
    EngineFormat,
    Request,
    fixed,
    off,
    single_depth,
)
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Parallel

_METHODS = {"mtp": "mtp", "eagle": "eagle3", "dflash": "dflash", "model": "draft_model", "ngram": "ngram", "ssd": "mtp"}
_PLACEHOLDERS = {"eagle": "<your EAGLE-3 head>", "dflash": "<your DFlash head>"}


def position_limit(device: Device) -> int:
    """vLLM's default `max_cudagraph_capture_size`: 1024 on data-centre Blackwell, 512 elsewhere."""
    return 1024 if device.name in ("b200", "b300", "gb200", "gb300") else 512


def write(request: Request) -> EngineConfig:
    notes = []
    if request.parallel is Parallel.DP_EP:
        schedule = fixed(request.table, single_depth(request.table, request.batches))
        notes.append("vLLM ignores a depth by batch size under data parallelism: one depth for all")
    else:
        schedule = make_schedule(request.table, min_gain=request.min_gain)
    if schedule.max_depth == 0:
        return EngineConfig(text="", schedule=off(request.table), notes=(NOT_CONFIGURED,))
    if request.drafter_kind == "free":
        notes.append("'free' is an assumption, not a drafter: the method is left for you to fill in")
    if request.drafter_kind == "ssd":
        notes.append(OVERLAP_NOTE)
    settings = _settings(request)
    settings["num_speculative_tokens"] = schedule.max_depth
    if len(schedule.ranges) > 1:
        settings["num_speculative_tokens_per_batch_size"] = [[r.first, r.last, r.depth] for r in schedule.ranges]
        notes.append("full CUDA graphs for a depth by batch size need vLLM's model runner V2")
    text = f"--speculative-config '{json.dumps(settings)}'"
    return EngineConfig(text=text, schedule=schedule, notes=tuple(notes))


def _settings(request: Request) -> dict[str, Any]:
    kind = request.drafter_kind
    settings: dict[str, Any] = {"method": _METHODS.get(kind, "<method>")}
    if kind in ("eagle", "dflash", "model"):
        settings["model"] = request.drafter_spec or _PLACEHOLDERS[kind]
    return settings


FORMAT = EngineFormat(name="vllm", title="vLLM", position_limit=position_limit, write=write)
