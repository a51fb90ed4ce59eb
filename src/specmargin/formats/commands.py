"""The whole command that starts a server with a setting, and the benchmark that checks the prediction on it.

Only options that the engines' own sources declare: vLLM 0.32 (`engine/arg_utils.py`, `benchmarks/serve.py`), SGLang
0.5.23 (`srt/arg_groups`, `benchmark/serving.py`), TensorRT-LLM 1.3 (`commands/serve.py`,
`serve/scripts/benchmark_serving.py`), llama.cpp of August 2026 (`common/arg.cpp`, `tools/server/bench/speed-bench`).
Prompts are those of SPEED-Bench, because acceptance depends on the text: random tokens would show another one.
No option varies their lengths: `--random-range-ratio` is for generated prompts, in vLLM and in SGLang.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specmargin.formats.base import EngineConfig
from specmargin.modes import Parallel

_FOLDER = "<your SPEED-Bench folder>"
SUBSETS = {"throughput_1k": 1024, "throughput_2k": 2048, "throughput_8k": 8192, "throughput_16k": 16_384}
SUBSETS |= {"throughput_32k": 32_768}
ROUNDS = 10  # prompts per concurrent request
LEAST_PROMPTS = 32
_DEFAULT_UTILIZATION = 0.9
YAML = "specmargin.yaml"
_EQUAL_LENGTHS = (
    "The prompts of this benchmark have about equal lengths, and so have outputs that reach the limit, so its requests "
    "may stay in step; plan with a range ratio of 0 to predict that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is served, and with which setting."""

    model: str  # a hub id or a path, as the engine takes it
    gpus: int
    parallel: Parallel
    config: EngineConfig
    memory_utilization: float = _DEFAULT_UTILIZATION
    kv_cache: str | None = None  # None: as the model's configuration says
    quantize: str | None = None  # weights that the engine quantizes while it loads them
    sequences: int = 1  # that decode together
    context: int = 1024  # tokens per sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The load that the prediction is about."""

    model: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int | None = None
    requests_per_second: float | None = None

    @property
    def prompts(self) -> int:
        return max(LEAST_PROMPTS, ROUNDS * (self.concurrency or 0))

    @property
    def subset(self) -> str:
        """The part of SPEED-Bench whose prompts are nearest in length."""
        return min(SUBSETS, key=lambda name: abs(math.log(SUBSETS[name] / max(self.prompt_tokens, 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    file_name: str | None = None  # a file that the command reads, and what is in it
    file_text: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Of one engine."""

    serve: Callable[[Launch], Command]
    check: Callable[[Benchmark], str]
    metric: str  # the line of the benchmark's output to compare
    lengths_note: str | None  # about a prediction for lengths that vary; None: the prompts are the reader's


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _model(launch: Launch) -> str:
    return shlex.quote(launch.model)


def _server(launch: Launch, program: str, spread: str, memory_option: str, kv_names: dict[str, str]) -> str:
    """The options that vLLM and SGLang call by the same names."""
    default_memory = launch.memory_utilization == _DEFAULT_UTILIZATION
    return _joined(
        f"{program} {_model(launch)}",
        spread,
        f"--quantization {launch.quantize}" if launch.quantize else "",
        f"--kv-cache-dtype {kv_names.get(launch.kv_cache, launch.kv_cache)}" if launch.kv_cache else "",
        "" if default_memory else f"{memory_option} {launch.memory_utilization:g}",
        launch.config.text,
    )


# --- vLLM ---


def _vllm(launch: Launch) -> Command:
    spread = ""
    if launch.gpus > 1:
        option = "--data-parallel-size" if launch.parallel is Parallel.DP_EP else "--tensor-parallel-size"
        spread = f"{option} {launch.gpus}" + ("" if launch.parallel is Parallel.TP else " --enable-expert-parallel")
    return Command(text=_server(launch, "vllm serve", spread, "--gpu-memory-utilization", {"bf16": "bfloat16"}))


def _vllm_check(load: Benchmark) -> str:
    return _joined(
        f"vllm bench serve --model {shlex.quote(load.model)}",
        f"--dataset-name speed_bench --dataset-path {shlex.quote(_FOLDER)}",
        f"--speed-bench-dataset-subset {load.subset} --speed-bench-output-len {load.output_tokens}",
        _rate(load),
        "--temperature 0",
    )


def _rate(load: Benchmark) -> str:
    if load.requests_per_second is not None:
        return f"--num-prompts {load.prompts} --request-rate {load.requests_per_second:g}"
    return f"--num-prompts {load.prompts} --max-concurrency {load.concurrency}"


# --- SGLang ---


def _sglang(launch: Launch) -> Command:
    spread = ""
    if launch.gpus > 1:
        spread = f"--tp-size {launch.gpus}"
        if launch.parallel is not Parallel.TP:
            spread += f" --ep-size {launch.gpus}"
        if launch.parallel is Parallel.DP_EP:
            spread += f" --dp-size {launch.gpus} --enable-dp-attention"
    program = "python -m sglang.launch_server --model-path"
    text = _server(launch, program, spread, "--mem-fraction-static", {"fp8": "fp8_e4m3"})
    return Command(text=text, file_name=launch.config.file_name, file_text=launch.config.file_text)


def _sglang_check(load: Benchmark) -> str:
    return _joined(
        f"python -m sglang.bench_serving --backend sglang --model {shlex.quote(load.model)}",
        f"--dataset-name speed-bench --dataset-path {shlex.quote(f'{_FOLDER}/{load.subset}.jsonl')}",
        f"--speed-bench-output-len {load.output_tokens}",
        _rate(load),
    )


# --- TensorRT-LLM ---


def _trtllm(launch: Launch) -> Command:
    spread = ""
    if launch.gpus > 1:
        spread = f"--tp_size {launch.gpus}" + ("" if launch.parallel is Parallel.TP else f" --ep_size {launch.gpus}")
    yaml = "\n".join(part for part in (*_trtllm_yaml(launch), launch.config.text) if part)
    notes = []
    if launch.memory_utilization != _DEFAULT_UTILIZATION:
        notes.append(
            "--kv_cache_free_gpu_memory_fraction is a share of the memory that the weights leave: set it to match"
        )
    file = f"--extra_llm_api_options {YAML}" if yaml else ""
    return Command(
        text=_joined(f"trtllm-serve {_model(launch)}", spread, file),
        file_name=YAML if yaml else None,
        file_text=f"{yaml}\n" if yaml else None,
        notes=tuple(notes),
    )


def _trtllm_yaml(launch: Launch) -> Iterator[str]:
    if launch.parallel is Parallel.DP_EP and launch.gpus > 1:
        yield "enable_attention_dp: true"
    if launch.kv_cache == "fp8":
        yield "kv_cache_config:\n  dtype: fp8"


def _trtllm_check(load: Benchmark) -> str:
    return _joined(
        f"python -m tensorrt_llm.serve.scripts.benchmark_serving --model {shlex.quote(load.model)}",
        f"--dataset-name trtllm_custom --dataset-path {shlex.quote('<your prompts>.jsonl')}",
        _rate(load),
    )


# --- llama.cpp ---


def _llamacpp(launch: Launch) -> Command:
    slots = f"-np {launch.sequences} -c {launch.sequences * launch.context}"
    cache = "-ctk q8_0 -ctv q8_0" if launch.kv_cache == "fp8" else ""
    split = "" if launch.gpus == 1 else "-sm tensor"
    model = f"-m {shlex.quote(f'<{launch.model} as GGUF>')}"
    return Command(text=_joined(f"llama-server {model} -ngl all", slots, split, cache, launch.config.text))


def _llamacpp_check(load: Benchmark) -> str:
    return _joined(
        "python tools/server/bench/speed-bench/speed_bench.py --url localhost:8080",
        f"--bench {load.subset} --osl {load.output_tokens} --concurrency {load.concurrency or 1}",
    )


COMMANDS = {
    "vllm": Commands(serve=_vllm, check=_vllm_check, metric="Median TPOT (ms)", lengths_note=_EQUAL_LENGTHS),
    "sglang": Commands(serve=_sglang, check=_sglang_check, metric="Median TPOT (ms)", lengths_note=_EQUAL_LENGTHS),
    "trtllm": Commands(serve=_trtllm, check=_trtllm_check, metric="Median TPOT (ms)", lengths_note=None),
    "llamacpp": Commands(serve=_llamacpp, check=_llamacpp_check, metric="avg_pred_t/s", lengths_note=_EQUAL_LENGTHS),
}
