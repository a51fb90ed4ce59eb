"""SGLang: `--speculative-adaptive-config`, a JSON whose keys are lower bounds of batch size.

With one candidate per slot, the ladder is a schedule. SGLang pads the batch to a CUDA-graph size before it looks up
the slot, so ranges may only change after such a size, and the key is the next size. Adaptive depth exists
only for the EAGLE family (MTP included). (python/sglang/srt/speculative/adaptive_spec_params.py, from 0.5.13 on; steps
of 0 from 0.5.14 on; read up to 0.5.23)

DSpark drafts a whole block, always: its depth is the block's. How much of it is verified may follow a price table
(formats/dspark.py); without one, all of it. (arg_groups/speculative_hook.py, from 0.5.16 on; commands:
srt/arg_groups and benchmark/serving.py)
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from specmargin.decisions.schedule import Schedule
from specmargin.errors import ScheduleError
from specmargin.formats.base import Benchmark, Command, EngineConfig, EngineFormat, Launch, ScheduleRequest, joined
from specmargin.formats.rules import DepthRule
from specmargin.hardware.layout import Layout
from specmargin.hardware.offload import Offload
from specmargin.releases import Releases, release

_ALGORITHMS = {
    "mtp": "EAGLE",
    "eagle": "EAGLE3",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "model": "STANDALONE",
    "ngram": "NGRAM",
}
_ADAPTIVE = ("mtp", "eagle")
_WITH_TREES = ("mtp", "eagle", "model")
_TREES = "trees are not priced, only chains of draft tokens: --speculative-eagle-topk 1"
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


def rule(request: ScheduleRequest) -> DepthRule:
    if request.drafter_kind == "dspark":
        return DepthRule(whole_block="whole blocks at every batch; with --sps-table, SGLang verifies less of them")
    if refused := _refused(request):
        return DepthRule(one_depth=f"one depth for all batches: {refused}")
    stops = request.release is None or request.release >= release(_STOPS)
    sizes = graph_batch_sizes(min(request.table.largest, _LARGEST_GRAPH))
    entry = '"{key}": {"candidate_steps": [{depth}]}'
    return DepthRule(never_off=None if stops else "", ends=tuple(sizes), entry=entry)


def _refused(request: ScheduleRequest) -> str:
    """Why SGLang turns its adaptive mode off (`speculative/adaptive_spec_params.py`); empty if it does not."""
    if request.drafter_kind not in _ADAPTIVE:
        return "only EAGLE and MTP adapt in SGLang"
    if request.layout.sequence_ranks > 1:
        return "SGLang's adaptive_unsupported_reason turns --speculative-adaptive off with DP attention"
    return ""


def express(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    if request.drafter_kind == "dspark":
        return _express_dspark(request, schedule)
    flags = _flags(request)
    if len(schedule.ranges) == 1:
        needs = RELEASES.needs(request.release, RELEASES.first, what="such drafts")
        notes = ("drafts in pipeline stages need SGLANG_ENABLE_PP_SPEC=1",) if request.layout.stages > 1 else ()
        return EngineConfig(
            text=flags,
            schedule=schedule,
            needs=needs,
            adapts=not _refused(request),
            notes=notes,
            unpriced=_unpriced(request),
        )
    since = _STOPS if schedule.stops else RELEASES.first
    return EngineConfig(
        text=f"{flags} {_ADAPTIVE_FLAGS}",
        schedule=schedule,
        needs=RELEASES.needs(request.release, since, what="steps of 0"),
        file_name=ADAPTIVE_FILE,
        file_text="{{entries}}",
        adapts=True,
        unpriced=_unpriced(request),
    )


def _unpriced(request: ScheduleRequest) -> str:
    return _TREES if request.drafter_kind in _WITH_TREES else ""


def with_policy(config: EngineConfig, part: Mapping[str, object]) -> EngineConfig:
    """The adaptive file with a part for the plug-in, whose key is not a number: SGLang itself skips it."""
    if not config.adapts:
        raise ScheduleError(f"--policy: there is no depth to adapt ({(*config.limits, *config.notes)[0]})")
    depth = config.schedule.max_depth
    slots = json.loads(config.file_text) if config.file_text else {"1": {"candidate_steps": [depth]}}
    text = config.text if config.file_text else f"{config.text} {_ADAPTIVE_FLAGS}"
    file_text = json.dumps({**slots, **part}, ensure_ascii=False) + "\n"
    return replace(config, text=text, file_name=config.file_name or ADAPTIVE_FILE, file_text=file_text)


def _express_dspark(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    """The whole block, which the head was trained to draft."""
    window = "--speculative-dspark-block-size {depth} --speculative-num-draft-tokens {positions}"
    return EngineConfig(
        text=f"{_algorithm(request)} {window}",
        schedule=schedule,
        needs=RELEASES.needs(request.release, _DSPARK, what="DSpark drafts"),
        notes=("DP attention needs --enable-dp-lm-head",) if request.layout.data_ranks > 1 else (),
    )


def _algorithm(request: ScheduleRequest) -> str:
    model = request.loaded_model
    path = f" --speculative-draft-model-path {shlex.quote(model)}" if model else ""
    return f"--speculative-algorithm {request.method(_ALGORITHMS, 'SGLang')}{path}"


def _flags(request: ScheduleRequest) -> str:
    return (
        f"{_algorithm(request)} --speculative-num-steps {{depth}} "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens {positions}"
    )


# --- commands ---


def serve(launch: Launch) -> Command:
    program = "python -m sglang.launch_server --model-path"
    nodes = f"--nnodes {launch.nodes} --node-rank $NODE --dist-init-addr $HEAD:5000" if launch.nodes > 1 else ""
    mode = "--disaggregation-mode decode" if launch.decode_only else ""
    options = joined(_spread(launch.layout), nodes, mode, _hosted(launch.offload))
    text = launch.command(program, options, "--mem-fraction-static", {"fp8": "fp8_e4m3"})
    notes = ("on every node: NODE is its number from 0, HEAD the address of node 0",) if nodes else ()
    return Command(text=text, file_name=launch.config.file_name, file_text=launch.config.file_text, notes=notes)


def _hosted(offload: Offload | None) -> str:
    """KTransformers computes experts on the processor (kt-kernel/README.md, KT-Kernel Parameters)."""
    if offload is None:
        return ""
    method = "--kt-method LLAMAFILE --kt-weight-path '<its experts as GGUF>'"
    return f"{method} --kt-cpuinfer {offload.processor.cores} --kt-num-gpu-experts {offload.gpu_experts}"


def _spread(layout: Layout) -> str:
    """Its tensor-parallel size counts all GPUs: attention DP divides them."""
    ranks, copies, redundant = layout.stage_gpus, layout.data_ranks, layout.redundant_experts
    return joined(
        f"--tp-size {ranks}" if ranks > 1 else "",
        f"--pp-size {layout.stages}" if layout.stages > 1 else "",
        f"--ep-size {layout.expert_ranks}" if layout.expert_ranks > 1 else "",
        f"--dp-size {copies} --enable-dp-attention" if copies > 1 else "",
        f"--enable-eplb --ep-num-redundant-experts {redundant}" if redundant else "",
    )


def decode_refusal(layout: Layout) -> str | None:
    """The same function: `SGLANG_ENABLE_PP_SPEC` is not compatible with --disaggregation-mode."""
    return "SGLang does not draft in pipeline stages of a decode instance" if layout.stages > 1 else None


def stage_drafts(layout: Layout, kind: str) -> str:
    """0.5.23, `check_pipeline_parallel_compat` (arg_groups/validation_hook.py): EAGLE alone, without attention DP."""
    if kind != "mtp":
        return f"SGLang has no {kind} drafts under pipeline parallelism"
    return "SGLang has no drafts under pipeline parallelism with attention DP" if layout.data_ranks > 1 else ""


def check(load: Benchmark) -> str:
    return (
        f"python -m sglang.bench_serving --backend sglang --model {shlex.quote(load.model)} "
        f"--dataset-name speed-bench --dataset-path {shlex.quote(f'{load.folder}/{load.subset}.jsonl')} "
        f"--speed-bench-output-len {load.output_tokens} {load.rate}"
    )


FORMAT = EngineFormat(
    name="sglang",
    title="SGLang",
    graph_option="--cuda-graph-max-bs-decode {batch}",
    rule=rule,
    express=express,
    serve=serve,
    check=check,
    with_policy=with_policy,
    policy_inside=True,
    releases=RELEASES,
    stage_drafts=stage_drafts,
    decode_refusal=decode_refusal,
    limits_per_rank=False,  # divided by `dp_size` where attention is data-parallel (`server_args.py`)
    max_seqs=lambda _: 2048,  # 2,048 to 4,096 by memory (`model_executor/model_runner.py`): memory is the limit
)
