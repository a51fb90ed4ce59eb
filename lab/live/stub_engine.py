"""A stub of vLLM's engine core: its scheduler's bookkeeping per request, and no model.

Specmargin's scheduler runs on top of it as on vLLM's, so that whole steps can be compared with and without it, and its
hooks tested where vLLM is not installed.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class Request:
    request_id: str
    num_computed_tokens: int = 100
    spec_token_ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    is_prefill_chunk: bool = False
    sampling_params: Any = None


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    num_spec_tokens_to_schedule: int
    num_invalid_spec_tokens: dict[str, int] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class ModelRunnerOutput:
    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]


class Scheduler:
    """What vLLM's scheduler does per request, in outline: look it up, count its tokens, append the new ones."""

    def __init__(self, *, vllm_config: Any, depth: int) -> None:
        self.vllm_config, self.num_spec_tokens = vllm_config, depth
        self.scheduler_config, self.parallel_config = vllm_config.scheduler_config, vllm_config.parallel_config
        self.dynamic_sd_lookup: list[int] | None = None
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.running.append(request)

    def _free_request(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.running.remove(request)

    def schedule(self) -> SchedulerOutput:
        tokens, drafts = {}, {}
        for request in self.running:
            tokens[request.request_id] = 1 + len(request.spec_token_ids)
            if request.spec_token_ids:
                drafts[request.request_id] = request.spec_token_ids
        scheduled = SchedulerOutput(tokens, drafts, self.num_spec_tokens)
        self._update_after_schedule(scheduled)
        return scheduled

    def _update_after_schedule(self, scheduled: SchedulerOutput) -> None:
        placeholders = [-1] * scheduled.num_spec_tokens_to_schedule
        for request_id, tokens in scheduled.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += tokens
            request.spec_token_ids = placeholders

    def update_from_output(self, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> list[str]:
        updated = []
        for request_id in scheduled.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None:
                continue
            new = output.sampled_token_ids[output.req_id_to_index[request_id]]
            rejected = len(scheduled.scheduled_spec_decode_tokens.get(request_id, ())) + 1 - len(new)
            request.num_computed_tokens -= max(rejected, 0)
            request.sampled = new
            updated.append(request_id)
        return updated

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass


class _Graphs(Enum):
    NONE = 0

    def has_full_cudagraphs(self) -> bool:
        return False


def configuration(settings: dict[str, Any], **compilation: Any) -> Any:
    """vLLM's configuration, as far as Specmargin reads it."""
    return SimpleNamespace(
        additional_config={"specmargin": settings},
        speculative_config=SimpleNamespace(method="eagle3", model="head", num_speculative_tokens=3),
        parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_index=0, worker_extension_cls="ours"),
        scheduler_config=SimpleNamespace(async_scheduling=True, max_num_seqs=1024),
        compilation_config=SimpleNamespace(
            **{"cudagraph_mode": _Graphs.NONE, "max_cudagraph_capture_size": None} | compilation
        ),
        model_config=SimpleNamespace(model="model"),
        use_v2_model_runner=True,
    )


@contextmanager
def specmargin_scheduler(kind: str = "SpecmarginAsyncScheduler", *, stub: type = Scheduler) -> Iterator[type[Any]]:
    """Specmargin's scheduler on top of the stub, or of another one."""
    names: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.sched": {},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": stub},
        "vllm.v1.core.sched.output": {"SchedulerOutput": SchedulerOutput},
        "vllm.v1.core.sched.scheduler": {"Scheduler": stub},
        "vllm.v1.outputs": {"DraftTokenIds": object, "ModelRunnerOutput": ModelRunnerOutput},
    }
    before = {name: sys.modules.get(name) for name in (*names, _OURS, "specmargin.live.vllm.log")}
    for name in before:
        sys.modules.pop(name, None)
    for name, members in names.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(members)
    try:
        yield getattr(importlib.import_module(_OURS), kind)
    finally:
        for name, old in before.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old


_OURS = "specmargin.live.vllm.scheduler"
