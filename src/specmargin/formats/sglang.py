"""SGLang: `--speculative-adaptive-config`, a JSON whose keys are lower bounds of batch size.

With one candidate per slot, the ladder is a schedule. SGLang pads the batch to a CUDA-graph size before it looks up
the slot, so ranges may only change after such a size, and the key is the next size. Adaptive depth exists
only for the EAGLE family (MTP included). (python/sglang/srt/speculative/adaptive_spec_params.py, from 0.5.13 on; steps
of 0 from 0.5.14 on; read up to 0.5.23)

DSpark drafts a whole block, always: its depth is the block's. How much of it is verified may follow a price table
(formats/dspark.py); without one, all of it. (arg_groups/speculative_hook.py, from 0.5.16 on)
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from specmargin.decisions.schedule import Range, Schedule, make_schedule
from specmargin.errors import ScheduleError
from specmargin.formats.base import (
    EngineConfig,
    EngineFormat,
    ScheduleRequest,
    always_drafting,
    drafter_method,
    drafter_model,
    empty_config,
    fixed_schedule,
)
from specmargin.formats.releases import Releases, release
from specmargin.modes import Parallel

_ALGORITHMS = {
    "mtp": "EAGLE",
    "eagle": "EAGLE3",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "model": "STANDALONE",
    "ngram": "NGRAM",
}
_ADAPTIVE = ("mtp", "eagle")
RELEASES = Releases(title="SGLang", first="0.5.13", last="0.5.23")
_STOPS = "0.5.14"  # steps of 0 came one release after the slots
_DSPARK = "0.5.16"
ADAPTIVE_FILE = "specmargin-sglang.json"
_ADAPTIVE_FLAGS = f"--speculative-adaptive --speculative-adaptive-config {ADAPTIVE_FILE}"
_LARGEST_GRAPH = 512  # batch size


def graph_batch_sizes(largest: int) -> list[int]:
    """SGLang's default capture sizes with speculation on (server_args.py)."""
    ladder = chain(range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8), range(272, largest + 1, 16))
    sizes = [size for size in ladder if size <= largest]
    return sizes if largest in sizes else [*sizes, largest]


def write(request: ScheduleRequest) -> EngineConfig:
    if request.drafter_kind == "dspark":
        return _write_dspark(request)
    stops = request.release is None or request.release >= release(_STOPS)
    table = request.table if stops else always_drafting(request.table)
    sizes = graph_batch_sizes(min(table.largest, _LARGEST_GRAPH))
    adaptive = request.drafter_kind in _ADAPTIVE and request.parallel is not Parallel.DP_EP
    if adaptive:
        beyond = table.batches[table.batches > sizes[-1]].tolist()  # not padded
        schedule = make_schedule(table, min_gain=request.min_gain, boundaries=[*sizes, *beyond])
    else:
        schedule = fixed_schedule(request)
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    flags = _flags(request, schedule.max_depth)
    if len(schedule.ranges) == 1:
        limit = "one depth for all batches: only EAGLE and MTP adapt, without DP attention"
        needs = RELEASES.needs(request.release, RELEASES.first, what="such drafts")
        return EngineConfig(
            text=flags, schedule=schedule, needs=needs, adapts=adaptive, limits=() if adaptive else (limit,)
        )
    since = _STOPS if schedule.stops else RELEASES.first
    return EngineConfig(
        text=f"{flags} {_ADAPTIVE_FLAGS}",
        schedule=schedule,
        needs=RELEASES.needs(request.release, since, what="steps of 0"),
        file_name=ADAPTIVE_FILE,
        file_text=json.dumps(_slots(schedule, sizes)),
        adapts=True,
    )


def with_policy(config: EngineConfig, part: Mapping[str, object]) -> EngineConfig:
    """The adaptive file with a part for the plug-in, whose key is not a number: SGLang itself skips it."""
    if not config.adapts:
        raise ScheduleError(f"--policy: there is no depth to adapt ({(*config.limits, *config.notes)[0]})")
    depth = config.schedule.max_depth
    slots = json.loads(config.file_text) if config.file_text else {"1": {"candidate_steps": [depth]}}
    text = config.text if config.file_text else f"{config.text} {_ADAPTIVE_FLAGS}"
    file_text = json.dumps({**slots, **part}, ensure_ascii=False) + "\n"
    return replace(config, text=text, file_name=config.file_name or ADAPTIVE_FILE, file_text=file_text)


def _write_dspark(request: ScheduleRequest) -> EngineConfig:
    """The whole block, which the head was trained to draft."""
    schedule = Schedule.fixed(request.table.speedup_by_batch_depth.shape[1] - 1, last=request.table.largest)
    empty = empty_config(request, schedule)
    if empty is not None:
        return empty
    block = schedule.max_depth
    window = f"--speculative-dspark-block-size {block} --speculative-num-draft-tokens {block + 1}"
    return EngineConfig(
        text=f"{_algorithm(request)} {window}",
        schedule=schedule,
        needs=RELEASES.needs(request.release, _DSPARK, what="DSpark drafts"),
        limits=("whole blocks at every batch; with --sps-table, SGLang verifies less of them",),
        notes=("DP attention needs --enable-dp-lm-head",) if request.parallel is Parallel.DP_EP else (),
    )


def _algorithm(request: ScheduleRequest) -> str:
    model = drafter_model(request)
    path = f" --speculative-draft-model-path {shlex.quote(model)}" if model else ""
    return f"--speculative-algorithm {drafter_method(request, _ALGORITHMS, 'SGLang')}{path}"


def _flags(request: ScheduleRequest, steps: int) -> str:
    return (
        f"{_algorithm(request)} --speculative-num-steps {steps} "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
    )


def _slots(schedule: Schedule, sizes: list[int]) -> dict[str, object]:
    return {str(_key(entry, sizes)): {"candidate_steps": [entry.depth]} for entry in schedule.ranges}


def _key(entry: Range, sizes: list[int]) -> int:
    """The graph size that the range's first batch is padded to: every batch of the range is padded to it or more."""
    return next((size for size in sizes if size >= entry.first), entry.first)


FORMAT = EngineFormat(
    name="sglang",
    title="SGLang",
    graph_limit=lambda _: None,
    write=write,
    with_policy=with_policy,
    releases=RELEASES,
)
