"""Routed experts of the target, read in the worker: banks of the routing of verify steps, and distinct experts.

vLLM's routers call a hook with the chosen experts in every forward pass that runs in Python. Under CUDA graphs they do
not, so routing is captured in eager mode only; otherwise a warning is logged once.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specmargin.live.capture import Identity, PartWriter, drain
from specmargin.live.hooks import around
from specmargin.live.sequences import LiveRequest
from specmargin.live.settings_schema import CaptureSettings
from specmargin.live.vllm.engine_config import bank_identity, engine_settings
from specmargin.live.vllm.log import attempt, logger

_MAX_QUEUED_BYTES = 64e6
_TAP, _SCHEDULED = "_specmargin_routing", "_specmargin_scheduled"  # attributes of a model runner
_Block = tuple[npt.NDArray[np.unsignedinteger[Any]], str, int, int, int]  # experts, category, prompt, round, accepted


class RoutingTap:
    """Hooked into one model runner. Experts are recorded while the target runs, and read after sampling."""

    def __init__(self, routers: list[Any], settings: CaptureSettings, identity: Identity) -> None:
        self._experts_by_layer: list[torch.Tensor | None] = [None] * len(routers)
        for layer, router in enumerate(routers):
            router.set_capture_fn(functools.partial(self._record, layer))
        self._requests: dict[str, LiveRequest] = {}
        self._blocks: deque[_Block] = deque()
        self._bytes = 0
        self._identity = identity
        self._writer = PartWriter(
            settings, kind="routing", collect=self._collect, fault=self._fault, pending=lambda: len(self._blocks) * 32
        )

    # --- steps ---

    def begin(self) -> None:
        self._experts_by_layer = [None] * len(self._experts_by_layer)

    def _record(self, layer: int, experts: torch.Tensor) -> None:
        self._experts_by_layer[layer] = experts

    def read(self, scheduled: Any, output: ModelRunnerOutput) -> None:
        """After sampling, when accepted tokens are known."""
        for new in scheduled.scheduled_new_reqs:
            arguments = None if new.sampling_params is None else new.sampling_params.extra_args
            self._requests[new.req_id] = LiveRequest.of(new.req_id, arguments)
        for finished in scheduled.finished_req_ids:
            self._requests.pop(finished, None)
        total = scheduled.total_num_scheduled_tokens
        layers = [layer for layer in self._experts_by_layer if layer is not None and layer.shape[0] >= total]
        if not layers or len(layers) < len(self._experts_by_layer) or not total:
            return
        experts = torch.stack([layer[:total] for layer in layers], dim=1).cpu().numpy()
        experts = experts.astype(np.uint8 if experts.max(initial=0) < 256 else np.uint16)
        output.specmargin_experts = _mean_distinct(experts)
        self._queue_blocks(experts, scheduled, output)

    def _queue_blocks(self, experts: npt.NDArray[Any], scheduled: Any, output: ModelRunnerOutput) -> None:
        first = 0
        for index, request_id in enumerate(output.req_ids):
            tokens = scheduled.num_scheduled_tokens[request_id]
            drafts = scheduled.scheduled_spec_decode_tokens.get(request_id, ())
            sampled = output.sampled_token_ids[index] if output.sampled_token_ids else []
            request = self._requests.get(request_id)
            if request is not None and drafts and sampled and tokens == 1 + len(drafts):
                block = experts[first : first + tokens]
                if self._bytes < _MAX_QUEUED_BYTES and not self._writer.stopped:
                    self._blocks.append((block, request.group, request.number, request.rounds, len(sampled) - 1))
                    self._bytes += block.nbytes
                request.rounds += 1
            first += tokens

    # --- parts ---

    def _collect(self) -> dict[str, Callable[[Path], None]]:
        blocks = drain(self._blocks)
        self._bytes -= sum(block[0].nbytes for block in blocks)
        if not blocks:
            return {}
        experts, meta = np.concatenate([block[0] for block in blocks]), _meta(blocks, self._identity)
        return {"routing.npy": lambda path: np.save(path, experts), "routing_meta.parquet": meta.write_parquet}

    @staticmethod
    def _fault(detail: str) -> None:
        logger.warning_once("Specmargin: routing capture failed (%s).", detail)


@around(GPUModelRunner, "execute_model")
def _recorded(execute: Any, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(runner, _TAP):
        setattr(runner, _TAP, attempt("routing is not captured", None, _tap, runner))
    tap: RoutingTap | None = getattr(runner, _TAP)
    if tap is not None:
        tap.begin()
    output = execute(runner, scheduler_output, *args, **kwargs)
    setattr(runner, _SCHEDULED, scheduler_output if tap is not None else None)
    return _read(runner, output)


@around(GPUModelRunner, "sample_tokens")
def _sampled(sample: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    return _read(runner, sample(runner, *args, **kwargs))


def _read(runner: Any, output: Any) -> Any:
    """Whichever of the two calls returns the step's output; without routing it is as valid."""
    scheduled = getattr(runner, _SCHEDULED, None)
    if scheduled is not None and isinstance(output, ModelRunnerOutput):
        setattr(runner, _SCHEDULED, None)
        attempt("routing cannot be read", None, getattr(runner, _TAP).read, scheduled, output)
    return output


def _tap(runner: Any) -> RoutingTap | None:
    """None if there is nothing to capture."""
    settings = engine_settings(runner.vllm_config).capture
    if settings is None or not settings.routing:
        return None
    graphs = runner.vllm_config.compilation_config.cudagraph_mode
    if graphs is not None and graphs.name != "NONE":
        logger.warning_once("Specmargin: routing is not captured under CUDA graphs; start with --enforce-eager.")
        return None
    routers = [m.router for m in runner.get_model().modules() if hasattr(getattr(m, "router", None), "set_capture_fn")]
    return RoutingTap(routers, settings, bank_identity(runner.vllm_config)) if routers else None


def _mean_distinct(experts: npt.NDArray[Any]) -> float:
    """Distinct experts of the step, mean over layers."""
    return float(np.mean([np.unique(experts[:, layer]).size for layer in range(experts.shape[1])]))


def _meta(blocks: list[_Block], identity: Identity) -> pl.DataFrame:
    lengths = np.array([block[0].shape[0] for block in blocks])
    rows = int(lengths.sum())
    block_index = np.repeat(np.arange(len(blocks)), lengths)
    position = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    number, rounds, accepted = (np.array([block[i] for block in blocks], dtype=np.int64) for i in (2, 3, 4))
    return pl.DataFrame(
        {
            **identity.keys([blocks[i][1] for i in block_index], number[block_index], rounds[block_index]),
            "routing_idx": np.arange(rows, dtype=np.int64),
            "routing_block_idx": block_index.astype(np.int32),
            "request_idx": number[block_index],
            "position": position.astype(np.int16),
            "accepted": position <= accepted[block_index],
        }
    )
