"""vLLM: `--speculative-config` with `num_speculative_tokens_per_batch_size`.

Ranges are inclusive and start at 1; the last one's K applies beyond its end too; K is clamped to
`num_speculative_tokens`. Full CUDA graphs are captured for the K's of the table, up to 512 positions per step
(1024 on Blackwell). vLLM ignores the table under data parallelism. (vllm/v1/spec_decode/dynamic/utils.py, from 0.24 on;
read up to 0.32; method `dspark` from 0.25 on; commands: engine/arg_utils.py and benchmarks/serve.py)
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import Benchmark, Command, EngineConfig, EngineFormat, Launch, ScheduleRequest, joined
from specmargin.formats.rules import DepthRule
from specmargin.hardware.device import Device
from specmargin.hardware.layout import Layout
from specmargin.releases import Releases

_METHODS = {
    "mtp": "mtp",
    "eagle": "eagle3",
    "dflash": "dflash",
    "dspark": "dspark",
    "model": "draft_model",
    "ngram": "ngram",
}


RELEASES = Releases(title="vLLM", first="0.24", last="0.32")
_SINCE = {"dspark": "0.25"}
_TABLE = "num_speculative_tokens_per_batch_size"

_GIB = 2**30
_KV_ARRIVES = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'"""


def graph_limit(device: Device) -> int:
    """vLLM's default `max_cudagraph_capture_size`: 1024 on data-centre Blackwell, 512 elsewhere."""
    return 1024 if device.name in ("b200", "b300", "gb200", "gb300") else 512


def batched_tokens(device: Device) -> int:
    """vLLM's default `max_num_batched_tokens` of a server, by memory (0.32, `engine/arg_utils.py`)."""
    if device.memory_bytes >= 160 * _GIB:
        return 16_384
    return 8192 if _is_large(device) else 2048


def max_seqs(device: Device) -> int:
    """vLLM's default `max_num_seqs` of a server (0.32, the same function)."""
    return 1024 if _is_large(device) else 256


def _is_large(device: Device) -> bool:
    return device.memory_bytes >= 70 * _GIB and device.name != "a100"


def rule(request: ScheduleRequest) -> DepthRule:
    if request.layout.data_ranks > 1:
        return DepthRule(one_depth="one depth for all batches: vLLM ignores others under data parallelism")
    return DepthRule(entry="[{first}, {last}, {depth}]")


def express(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    names = {"method": request.method(_METHODS, "vLLM")}
    if request.loaded_model:
        names["model"] = request.loaded_model
    settings, notes = [json.dumps(names)[1:-1], '"num_speculative_tokens": {depth}'], []
    if len(schedule.ranges) > 1:
        settings.append(f'"{_TABLE}": [{{entries}}]')
        notes.append("full CUDA graphs for these depths need model runner V2")
    needs = RELEASES.needs(
        request.release, _SINCE.get(request.drafter_kind, RELEASES.first), what=f"{request.drafter_kind} drafts"
    )
    text = f"--speculative-config '{{{', '.join(settings)}}}'"
    return EngineConfig(text=text, schedule=schedule, needs=needs, notes=tuple(notes))


def with_policy(config: EngineConfig, part: Mapping[str, object]) -> EngineConfig:
    """Without the table: the plug-in adds one with every depth that it may choose, and leaves a given one as it is."""
    if not config.text:
        return config
    option, settings = shlex.split(config.text)
    depths = {name: value for name, value in json.loads(settings).items() if name != _TABLE}
    given, added = (shlex.quote(json.dumps(values, ensure_ascii=False)) for values in (depths, part))
    text = f"{option} {given} --additional-config {added}"
    return replace(config, text=text, needs="vLLM with the plug-in")


# --- commands ---


def serve(launch: Launch) -> Command:
    memory, kv_names = "--gpu-memory-utilization", {"bf16": "bfloat16"}
    first, others = _nodes(launch.layout, launch.nodes)
    options = joined(_spread(launch.layout), first, _KV_ARRIVES if launch.decode_only else "")
    notes = (f"HEAD: address of node 0, where this runs; on the others, NODE from 1: {others}",) if others else ()
    return Command(text=launch.command("vllm serve", options, memory, kv_names), notes=notes)


def _spread(layout: Layout) -> str:
    sizes = {"tensor": layout.attention_ranks, "pipeline": layout.stages, "data": layout.data_ranks}
    options = [f"--{kind}-parallel-size {size}" for kind, size in sizes.items() if size > 1]
    if layout.expert_ranks > 1:
        options.append("--enable-expert-parallel")
    if layout.redundant_experts:
        eplb = json.dumps({"num_redundant_experts": layout.redundant_experts})
        options.append(f"--enable-eplb --eplb-config '{eplb}'")
    return joined(*options)


def _nodes(layout: Layout, nodes: int) -> tuple[str, str]:
    """Options of the first node, and what the same command has on the others. Ranks of one node are data-parallel
    engines of their own; a rank over several nodes is one engine (docs/serving of vLLM 0.32, `config/parallel.py`)."""
    if nodes == 1:
        return "", ""
    if layout.data_ranks % nodes:
        first = f"--nnodes {nodes} --node-rank 0 --master-addr $HEAD"
        return first, "--node-rank $NODE --headless instead of --node-rank 0"
    local = layout.data_ranks // nodes
    first = f"--data-parallel-size-local {local} --data-parallel-address $HEAD"
    return first, f"also --headless --data-parallel-start-rank $(({local} * NODE))"


def stage_drafts(layout: Layout, kind: str) -> str:  # noqa: ARG001
    """EAGLE-3 (PR 50514) and MTP (PR 46994) under pipeline parallelism; the docs list no other method (PR 55623)."""
    return "" if kind in ("mtp", "eagle") else f"vLLM has no {kind} drafts under pipeline parallelism"


def check(load: Benchmark) -> str:
    return (
        f"vllm bench serve --model {shlex.quote(load.model)} "
        f"--dataset-name speed_bench --dataset-path {shlex.quote(load.folder)} "
        f"--speed-bench-dataset-subset {load.subset} --speed-bench-output-len {load.output_tokens} "
        f"{load.rate} --temperature 0"
    )


FORMAT = EngineFormat(
    name="vllm",
    title="vLLM",
    graph_limit=graph_limit,
    graph_option="--max-cudagraph-capture-size {positions}",
    rule=rule,
    express=express,
    serve=serve,
    check=check,
    batched_tokens=batched_tokens,
    max_seqs=max_seqs,
    with_policy=with_policy,
    releases=RELEASES,
    stage_drafts=stage_drafts,
)
