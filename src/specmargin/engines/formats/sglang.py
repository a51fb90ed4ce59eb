"""SGLang: `--speculative-adaptive-config`, a JSON whose keys are lower bounds of batch size.

One candidate a slot makes the ladder a schedule. SGLang pads the batch to a CUDA-graph size before it looks up
the slot, so ranges may only change after such a size, and the key is the next size. Adaptive depth exists for
the EAGLE family (MTP included) alone. (python/sglang/srt/speculative/adaptive_spec_params.py, August 2026)
"""

from __future__ import annotations

import json
from itertools import chain

from specmargin.decisions.schedule import Range, Schedule, make_schedule
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
from specmargin.hardware.layout import Parallel

_ALGORITHMS = {
    "mtp": "EAGLE",
    "eagle": "EAGLE3",
    "ssd": "EAGLE",
    "dflash": "DFLASH",
    "model": "STANDALONE",
    "ngram": "NGRAM",
}
_ADAPTIVE = ("mtp", "eagle", "ssd")
_FILE = "specmargin-sglang.json"


def graph_batch_sizes(largest: int) -> list[int]:
    """SGLang's default capture sizes with speculation on (server_args.py)."""
    ladder = chain(range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8), range(272, largest + 1, 16))
    sizes = [size for size in ladder if size <= largest]
    return sizes if largest in sizes else [*sizes, largest]


def write(request: Request) -> EngineConfig:
    sizes = graph_batch_sizes(request.table.batches)
    adaptive = request.drafter_kind in _ADAPTIVE and request.parallel is not Parallel.DP_EP
    if adaptive:
        schedule = make_schedule(request.table, min_gain=request.min_gain, boundaries=sizes)
    else:
        schedule = fixed(request.table, single_depth(request.table, request.batches))
    if schedule.max_depth == 0:
        return EngineConfig(text="", schedule=off(request.table), notes=(NOT_CONFIGURED,))
    notes = [OVERLAP_NOTE] if request.drafter_kind == "ssd" else []
    if len(schedule.ranges) == 1:
        if not adaptive:
            notes.append("SGLang adapts the depth for EAGLE and MTP without DP attention alone: one depth for all")
        return EngineConfig(text=_flags(request, schedule.max_depth), schedule=schedule, notes=tuple(notes))
    notes.append("a depth of 0 needs an SGLang that accepts candidate_steps [0]")
    flags = _flags(request, schedule.max_depth)
    return EngineConfig(
        text=f"{flags} --speculative-adaptive --speculative-adaptive-config {_FILE}",
        schedule=schedule,
        file_name=_FILE,
        file_text=json.dumps(_slots(schedule, sizes), indent=2),
        notes=tuple(notes),
    )


def _flags(request: Request, steps: int) -> str:
    algorithm = _ALGORITHMS.get(request.drafter_kind, "<algorithm>")
    model = f" --speculative-draft-model-path {request.drafter_spec}" if request.drafter_spec else ""
    return (
        f"--speculative-algorithm {algorithm}{model} --speculative-num-steps {steps} "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
    )


def _slots(schedule: Schedule, sizes: list[int]) -> dict[str, object]:
    return {str(_key(entry, sizes)): {"candidate_steps": [entry.depth]} for entry in schedule.ranges}


def _key(entry: Range, sizes: list[int]) -> int:
    """The graph size that the range's first batch is padded to: every batch of the range is padded to it or more."""
    return next(size for size in sizes if size >= entry.first)


FORMAT = EngineFormat(name="sglang", title="SGLang", position_limit=lambda _: None, write=write)
