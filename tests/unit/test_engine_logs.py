"""Lines of engines' logs as they are pasted: whole, with prefixes, or as fragments."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.errors import EngineError
from specmargin.live.engine_logs import FORMATS, log_lines, log_settings, observe_log
from tests.unit.test_observe import unusable

# vLLM 0.33.0: v1/metrics/loggers.py:265-330 (LoggingStatLogger.log), v1/spec_decode/metrics.py:118-137.
VLLM = """
(APIServer pid=71) INFO 11-18 02:10:00 [loggers.py:259] Engine 000: Avg prompt throughput: 1,024.0 tokens/s, Avg \
generation throughput: 400.0 tokens/s, Running: 10 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%, Prefix cache hit \
rate: 20.0%
(APIServer pid=71) INFO 11-18 02:10:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.31, Accepted \
throughput: 227.00 tokens/s, Drafted throughput: 519.80 tokens/s, Accepted: 1310 tokens, Drafted: 3000 tokens, \
Per-position acceptance rate: 0.680, 0.410, 0.220, Avg Draft acceptance rate: 43.7%
(APIServer pid=71) INFO 11-18 02:10:10 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
generation throughput: 600.0 tokens/s, Running: 20 reqs, Waiting: 4 reqs, GPU KV cache usage: 5.0%, Prefix cache hit \
rate: 40.0%
(APIServer pid=71) INFO 11-18 02:10:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.31, Accepted \
throughput: 27.00 tokens/s, Drafted throughput: 519.80 tokens/s, Accepted: 930 tokens, Drafted: 9000 tokens, \
Per-position acceptance rate: 0.280, 0.020, 0.010, Avg Draft acceptance rate: 10.3%
(APIServer pid=71) INFO 11-18 02:10:20 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit \
rate: 40.0%
"""
# vLLM 0.33.0: v1/engine/core.py:140, config/vllm.py:2809 (shortened), v1/core/kv_cache_utils.py:1148.
START = """
(APIServer pid=7) INFO 11-18 02:09:00 [utils.py:238] non-default args: {'model_tag': 'Qwen/Qwen3-30B-A3B', 'model': \
'Qwen/Qwen3-30B-A3B', 'max_num_seqs': 128, 'tensor_parallel_size': 2, 'speculative_config': {'method': 'eagle3', \
'model': 'AngelSlim/Qwen3-a3B_eagle3', 'num_speculative_tokens': 3, 'num_speculative_tokens_per_batch_size': \
[[1, 32, 3], [33, 128, 0]]}}
(EngineCore_DP0 pid=9) INFO 11-18 02:09:10 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: \
model='Qwen/Qwen3-30B-A3B', speculative_config=SpeculativeConfig(method='eagle3', model='AngelSlim/Qwen3-a3B_eagle3', \
num_spec_tokens=3), tokenizer='Qwen/Qwen3-30B-A3B', dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=2, \
pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False, compilation_config={'mode': \
<CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, \
'cudagraph_capture_sizes': [1, 2, 4, 8, 512], 'max_cudagraph_capture_size': 512}
(EngineCore_DP0 pid=9) INFO 11-18 02:09:50 [kv_cache_utils.py:1148] GPU KV cache size: 100,000 tokens, Maximum \
concurrency for 40,960 tokens per request: 2.44x
"""


def test_vllm_lines_are_weighted_by_rounds() -> None:
    seen = observe_log(VLLM, source="standard input")
    assert (seen.engine, seen.seconds, seen.replicas) == ("vllm", 20.0, 1)
    assert (seen.running, seen.waiting, seen.generated_tokens_per_second) == (15.0, 2.0, 500.0)
    assert seen.kv_share == pytest.approx(0.04)
    assert seen.rounds == pytest.approx(4000.0)  # 1000 and 3000
    assert seen.drafted_per_round == pytest.approx(3.0)
    assert seen.accept_length == pytest.approx((2.31 * 1000 + 1.31 * 3000) / 4000)
    assert seen.survival == pytest.approx((0.38, 0.1175, 0.0625))
    assert [(moment.running, moment.accept_length) for moment in seen.moments] == [(10, 2.31), (20, 1.31), (0, None)]


def test_vllm_says_its_settings_when_it_starts() -> None:
    settings = observe_log(START + VLLM, source="log").settings
    assert (settings.release, settings.model, settings.gpus) == ("0.33.0", "Qwen/Qwen3-30B-A3B", 2)
    assert (settings.method, settings.depth, settings.schedule) == ("eagle3", 3, ((1, 32, 3), (33, 128, 0)))
    assert (settings.largest_graph, settings.graph_mode) == (512, "FULL_AND_PIECEWISE")
    assert (settings.max_sequences, settings.max_context, settings.kv_tokens) == (128, 40960, 100_000)


def test_settings_do_not_need_traffic() -> None:
    assert log_settings(START).method == "eagle3"
    with pytest.raises(EngineError, match="no line that says"):
        observe_log(START, source="log")


def test_eager_has_no_graphs() -> None:
    settings = observe_log(START.replace("enforce_eager=False", "enforce_eager=True") + VLLM, source="log").settings
    assert (settings.largest_graph, settings.graph_mode) == (0, "NONE")


def test_an_eager_drafter_is_not_an_eager_server() -> None:
    drafter = START.replace("'num_speculative_tokens': 3,", "'num_speculative_tokens': 3, 'enforce_eager': True,")
    settings = log_settings(drafter)
    assert (settings.eager, settings.draft_graphs, settings.graph_mode) == (False, False, "FULL_AND_PIECEWISE")
    arguments = drafter.split("(EngineCore")[0]
    assert log_settings(arguments).eager is None
    assert log_settings(arguments.replace("'max_num_seqs'", "'enforce_eager': True, 'max_num_seqs'")).eager is True
    assert log_settings(arguments.strip()[:-1] + ", 'enforce_eager': True}").eager is True


def test_a_fragment_counts() -> None:
    seen = observe_log(
        "Mean acceptance length: 2.31, Per-position acceptance rate: 0.68, 0.41, 0.22", source="standard input"
    )
    assert (seen.accept_length, seen.survival, seen.speculates) == (2.31, (0.68, 0.41, 0.22), True)
    assert (seen.running, seen.rounds, seen.seconds) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "empty"), ("\n \n", "empty"), ("hello\nworld", "no line .* vLLM: .*Mean acceptance length")],
)
def test_a_log_that_says_nothing_gets_one_sentence(text: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        observe_log(text, source="log")


# --- SGLang ---

# SGLang 0.5.23: srt/managers/scheduler_components/metrics_reporter.py:963 and :752, srt/entrypoints/engine.py:1185
# (shortened), srt/managers/scheduler.py:1268.
SGLANG = """
[2026-11-18 02:00:00] server_args={'model_path': 'deepseek-ai/DeepSeek-V3.2', 'tp_size': 8, 'pp_size': 1, \
'disable_cuda_graph': False, 'disable_overlap_schedule': False, 'speculative_algorithm': 'EAGLE', \
'speculative_num_steps': 3, 'speculative_num_draft_tokens': 4, 'cuda_graph_config': {'decode': {'backend': 'full', \
'max_bs': 160}}, 'chunked_prefill_size': 8192}
[2026-11-18 02:01:00 TP0] max_total_num_tokens=500000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=48, context_len=163840, available_gpu_mem=10.00 GB
[2026-11-18 02:02:00 TP0] Prefill batch, #new-seq: 2, #new-token: 3000, #cached-token: 1000, token usage: 0.40, \
#running-req: 10, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 9000.00
[2026-11-18 02:02:02 TP0] Decode batch, #running-req: 10, #token: 20000, token usage: 0.40, accept len: 2.40, accept \
rate: 0.47, cuda graph: True, gen throughput (token/s): 800.00, #queue-req: 1
[2026-11-18 02:02:10 TP0] Decode batch, #running-req: 14, #token: 40000, token usage: 0.60, accept len: 2.60, accept \
rate: 0.53, cuda graph: False, gen throughput (token/s): 1000.00, #queue-req: 3
"""


def test_sglang_lines_and_settings() -> None:
    seen = observe_log(SGLANG, source="log")
    assert (seen.engine, seen.running, seen.waiting, seen.graph_share) == ("sglang", 12.0, 2.0, 0.5)
    assert (seen.accept_length, seen.kv_share, seen.context) == pytest.approx((2.5, 0.5, 2500.0))
    assert (seen.cached_prompt_share, seen.prompt_tokens_per_second) == (0.25, 300.0)
    assert [moment.context for moment in seen.moments] == pytest.approx([2000.0, 40000 / 14])
    settings = seen.settings
    assert (settings.model, settings.gpus, settings.method, settings.depth) == (
        "deepseek-ai/DeepSeek-V3.2",
        8,
        "EAGLE",
        3,
    )
    assert (settings.largest_graph, settings.max_sequences, settings.kv_tokens) == (640, 48, 500_000)
    assert (settings.eager, settings.overlaps, settings.max_context) == (False, None, 163_840)


def test_sglang_arguments_in_their_older_form() -> None:
    old = "server_args=ServerArgs(model_path='m', tp_size=2, speculative_algorithm=None, disable_cuda_graph=True)"
    settings = log_settings(old)
    assert (settings.model, settings.gpus, settings.speculates, settings.eager) == ("m", 2, False, True)


# --- llama.cpp ---

# llama.cpp b21e4de7: tools/server/server-context.cpp:596-634, recorded from a server with four slots.
LLAMACPP = """
0.16.230.694 I slot print_timing: id  3 | task 179 | prompt eval time =     138.04 ms /    48 tokens (    2.88 ms per \
token,   347.72 tokens per second)
0.16.230.694 I slot print_timing: id  3 | task 179 |        eval time =    1500.00 ms /    50 tokens (   30.00 ms per \
token,    33.33 tokens per second)
0.16.230.711 I slot print_timing: id  3 | task 179 | draft acceptance = 0.50000 (   30 accepted /    60 generated), \
mean len =  2.50
0.17.539.489 I slot print_timing: id  2 | task 170 |        eval time =    4500.00 ms /   100 tokens (   45.00 ms per \
token,    22.22 tokens per second)
0.17.539.506 I slot print_timing: id  2 | task 170 | draft acceptance = 0.66667 (   60 accepted /    90 generated), \
mean len =  3.00
"""


def test_llamacpp_lines() -> None:
    seen = observe_log(LLAMACPP, source="log")
    assert (seen.engine, seen.speculates, seen.rounds) == ("llamacpp", True, 50.0)  # 20 and 30
    assert (seen.accept_length, seen.drafted_per_round, seen.accepted_share) == pytest.approx((2.8, 3.0, 0.6))
    assert seen.seconds_per_output_token == pytest.approx(0.04)


def test_llamacpp_without_a_mean_length() -> None:
    """Before June 2026: a rate alone; rounds are the tokens that were not accepted drafts."""
    rate = "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)"
    old = f"       eval time =    2000.00 ms /   400 tokens (    5.00 ms per token)\n{rate}"
    seen = observe_log(old, source="log")
    assert (seen.accepted_share, seen.accept_length) == pytest.approx((171 / 297, 400 / 229))
    assert "accept_length" in seen.estimated
    assert observe_log(rate, source="log").accept_length is None


def test_llamacpp_statistics_since_the_start() -> None:
    """common/speculative.cpp:2803."""
    line = (
        "statistics     draft-simple: #calls(b,g,a) =   10    100    100, #gen drafts =    100, #acc drafts =    80, "
        "#gen tokens =    300, #acc tokens =   150, #mean acc len = 2.50, #acc rate/pos = (0.800, 0.500, 0.200)"
    )
    seen = observe_log(f"{line.replace('0.800', '0.100')}\n{line}", source="log")
    assert (seen.engine, seen.accept_length, seen.survival) == ("llamacpp", 2.5, (0.8, 0.5, 0.2))


# --- TensorRT-LLM ---


@pytest.mark.parametrize("sign", [":", " ="])
def test_trtllm_iterations(sign: str) -> None:
    """_torch/pyexecutor/py_executor.py: 1.2 with ":", 1.3 with "="."""
    rows = [(0, 50.0, 0, 0, 0), (4, 10.0, 0, 0, 16), (4, 30.0, 1, 1000, 12)]
    text = "\n".join(
        f"[11/18/2026-02:00:0{row}] [TRT-LLM] [I] iter = {row}, global_rank = 0, num_scheduled_requests{sign} "
        f"{scheduled}, kv_cache_util = 0.250, host_step_time = {milliseconds}ms, prev_device_step_time = N/A, states = "
        f"{{'num_ctx_requests': {prompts}, 'num_ctx_tokens': {tokens}, 'num_generation_tokens': {positions}}}"
        for row, (scheduled, milliseconds, prompts, tokens, positions) in enumerate(rows)
    )
    seen = observe_log(text, source="log")
    assert (seen.engine, seen.running, seen.kv_share, seen.accept_length) == ("trtllm", 4.0, 0.25, None)
    assert (seen.seconds_per_round, seen.drafted_per_round) == pytest.approx((0.02, 3.0))
    assert seen.prompt_tokens_per_second == pytest.approx(25_000.0)


# --- any input ---


def test_prefixes_and_colours_do_not_matter() -> None:
    coloured = "\n".join(f"vllm-1  | 2026-11-18T02:00:00Z \x1b[0;36m{line}\x1b[0m" for line in VLLM.splitlines())
    assert observe_log(coloured, source="log").survival == observe_log(VLLM, source="log").survival


def test_a_long_log_keeps_few_moments() -> None:
    seen = observe_log(itertools.chain.from_iterable(itertools.repeat(VLLM.split("\n"), 2000)), source="log")
    assert seen.rounds == pytest.approx(8e6)
    assert 200 <= len(seen.moments) <= 512


def test_a_binary_file_gets_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "core"
    file.write_bytes(bytes(range(256)) * 4096)
    with pytest.raises(EngineError, match="no line that says what the engine did"):
        observe_log(log_lines(file), source=str(file))
    with pytest.raises(EngineError, match="cannot be read"):
        observe_log(log_lines(tmp_path), source="folder")


_PARTS = [word for form in FORMATS.values() for word in (*form.lines, *form.settings_lines)]
_PARTS += [
    "Mean acceptance length: ",
    "Per-position acceptance rate: ",
    "Drafted: ",
    "Accepted: ",
    " tokens",
    "iter = 1 ",
]
_PARTS += [
    "num_scheduled_requests: ",
    "Decode batch, #running-req: ",
    "accept len: ",
    "draft acceptance = ",
    "0, ",
    "1e999",
]
_PARTS += [
    "999999999999999999999",
    "-",
    ".",
    ",",
    "nan",
    "0.0",
    "(",
    ") ",
    "\n",
    "non-default args: {'speculative_config': ",
]


@given(st.lists(st.sampled_from(_PARTS) | st.text(max_size=5), max_size=40))
def test_no_line_raises_anything_else(parts: list[str]) -> None:
    with contextlib.suppress(EngineError):
        assert unusable(observe_log("".join(parts), source="log")) == []
    assert log_settings("".join(parts)).temperature is None  # which none of these says
