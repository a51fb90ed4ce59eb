"""TensorRT-LLM: `draft_len_schedule`, a YAML mapping from batch size to depth whose meaning changed between releases.

From 1.3.0rc8 on (PR 10860, in the release notes of that candidate) keys are upper bounds: {4: 4, 8: 2} means 1-4 -> 4,
5-8 -> 2, above -> 0. The smallest key must map to `max_draft_len`. At depth 0 a drafter's own cache is not written, and
acceptance collapses once drafting resumes (PR 16888, open, floors the depth at 1). So depth 0 is written only for
n-gram drafts, which keep no state; other schedules end with a key above every batch. The first candidate has schedules
for EAGLE-3 and n-gram drafts; PR 12262 added MTP, DFlash and draft models. DSpark has no schedule.

Before that, from 1.2.0 on (PR 8194), keys are lower bounds: {1: 4, 5: 2} means 1-4 -> 4, above -> 2. Key 1 must be
there and map to `max_draft_len`, and only n-gram drafts and separate draft models follow the schedule (that PR's
test_draft_len_schedule.py).

In both, no depth may exceed `max_draft_len`: a schedule that deepens with batch, often the best one for an MoE model,
cannot be written. Then the fastest one that can, and that is below depth 0 at none of the plan's batches, is used.
Under attention DP each rank looks up its own number of requests, which differ: then only `max_draft_len` is written.
(llmapi/llm_args.py; commands: commands/serve.py and serve/scripts/benchmark_serving.py)
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import (
    Benchmark,
    Command,
    EngineConfig,
    EngineFormat,
    Launch,
    ScheduleRequest,
    joined,
)
from specmargin.formats.rules import DepthRule
from specmargin.hardware.device import DEFAULT_UTILIZATION
from specmargin.hardware.layout import Layout
from specmargin.releases import Releases, release

_TYPES = {
    "mtp": "MTP",
    "eagle": "Eagle3",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "model": "Draft_Target",
    "ngram": "NGram",
}


RELEASES = Releases(title="TensorRT-LLM", first="1.2.0", last="1.4")
_UPPER_BOUNDS = "1.3.0rc8"
_LATER = "1.3.0rc9"  # at the earliest: PR 12262 is younger than rc8
_DSPARK = "1.3.0rc20"  # at the earliest: PR 15808 is younger than rc19
_STATELESS = ("ngram",)  # nothing is lost where these do not draft
_LOWER_BOUND_KINDS = ("ngram", "model")
_UPPER_BOUND_KINDS = ("ngram", "eagle")  # from the first candidate on; others later
_NEAREST = "batch 1 must have the deepest draft"
_FILE = "specmargin.yaml"
_TREES = "trees are not priced, only chains of draft tokens: no use_dynamic_tree"
_STARVED = "never depth 0: TensorRT-LLM PR 16888"


def rule(request: ScheduleRequest) -> DepthRule:
    one_depth = _one_depth(request)
    if one_depth:
        return DepthRule(one_depth=one_depth)
    if not _upper(request):
        return DepthRule(deepest_first=_NEAREST, entry="{first}: {depth}")
    if request.drafter_kind in _STATELESS:
        return DepthRule(deepest_first=_NEAREST, beyond="stops", entry="{last}: {depth}")
    return DepthRule(deepest_first=_NEAREST, never_off=_STARVED, beyond="keeps", entry="{last}: {depth}")


def express(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    unpriced = _TREES if request.drafter_kind == "eagle" else ""
    return EngineConfig(text=_yaml(request), schedule=schedule, needs=_needs(request), unpriced=unpriced)


def _upper(request: ScheduleRequest) -> bool:
    """Whether keys are upper bounds."""
    return request.release is None or request.release >= release(_UPPER_BOUNDS)


def _one_depth(request: ScheduleRequest) -> str:
    """Why there is one depth for all batches; "" where there is a schedule."""
    upper = _upper(request)
    if request.layout.data_ranks > 1:
        return "one depth for all batches: under attention DP each rank has its own batch"
    if upper and request.drafter_kind == "dspark":
        return "one depth for all batches: TensorRT-LLM has no schedule for DSpark"
    first = _UPPER_BOUNDS if request.drafter_kind in _UPPER_BOUND_KINDS else _LATER
    early = request.release is not None and request.release < release(first)
    if early and (upper or request.drafter_kind not in _LOWER_BOUND_KINDS):
        return f"one depth for all batches: {first} is the first with others for {request.drafter_kind}"
    return ""


def _needs(request: ScheduleRequest) -> str:
    if request.drafter_kind == "dspark":
        return f"{RELEASES.needs(request.release, _DSPARK, what='DSpark drafts')}, with PR 15808"
    if request.release is not None:
        return RELEASES.needs(request.release, RELEASES.first, what="schedule")
    if request.drafter_kind in _UPPER_BOUND_KINDS:
        return RELEASES.needs(None, _UPPER_BOUNDS, what="schedule")
    return f"{RELEASES.needs(None, _LATER, what='schedule')}, with PR 12262"


def _yaml(request: ScheduleRequest) -> str:
    model = request.loaded_model
    lines = [
        "speculative_config:",
        f"  decoding_type: {request.method(_TYPES, 'TensorRT-LLM')}",
        *([f"  speculative_model: {json.dumps(model)}"] if model else []),
        "  max_draft_len: {depth}",
        *([] if _one_depth(request) else ["  draft_len_schedule: {{entries}}"]),
    ]
    return "\n".join(lines)


# --- commands ---


def serve(launch: Launch) -> Command:
    layout = launch.layout
    spread = joined(
        f"--tp_size {layout.stage_gpus}" if layout.stage_gpus > 1 else "",
        f"--pp_size {layout.stages}" if layout.stages > 1 else "",
        f"--ep_size {layout.expert_ranks}" if layout.expert_ranks > 1 else "",
    )
    yaml = "\n".join(part for part in (*_server_yaml(launch), launch.config.text) if part)
    notes = []
    if launch.memory_utilization != DEFAULT_UTILIZATION:
        notes.append(
            "--kv_cache_free_gpu_memory_fraction is a share of the memory that the weights leave: set it to match"
        )
    file = f"--extra_llm_api_options {_FILE}" if yaml else ""
    return Command(
        text=joined(_processes(launch), f"trtllm-serve {shlex.quote(launch.model)}", spread, file),
        file_name=_FILE if yaml else None,
        file_text=f"{yaml}\n" if yaml else None,
        notes=tuple(notes),
    )


def _processes(launch: Launch) -> str:
    """Over several nodes every GPU has a process of an MPI job, which Slurm starts (`trtllm-llmapi-launch`)."""
    if launch.nodes == 1:
        return ""
    return f"srun --nodes {launch.nodes} --ntasks {launch.layout.gpus} --mpi=pmix trtllm-llmapi-launch"


def refuses(layout: Layout) -> str | None:
    """`enable_attention_dp` makes a data-parallel rank of every GPU of `tp_size` (mapping.py)."""
    if layout.data_ranks > 1 and layout.attention_ranks > 1:
        return "attention DP of TensorRT-LLM gives every GPU its own sequences; use --tp 1, or --dp 1"
    return None


def stage_drafts(layout: Layout, kind: str) -> str:  # noqa: ARG001
    """Drafters outside the target's engine are refused (pyexecutor/py_executor.py, `_executor_loop_pp`; issue 9009)."""
    outside = kind in ("ngram", "model")
    return f"TensorRT-LLM has no {kind} drafts under pipeline parallelism" if outside else ""


