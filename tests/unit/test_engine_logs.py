"""Lines of engines' logs as they are pasted: whole, with prefixes, or as fragments."""

from __future__ import annotations

import pytest

from specmargin.errors import EngineError
from specmargin.live.engine_logs import log_settings, observe_log

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
