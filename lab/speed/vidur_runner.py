"""Vidur on recorded traces, run by `lab/speed/peer_vidur.py` with the interpreter of Vidur's own environment.

    python vidur_runner.py FOLDER

FOLDER holds `jobs.json` and, for each job, a trace and a table of step times. Vidur would download the times of each
kernel, or profiles to fit them to; here they are read from the job's table. All else is Vidur's.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from vidur.config import (
    BaseModelConfig,
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    MnemosyneFCFSFixedChunkSchedulerConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.entities import Replica, Request
from vidur.execution_time_predictor.random_forrest_execution_time_predictor import (
    RandomForrestExecutionTimePredictor,
)
from vidur.simulator import Simulator
from vidur.types import ActivationType, NormType

Times = dict[tuple[int, ...], float]

_UNUSED = (  # kernels whose time is in that of `mlp_up_proj`
    "attn_pre_proj",
    "attn_post_proj",
    "attn_rope",
    "attn_kv_cache_save",
    "mlp_down_proj",
    "mlp_act",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
)


@dataclass
class Model(BaseModelConfig):
    """A dense model that fits in memory. Its times come from the table, and its blocks are given."""

    num_layers: int = 1  # the table's times are of all layers
    num_q_heads: int = 16
    num_kv_heads: int = 16
    embedding_dim: int = 2048
    mlp_hidden_dim: int = 6144
    max_model_len: int = 16_384
    use_gated_mlp: bool = True
    use_bias: bool = False
    use_qkv_bias: bool = False
    activation: ActivationType = ActivationType.SILU
    norm: NormType = NormType.RMS_NORM
    post_attn_norm: bool = True
    vocab_size: int = 151_936

    @staticmethod
    def get_name() -> str:
        return "priced"


def predictions(path: Path, grain: int, chunk: int) -> dict[str, Times]:
    """Milliseconds by kernel, with the keys that Vidur looks up."""
    given = np.load(path)
    tokens: Times = {(i + 1,): float(value) for i, value in enumerate(given["tokens"])}
    decode: Times = {(b + 1, grain * k): float(value) for (b, k), value in np.ndenumerate(given["decode"])}
    prefill: Times = {(grain * k, chunk * (c + 1)): float(value) for (k, c), value in np.ndenumerate(given["prefill"])}
    unused: dict[str, Times] = {name: dict.fromkeys(tokens, 0.0) for name in _UNUSED}
    return {"mlp_up_proj": tokens, "attn_decode": decode, "attn_prefill": prefill, **unused}


def config(folder: Path, job: dict[str, Any]) -> SimulationConfig:
    longest = job["longest"]
    return SimulationConfig(
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(
                model_name="priced", num_pipeline_stages=1, tensor_parallel_size=1, max_num_tokens_per_kvp_group=longest
            ),
            cache_config=CacheConfig(block_size=16, num_blocks=job["kv_blocks"]),
            replica_scheduler_config=MnemosyneFCFSFixedChunkSchedulerConfig(
                batch_size_cap=job["max_num_seqs"], chunk_size=job["max_num_batched_tokens"]
            ),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=str(folder / job["trace"]),
            date=job["date"],
            prefill_scale_factor=1.0,
            decode_scale_factor=1.0,
            time_scale_factor=1.0,
            max_tokens=longest,
        ),
        execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(
            kv_cache_prediction_granularity=job["grain"],
            prediction_max_prefill_chunk_size=job["max_num_batched_tokens"],
            prediction_max_batch_size=job["max_num_seqs"],
            prediction_max_tokens_per_request=longest,
            attention_decode_batching_overhead_fraction=0.0,  # the table has every batch size
            cache_dir=str(folder / "cache"),
            use_native_execution_time_predictor=True,
        ),
        metrics_config=MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, store_plots=False, output_dir=str(folder / "out")
        ),
    )


def play(folder: Path, job: dict[str, Any], runs: int) -> dict[str, Any]:
    """Times of each request, tokens in the window, and the least CPU time of several runs, without their set-up."""
    table = predictions(folder / job["table"], job["grain"], job["chunk"])
    RandomForrestExecutionTimePredictor._load_predictions_from_hf = lambda _: table
    with counted(*job["window"]) as count:
        requests, _ = simulated(config(folder, job))
    return {
        "seconds": min(simulated(config(folder, job))[1] for _ in range(runs)),
        "arrival": [float(request.arrived_at) for request in requests],
        "first": [float(request.prefill_completed_at) for request in requests],
        "last": [float(request.completed_at) for request in requests],
        "tokens": [
            int(request.total_tokens) - prompt for request, prompt in zip(requests, job["prompts"], strict=True)
        ],
        "window_tokens": count[0],
    }


def simulated(chosen: SimulationConfig) -> tuple[list[Request], float]:
    """The requests as in the trace, and CPU seconds."""
    Replica._id = -1  # counted over the process, but the scheduler begins at 0
    simulator = Simulator(chosen)
    requests = sorted((event._request for _, event in simulator._event_queue), key=lambda request: request.id)
    start = time.process_time()
    simulator.run()
    return requests, time.process_time() - start


@contextmanager
def counted(begin: float, end: float) -> Iterator[list[int]]:
    """Counts tokens between two times, while requests are followed; runs that are timed are not."""
    count, original = [0], Request.on_batch_end

    def follow(request: Request, now: float, tokens: int) -> None:
        original(request, now, tokens)
        count[0] += request.num_processed_tokens > request.num_prefill_tokens and begin <= now <= end

    Request.on_batch_end = follow
    try:
        yield count
    finally:
        Request.on_batch_end = original


def main() -> None:
    folder = Path(sys.argv[1])
    given = json.loads((folder / "jobs.json").read_text())
    found = {job["name"]: play(folder, job, given["runs"]) for job in given["jobs"]}
    (folder / "played.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
