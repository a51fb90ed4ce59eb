"""llama.cpp: one draft length for all batches, and a threshold on the drafter's own confidence.

`--spec-draft-p-min` (alias `--draft-p-min`, default 0) stops a draft at the first token less likely than it: a
threshold for each token, not for the run so far. That token is dropped, although its pass was run. The value written is
the one that was priced; if none was, it is the hurdle of the last token at the plan's first batch: below it, that token
does not pay. (common/arg.cpp and common/speculative.cpp, b10586 of August and b11434 of October 2026; `--draft-max` of
earlier versions was removed; benchmark: tools/server/bench/speed-bench)

A server has four slots unless `-np` says otherwise (tools/server/server.cpp), so plans cover four sequences.

One depth: requests had `speculative.n_max` once; tools/server/server-schema.cpp leaves these fields out of both builds.
"""

from __future__ import annotations

import shlex

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import Benchmark, Command, EngineConfig, EngineFormat, Launch, ScheduleRequest, joined
from specmargin.formats.rules import DepthRule
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload
from specmargin.modes import Parallel

_TYPES = {
    "mtp": "draft-mtp",
    "eagle": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
    "model": "draft-simple",
    "ngram": "ngram-simple",
}


_RULE = DepthRule(one_depth="one depth for all batches: llama.cpp has no other setting, per request neither")


def express(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    notes = []
    method, depth = request.method(_TYPES, "llama.cpp"), schedule.max_depth
    if request.drafter_kind == "ngram":  # n-gram drafts have their own length option, and no confidence
        text = f"--spec-type {method} --spec-ngram-simple-size-m {{depth}}"
    else:
        model = request.loaded_model
        path = f" --spec-draft-model {shlex.quote(model)}" if model else ""
        if request.p_min is None:
            threshold = "--spec-draft-p-min {p_min}"
        else:
            threshold = f"--spec-draft-p-min {request.p_min:g}"
            notes.append(f"{request.drafted_by_depth[depth]:.1f} of at most {depth} tokens per draft")
        text = f"--spec-type {method}{path} --spec-draft-n-max {{depth}} {threshold}"
    return EngineConfig(text=text, schedule=schedule, needs="llama.cpp of August 2026 or later", notes=tuple(notes))


# --- commands ---


def serve(launch: Launch) -> Command:
    slots = f"-np {launch.sequences} -c {launch.sequences * launch.context}"
    cache = "-ctk q8_0 -ctv q8_0" if launch.kv_cache == "fp8" else ""
    split = "" if launch.layout.shards == 1 else "-sm tensor"
    model = f"-m {shlex.quote(f'<{launch.model} as GGUF>')}"
    placed = _placed(launch.offload, processor_only=launch.processor_only)
    return Command(text=joined(f"llama-server {model}", placed, slots, split, cache, launch.config.text))


def _placed(offload: Offload | None, *, processor_only: bool) -> str:
    """All layers on the GPU, without the experts that are in main memory (common/arg.cpp, -ncmoe)."""
    if processor_only:
        return ""
    return "-ngl all" if offload is None else f"-ngl all --n-cpu-moe {offload.first_layers}"


def refuses(layout: Layout) -> str | None:
    splits = layout.parallel is Parallel.TP and layout.sequence_ranks == 1
    return None if splits else "llama.cpp only splits a model; use --parallel tp"


def check(load: Benchmark) -> str:
    return (
        "python tools/server/bench/speed-bench/speed_bench.py --url localhost:8080 "
        f"--bench {load.subset} --osl {load.output_tokens} --concurrency {load.concurrency or 1}"
    )


FORMAT = EngineFormat(
    name="llamacpp",
    title="llama.cpp",
    rule=lambda _: _RULE,
    express=express,
    serve=serve,
    check=check,
    metric="avg_pred_t/s",
    stops_early=True,
    usual_batch=4,
    layers_in_turn=True,
    refuses=refuses,
    decode_refusal=lambda _: "llama.cpp has no disaggregated serving",
)
