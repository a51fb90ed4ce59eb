"""A running server observed by its own metrics: rates, means and settings, an idle server and a restart."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest

from specmargin.errors import EngineError
from specmargin.live.observation import Observation
from specmargin.live.observe import IdleError, observe_server
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
    """Readings one second apart on the reader's clock."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))


def _observe(readings: Callable[[int], str], pages: dict[str, str] | None = None) -> Observation:
    read = itertools.count(1)

    def page(path: str) -> str | None:
        return readings(next(read)) if path == "/metrics" else (pages or {}).get(path)

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
