"""Logs what the CUDA graphs of all depths take, in vLLM's second model runner."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from specmargin.live.hooks import around
from specmargin.live.vllm.graphs import TABLE
from specmargin.live.vllm.log import attempt, logger


@around(GPUModelRunner, "capture_model")
def _reported(capture: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    taken = capture(runner, *args, **kwargs)
    attempt("the size of the CUDA graphs is not known", None, _log_graphs, runner, taken)
    return taken


def _log_graphs(runner: Any, taken: object) -> None:
    depths = sorted({entry[2] for entry in getattr(runner.vllm_config.speculative_config, TABLE, None) or ()})
    if depths and isinstance(taken, int) and taken > 0:
        logger.info("Specmargin: CUDA graphs for depths %s take %.2f GiB.", depths, taken / (1 << 30))
