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
from vllm.logger import init_logger
from vllm.v1.outputs import ModelRunnerOutput

from specmargin.live.capture import Identity, PartWriter, drain
from specmargin.live.sequences import LiveRequest
from specmargin.live.settings_schema import CaptureSettings, read_settings
from specmargin.live.vllm.identity import bank_identity
from specmargin.live.vllm.names import KEY

logger = init_logger("vllm.specmargin")
_MAX_QUEUED_BYTES = 64e6
_ATTRIBUTE = "_specmargin_routing"
_Block = tuple[npt.NDArray[np.unsignedinteger[Any]], str, int, int, int]  # experts, category, prompt, round, accepted


class RoutingTap:
    """Hooked into one model runner. Experts are recorded while the target runs, and read after sampling."""

    def __init__(self, runner: Any, settings: CaptureSettings) -> None:
        routers = [
            m.router for m in runner.get_model().modules() if hasattr(getattr(m, "router", None), "set_capture_fn")
        ]
        self._experts_by_layer: list[torch.Tensor | None] = [None] * len(routers)
        for layer, router in enumerate(routers):
            router.set_capture_fn(functools.partial(self._record, layer))
        self._requests: dict[str, LiveRequest] = {}
        self._blocks: deque[_Block] = deque()
        self._bytes = 0
        self._identity = bank_identity(runner.vllm_config)
        self._writer = PartWriter(
            settings, kind="routing", collect=self._collect, fault=self._fault, pending=lambda: len(self._blocks) * 32
        )

    @staticmethod
    def install(runner_class: Any) -> None:
        """Wrap the two calls of a step. The first call creates the runner's tap."""
        execute, sample = runner_class.execute_model, runner_class.sample_tokens

        @functools.wraps(execute)
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            tap = _find_tap(self)
            if tap is not None:
                tap.begin()
            output = execute(self, scheduler_output, *args, **kwargs)
            self._specmargin_scheduled = scheduler_output if tap is not None else None
            return tap.end(self, output) if tap is not None else output

        @functools.wraps(sample)
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = sample(self, *args, **kwargs)
            tap = getattr(self, _ATTRIBUTE, None)
            return tap.end(self, output) if isinstance(tap, RoutingTap) else output

        runner_class.execute_model, runner_class.sample_tokens = execute_model, sample_tokens

    # --- steps ---

    def begin(self) -> None:
        self._experts_by_layer = [None] * len(self._experts_by_layer)

    def _record(self, layer: int, experts: torch.Tensor) -> None:
        self._experts_by_layer[layer] = experts

    def end(self, runner: Any, output: Any) -> Any:
        """After sampling, when accepted tokens are known. A failure leaves the output unchanged."""
        scheduled = getattr(runner, "_specmargin_scheduled", None)
        if scheduled is None or not isinstance(output, ModelRunnerOutput):
            return output
        runner._specmargin_scheduled = None
        try:
            self._read(scheduled, output)
        except Exception as error:  # the output is valid without routing
            logger.warning_once("Specmargin: routing cannot be read (%s: %s).", type(error).__name__, error)
        return output

    def _read(self, scheduled: Any, output: ModelRunnerOutput) -> None:
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


def _find_tap(runner: Any) -> RoutingTap | None:
    tap: RoutingTap | bool | None = getattr(runner, _ATTRIBUTE, None)
    if tap is None:
        try:
            tap = _make_tap(runner)
        except Exception as error:
            logger.warning_once("Specmargin: routing is not captured (%s).", error)
            tap = False
        setattr(runner, _ATTRIBUTE, tap)
    return tap if isinstance(tap, RoutingTap) else None


def _make_tap(runner: Any) -> RoutingTap | bool:
    """The tap, or False if there is nothing to capture."""
    settings = read_settings(runner.vllm_config.additional_config[KEY], KEY).capture
    if settings is None or not settings.routing:
        return False
    graphs = runner.vllm_config.compilation_config.cudagraph_mode
    if graphs is not None and graphs.name != "NONE":
        logger.warning_once("Specmargin: routing is not captured under CUDA graphs; start with --enforce-eager.")
        return False
    tap = RoutingTap(runner, settings)
    return tap if tap._experts_by_layer else False


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
            **identity.columns(rows),
            "category": [blocks[i][1] for i in block_index],
            "prompt_idx": number[block_index],
            "turn": np.zeros(rows, dtype=np.int16),
            "round_idx": rounds[block_index].astype(np.int32),
            "routing_idx": np.arange(rows, dtype=np.int64),
            "routing_block_idx": block_index.astype(np.int32),
            "request_idx": number[block_index],
            "position": position.astype(np.int16),
            "accepted": position <= accepted[block_index],
        }
    )
