"""llama.cpp: one draft length for all batches, and a threshold on the drafter's own confidence.

`--spec-draft-p-min` (alias `--draft-p-min`, default 0) stops a draft at the first token less likely than it: a
threshold for each token, not for the run so far. That token is dropped, although its pass was run. The value written is
the one that was priced; if none was, it is the hurdle of the last token at the plan's first batch: below it, that token
does not pay. (common/arg.cpp and common/speculative.cpp, August 2026; `--draft-max` of earlier versions was removed;
benchmark: tools/server/bench/speed-bench)
"""

from __future__ import annotations

import shlex

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import Benchmark, Command, EngineConfig, EngineFormat, Launch, ScheduleRequest, joined
from specmargin.formats.rules import DepthRule
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel

_TYPES = {
    "mtp": "draft-mtp",
    "eagle": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
    "model": "draft-simple",
    "ngram": "ngram-simple",
}


_RULE = DepthRule(one_depth="one depth for all batches: llama.cpp has no other setting")


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
    split = "" if launch.layout.gpus == 1 else "-sm tensor"
    model = f"-m {shlex.quote(f'<{launch.model} as GGUF>')}"
    return Command(text=joined(f"llama-server {model} -ngl all", slots, split, cache, launch.config.text))


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
    refuses=refuses,
    decode_refusal=lambda _: "llama.cpp has no disaggregated serving",
)
