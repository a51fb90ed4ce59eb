"""SGLang: `--speculative-adaptive-config`, a JSON whose keys are lower bounds of batch size.

With one candidate per slot, the ladder is a schedule. SGLang pads the batch to a CUDA-graph size before it looks up
the slot, so ranges may only change after such a size, and the key is the next size. Adaptive depth exists
only for the EAGLE family (MTP included). (python/sglang/srt/speculative/adaptive_spec_params.py, August 2026)
"""

from __future__ import annotations

import json
import shlex
from itertools import chain

from specmargin.decisions.schedule import Range, Schedule, make_schedule
from specmargin.formats.base import (
    EngineConfig,
    EngineFormat,
    ScheduleRequest,
    drafter_method,
    drafter_model,
    empty_config,
    fixed_schedule,
    single_depth,
)
from specmargin.modes import Parallel

_ALGORITHMS = {"mtp": "EAGLE", "eagle": "EAGLE3", "dflash": "DFLASH", "model": "STANDALONE", "ngram": "NGRAM"}
_ADAPTIVE = ("mtp", "eagle")
_FILE = "specmargin-sglang.json"


def graph_batch_sizes(largest: int) -> list[int]:
    """SGLang's default capture sizes with speculation on (server_args.py)."""
    ladder = chain(range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8), range(272, largest + 1, 16))
    sizes = [size for size in ladder if size <= largest]
    return sizes if largest in sizes else [*sizes, largest]


def write(request: ScheduleRequest) -> EngineConfig:
    sizes = graph_batch_sizes(request.table.batches)
    adaptive = request.drafter_kind in _ADAPTIVE and request.parallel is not Parallel.DP_EP
    if adaptive:
        schedule = make_schedule(request.table, min_gain=request.min_gain, boundaries=sizes)
    else:
        schedule = fixed_schedule(request.table, single_depth(request.table, request.batches))
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    flags = _flags(request, schedule.max_depth)
    if len(schedule.ranges) == 1:
        note = "SGLang adapts the depth only for EAGLE and MTP, without DP attention: one depth for all batches"
        return EngineConfig(text=flags, schedule=schedule, notes=() if adaptive else (note,))
    note = "a depth of 0 needs an SGLang that accepts candidate_steps [0] (2026)"
    return EngineConfig(
        text=f"{flags} --speculative-adaptive --speculative-adaptive-config {_FILE}",
        schedule=schedule,
        file_name=_FILE,
        file_text=json.dumps(_slots(schedule, sizes), indent=2),
        notes=(note,) if any(entry.depth == 0 for entry in schedule.ranges) else (),
    )


def _flags(request: ScheduleRequest, steps: int) -> str:
    model = drafter_model(request)
    path = f" --speculative-draft-model-path {shlex.quote(model)}" if model else ""
    algorithm = drafter_method(request, _ALGORITHMS, "SGLang")
    return (
        f"--speculative-algorithm {algorithm}{path} --speculative-num-steps {steps} "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
    )


def _slots(schedule: Schedule, sizes: list[int]) -> dict[str, object]:
    return {str(_key(entry, sizes)): {"candidate_steps": [entry.depth]} for entry in schedule.ranges}


def _key(entry: Range, sizes: list[int]) -> int:
    """The graph size that the range's first batch is padded to: every batch of the range is padded to it or more."""
    return next(size for size in sizes if size >= entry.first)


FORMAT = EngineFormat(name="sglang", title="SGLang", graph_limit=lambda _: None, write=write)