def _server_yaml(launch: Launch) -> Iterator[str]:
    if launch.layout.data_ranks > 1:
        yield "enable_attention_dp: true"
    if launch.layout.redundant_experts:
        # Slots are experts with their copies (llmapi/llm_args.py, MoeLoadBalancerConfig).
        slots = f"<experts of a layer + {launch.layout.redundant_experts}>"
        yield f"moe_config:\n  load_balancer:\n    num_slots: {slots}\n    layer_updates_per_iter: 1"
    if launch.decode_only:
        yield "cache_transceiver_config:\n  backend: DEFAULT"
    if launch.kv_cache == "fp8":
        yield "kv_cache_config:\n  dtype: fp8"


def check(load: Benchmark) -> str:
    return (
        f"python -m tensorrt_llm.serve.scripts.benchmark_serving --model {shlex.quote(load.model)} "
        f"--dataset-name trtllm_custom --dataset-path {shlex.quote('<your prompts>.jsonl')} {load.rate}"
    )


FORMAT = EngineFormat(
    name="trtllm",
    title="TensorRT-LLM",
    graph_option="cuda_graph_config: {{max_batch_size: {batch}}}",
    rule=rule,
    express=express,
    serve=serve,
    check=check,
    lengths_note=None,
    refuses=refuses,
    stage_drafts=stage_drafts,
    releases=RELEASES,
    max_seqs=lambda _: 2048,  # `max_batch_size` of a server: memory is the limit
)
