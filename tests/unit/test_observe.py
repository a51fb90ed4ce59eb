"""A running server observed by its own metrics: rates, means and settings, an idle server and a restart."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.errors import EngineError
from specmargin.live.engine_metrics import ENGINES, EngineReading, engine_reading, iterations_reading
from specmargin.live.observation import Observation, ServerSettings
from specmargin.live.observe import IdleError, observation, observe_server
from specmargin.live.server import Server
from specmargin.live.server_settings import read_settings
from tests.unit.test_engine_metrics import serving


def vllm(step: int, *, replicas: int = 1) -> str:
    """vLLM 0.33.0 (v1/metrics/loggers.py, v1/spec_decode/metrics.py) after so many steps of 8 sequences: 3 tokens
    drafted and 1.4 accepted per round, 20 ms per step, one request in 10 steps."""
    lines = []
    for engine in range(replicas):
        labels = f'engine="{engine}",model_name="m"'
        values = {
            "num_requests_running": 8,
            "num_requests_waiting": 2,
            "kv_cache_usage_perc": 0.25,
            "generation_tokens_total": 8 * 2.4 * step,
            "prompt_tokens_total": 100 * step,
            "prompt_tokens_cached_total": 40 * step,
            "prefix_cache_queries_total": 100 * step,
            "prefix_cache_hits_total": 40 * step,
            "num_preemptions_total": step / 10,
            "spec_decode_num_drafts_total": 8 * step,
            "spec_decode_num_draft_tokens_total": 24 * step,
            "spec_decode_num_accepted_tokens_total": 8 * 1.4 * step,
            "iteration_tokens_total_count": step,
            "iteration_tokens_total_sum": 8 * 2.4 * step,
            "inter_token_latency_seconds_count": 8 * step,
            "inter_token_latency_seconds_sum": 8 * 0.02 * step,
            "time_to_first_token_seconds_count": step / 10,
            "time_to_first_token_seconds_sum": 0.5 * step / 10,
            "request_prompt_tokens_count": step / 10,
            "request_prompt_tokens_sum": 1000 * step / 10,
            "request_generation_tokens_count": step / 10,
            "request_generation_tokens_sum": 192 * step / 10,
        }
        lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in values.items()]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {8 * share * step}'
            for position, share in enumerate((0.7, 0.5, 0.2))
        ]
        lines.append(f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="5000"}} 1.0')
    return "\n".join(lines)


PAGES = {
    "/v1/models": json.dumps({"data": [{"id": "served", "root": "Qwen/Qwen3-30B-A3B", "max_model_len": 40960}]}),
    "/version": json.dumps({"version": "0.33.0"}),
    # entrypoints/serve/dev/server_info/api_router.py, with VLLM_SERVER_DEV_MODE=1
    "/server_info?config_format=json": json.dumps(
        {
            "vllm_config": {
                "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
                "compilation_config": {"cudagraph_mode": [2, 1], "max_cudagraph_capture_size": 512},
                "scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
                "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            },
            "system_env": {"nvidia_gpu_models": "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3"},
        }
    ),
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings one second apart: the clock moves when the reader sleeps, and only then, whatever else asks for it."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: float(len(slept)))


def _observe(
    readings: Callable[[int], str], pages: dict[str, str] | None = None, path: str = "/metrics"
) -> Observation:
    read = itertools.count(1)

    def page(asked: str) -> str | None:
        return readings(next(read)) if asked == path else (pages or {}).get(asked)

    with serving(page) as url:
        return observe_server(url)


def test_vllm_between_two_readings() -> None:
    seen = _observe(lambda read: vllm(40 * read), PAGES)
    assert (seen.engine, seen.seconds, seen.running, seen.waiting) == ("vllm", 10.0, 8.0, 2.0)
    assert seen.steps_per_second == pytest.approx(40.0)
    assert seen.sequences_per_step == pytest.approx(8.0)
    assert seen.seconds_per_round == pytest.approx(0.02)
    assert seen.generated_tokens_per_second == pytest.approx(768.0)
    assert seen.seconds_per_output_token == pytest.approx(0.16 / (19.2 - 0.1))
    assert seen.prompt_tokens_per_second == pytest.approx(2400.0)
    assert (seen.prompt_tokens_per_request, seen.output_tokens_per_request) == (1000.0, 192.0)
    assert seen.context == pytest.approx(1096.0)
    assert (seen.kv_share, seen.preemptions, seen.cached_prompt_share) == pytest.approx((0.25, 40.0, 0.4))
    assert seen.survival == pytest.approx((0.7, 0.5, 0.2))
    assert (seen.accept_length, seen.drafted_per_round) == pytest.approx((2.4, 3.0))
    assert len(seen.moments) == 10
    assert seen.moments[0].accept_length == pytest.approx(2.4)


def test_vllm_says_its_settings() -> None:
    settings = _observe(lambda read: vllm(40 * read), PAGES).settings
    assert (settings.model, settings.max_context, settings.release) == ("Qwen/Qwen3-30B-A3B", 40960, "0.33.0")
    assert (settings.method, settings.depth, settings.gpus) == ("eagle3", 3, 2)
    assert (settings.largest_graph, settings.graph_mode) == (512, "FULL_AND_PIECEWISE")
    assert (settings.max_sequences, settings.max_step_tokens, settings.kv_tokens) == (256, 8192, 80_000)


def test_pages_that_a_server_lacks_leave_fields_empty() -> None:
    settings = _observe(lambda read: vllm(40 * read)).settings
    assert (settings.model, settings.release, settings.method) == (None, None, None)
    assert settings.depth == 3  # positions that are counted


def test_replicas_share_no_steps() -> None:
    seen = _observe(lambda read: vllm(40 * read, replicas=2))
    assert (seen.replicas, seen.running) == (2, 16.0)
    assert (seen.steps_per_second, seen.sequences_per_step) == pytest.approx((40.0, 8.0))


def test_an_idle_server_is_called_idle() -> None:
    idle = vllm(40).replace("running{", "off{").replace("waiting{", "off{")
    with pytest.raises(IdleError, match="is idle: send it traffic"):
        _observe(lambda _: idle)


def test_a_restart_between_readings_is_told() -> None:
    with pytest.raises(EngineError, match="restarted between two readings"):
        _observe(lambda read: vllm(40 * (20 - read)))


# --- other engines ---

# SGLang 0.5.23: srt/observability/metrics_collector.py; tokens in real time in line 1033, passes in line 738.
SGLANG_PAGES = {
    # srt/entrypoints/http_server.py:863: resolved arguments, the scheduler's limits, and internal states per replica
    "/server_info": json.dumps(
        {
            "model_path": "deepseek-ai/DeepSeek-V3.2",
            "tp_size": 8,
            "pp_size": 1,
            "dp_size": 1,
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
            "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 160}},
            "disable_overlap_schedule": True,
            "chunked_prefill_size": 8192,
            "max_total_num_tokens": 500_000,
            "internal_states": [{"effective_max_running_requests_per_dp": 48}],
            "version": "0.5.23",
        }
    )
}


def sglang(step: int) -> str:
    """After so many steps of 12 sequences with 2.5 tokens per round; a quarter of them without a graph."""
    values = {
        "num_running_reqs": 12,
        "num_queue_reqs": 1,
        "token_usage": 0.5,
        "decode_sum_seq_lens": 24_000,
        "cache_hit_rate": 0.25,
        "spec_accept_length": 2.5,
        "spec_num_steps": 3,
        'realtime_tokens_total{mode="decode"}': 30 * step,
        'realtime_tokens_total{mode="prefill_compute"}': 200 * step,
        'cuda_graph_passes_total{mode="decode_cuda_graph"}': 0.75 * step,
        'cuda_graph_passes_total{mode="decode_none"}': 0.25 * step,
        "num_retracted_requests_total": 0.1 * step,
        "spec_verify_calls_total": 12 * step,
        "request_time_per_output_token_seconds_sum": 0.01 * step,
        "request_time_per_output_token_seconds_count": step,
    }
    return "\n".join(f"sglang:{name} {value}" for name, value in values.items())


def test_sglang_between_two_readings() -> None:
    seen = _observe(lambda read: sglang(50 * read), SGLANG_PAGES)
    assert (seen.engine, seen.running, seen.accept_length, seen.survival) == ("sglang", 12.0, 2.5, ())
    assert (seen.steps_per_second, seen.graph_share) == pytest.approx((50.0, 0.75))
    assert (seen.generated_tokens_per_second, seen.prompt_tokens_per_second) == pytest.approx((1500.0, 10_000.0))
    assert (seen.context, seen.preemptions, seen.cached_prompt_share) == pytest.approx((2000.0, 50.0, 0.25))
    assert seen.seconds_per_round == pytest.approx(0.025)  # of the time per token
    assert "seconds_per_round" in seen.estimated
    settings = seen.settings
    assert (settings.model, settings.gpus, settings.release) == ("deepseek-ai/DeepSeek-V3.2", 8, "0.5.23")
    assert (settings.method, settings.depth, settings.other) == ("eagle", 3, {"topk": "1"})
    assert (settings.largest_graph, settings.overlaps, settings.max_sequences) == (640, False, 48)


def trtllm(step: int) -> str:
    """TensorRT-LLM: tensorrt_llm/metrics/collector.py (050f80de, 2026): drafted and accepted by position."""
    values = {
        "num_requests_running": 5,
        "num_generation_requests": 4,
        "iteration_latency_seconds": 0.03,
        "kv_cache_utilization": 0.4,
        "kv_cache_max_blocks": 1000,
        "kv_cache_tokens_per_block": 32,
        "generation_tokens_total": 10 * step,
        'spec_decode_drafted_tokens_total{token_position="0"}': 4 * step,
        'spec_decode_drafted_tokens_total{token_position="1"}': 2 * step,
        'spec_decode_accepted_tokens_total{token_position="0"}': 3 * step,
        'spec_decode_accepted_tokens_total{token_position="1"}': step,
        'model_config_info{model="Kimi-K2",gpu_type="NVIDIA B200",max_model_len="131072"}': 1,
        'speculative_config_info{spec_enabled="true",spec_method="MTP",spec_num_tokens="2"}': 1,
    }
    return "\n".join(f"trtllm_{name} {value}" for name, value in values.items())


def test_trtllm_between_two_readings() -> None:
    seen = _observe(lambda read: trtllm(10 * read), path="/prometheus/metrics")
    assert (seen.survival, seen.accept_length) == ((0.75, 0.5), 2.25)
    assert (seen.rounds, seen.drafted_per_round, seen.sequences_per_step) == (400.0, 1.5, 4.0)
    assert (seen.settings.model, seen.settings.gpu, seen.settings.kv_tokens) == ("Kimi-K2", "NVIDIA B200", 32_000)
    assert (seen.settings.method, seen.settings.depth, seen.speculates) == ("mtp", 2, True)


def test_trtllm_without_prometheus_has_iterations() -> None:
    """cpp/include/tensorrt_llm/executor/types.h: `IterationStats` as JSON; what was read once is gone."""
    row: dict[str, object] = {"iter": 7, "iterLatencyMS": 20.0, "numActiveRequests": 6, "numQueuedRequests": 0}
    row |= {"inflightBatchingStats": {"numGenRequests": 5}, "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 25}}
    row |= {"specDecodingStats": {"numDraftTokens": 15, "numAcceptedTokens": 9, "numRequestsWithDraftTokens": 5}}
    seen = _observe(lambda _: json.dumps([row, row]))
    assert (seen.engine, seen.running, seen.kv_share) == ("trtllm", 6.0, 0.25)
    assert seen.accept_length == pytest.approx(2.8)
    assert seen.generated_tokens_per_second == pytest.approx(5 * 2.8 / 0.02)


def test_trtllm_without_iterations_is_idle() -> None:
    with pytest.raises(IdleError, match="is idle"):
        _observe(lambda _: "[]")


def llamacpp(request: int) -> str:
    """llama.cpp: tools/server/server-task.cpp:1525 (b21e4de7), after requests of 100 tokens in 3 seconds each."""
    values = {
        "requests_processing": 4,
        "requests_deferred": 0,
        "n_decode_total": 11 * request,
        "tokens_predicted_total": 100 * request,
        "tokens_predicted_seconds_total": 3.0 * request,
        "prompt_tokens_total": 60 * request,
        "spec_decode_num_drafts_total": 40 * request,
        "spec_decode_num_draft_tokens_total": 120 * request,
        "spec_decode_num_accepted_tokens_total": 60 * request,
        'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 30 * request,
        'spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 20 * request,
        'spec_decode_num_accepted_tokens_per_pos_total{position="2"}': 10 * request,
    }
    return "\n".join(f"llamacpp:{name} {value}" for name, value in values.items())


LLAMACPP_PAGES = {
    "/props": json.dumps(
        {
            "default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.8}},
            "total_slots": 4,
            "model_path": "/models/gpt-oss-20b.gguf",
            "build_info": "b11549-abc",
        }
    ),
    "/slots": json.dumps([{"speculative": True, "params": {"speculative.types": "draft-simple"}}]),
}


def test_llamacpp_between_two_readings() -> None:
    seen = _observe(llamacpp, LLAMACPP_PAGES)
    assert (seen.survival, seen.accept_length, seen.drafted_per_round) == ((0.75, 0.5, 0.25), 2.5, 3.0)
    assert (seen.seconds_per_output_token, seen.seconds_per_round) == pytest.approx((0.03, 0.075))
    assert (seen.steps_per_second, seen.generated_tokens_per_second) == pytest.approx((11.0, 100.0))
    settings = seen.settings
    assert (settings.model, settings.max_sequences, settings.max_context) == ("/models/gpt-oss-20b.gguf", 4, 4096)
    assert (settings.method, settings.depth, settings.temperature, settings.speculates) == (
        "draft-simple",
        3,
        0.8,
        True,
    )


def test_llamacpp_counts_when_requests_end() -> None:
    with pytest.raises(IdleError, match=r"4 requests, but no token .* when a request ends: observe it for longer"):
        _observe(lambda _: llamacpp(3))


def test_lengths_in_one_bucket_are_a_benchmark() -> None:
    def page(read: int, wide: bool) -> str:
        bounds = {"500": 0, "1000": 4 * read, "2000": 4 * read + (read if wide else 0)}
        rows = [f'vllm:request_prompt_tokens_bucket{{engine="0",le="{le}"}} {count}' for le, count in bounds.items()]
        return "\n".join([vllm(40 * read), *rows])

    assert _observe(lambda read: page(read, wide=False)).equal_prompts is True
    assert _observe(lambda read: page(read, wide=True)).equal_prompts is False


@given(st.text())
def test_garbage_is_no_reading(text: str) -> None:
    assert engine_reading(text, 0.0, "url") is None
    assert iterations_reading(text, 0.0, "url") is None


def unusable(found: Observation) -> list[str]:
    """Fields that no comparison and no JSON could take: not a number, or without end."""
    fields = asdict(found).items()
    numbers = [(name, each) for name, value in fields for each in (value if isinstance(value, tuple) else (value,))]
    return [name for name, each in numbers if isinstance(each, float) and not math.isfinite(each)]


_VALUES = st.sampled_from(["NaN", "+Inf", "-1", "1e308", "0", "7", "x", ""])
_LABELS = st.sampled_from(["", '{position="9"}', '{position="-1"}', '{position="x"}', '{le="+Inf"}', "{", '{a="'])


@given(st.sampled_from(sorted(ENGINES)), st.data())
def test_nonsense_under_known_names_raises_nothing_else(engine: str, data: st.DataObject) -> None:
    names = ENGINES[engine]
    known = [
        name
        for kind in (names.gauges, names.counters, names.by_position)
        for several in kind.values()
        for name in several
    ]
    known += [
        f"{name}_{part}" for several in names.histograms.values() for name in several for part in ("sum", "count")
    ]

    def reading(at_seconds: float) -> EngineReading | None:
        lines = data.draw(st.lists(st.tuples(st.sampled_from(known), _LABELS, _VALUES), max_size=30))
        text = "\n".join(f"{names.prefix}{name.partition('{')[0]}{labels} {value}" for name, labels, value in lines)
        return engine_reading(text, at_seconds, "url")

    first, last = reading(0.0), reading(1.0)
    if first is not None and last is not None:
        with contextlib.suppress(EngineError):
            assert unusable(observation([first, last], ServerSettings())) == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda some: (
            st.lists(some)
            | st.dictionaries(
                st.sampled_from(
                    ["data", "vllm_config", "speculative_config", "internal_states", "params", "root", "/slots"]
                ),
                some,
            )
        ),
    )
)
def test_pages_of_any_shape_leave_fields_empty(value: object) -> None:
    text = json.dumps(value)
    for engine in ENGINES:
        server = cast(Server, SimpleNamespace(page=lambda _path: text))
        found = read_settings(server, EngineReading(engine=engine, url="url", at_seconds=0.0))
        assert (found.depth, found.schedule, found.largest_graph, found.kv_tokens) == (None, (), None, None)
