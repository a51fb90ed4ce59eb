"""Whether this vLLM has what the plug-in overrides and reads: checked before it changes the configuration."""

from __future__ import annotations

import dataclasses
import inspect

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from specmargin.errors import EngineError

#: Methods that the plug-in overrides, with the parameters that it names.
METHODS: dict[str, tuple[str, ...]] = {
    "add_request": ("request",),
    "_free_request": ("request",),
    "schedule": (),
    "_update_after_schedule": ("scheduler_output",),
    "update_draft_token_ids": ("draft_token_ids",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "shutdown": (),
}
FIELDS: dict[type, tuple[str, ...]] = {
    SchedulerOutput: (
        "num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "num_invalid_spec_tokens",
        "num_spec_tokens_to_schedule",
    ),
    ModelRunnerOutput: ("req_id_to_index", "sampled_token_ids"),
    DraftTokenIds: ("req_ids", "draft_token_ids"),
}


def check_engine(version: str) -> None:
    missing = missing_parts()
    if missing:
        raise EngineError(f"vLLM {version} lacks {', '.join(missing)}, which the plug-in needs")


def missing_parts() -> list[str]:
    missing = [name for owner in (Scheduler, AsyncScheduler) for name in _missing_methods(owner)]
    missing += [
        f"{owner.__name__}.{name}" for owner, names in FIELDS.items() for name in sorted(set(names) - _fields(owner))
    ]
    return list(dict.fromkeys(missing))


def _missing_methods(owner: type) -> list[str]:
    missing = []
    for name, parameters in METHODS.items():
        method = getattr(owner, name, None)
        given = () if method is None else tuple(inspect.signature(method).parameters)[1:]
        if method is None or given[: len(parameters)] != parameters:
            missing.append(f"{owner.__name__}.{name}({', '.join(parameters)})")
    return missing


def _fields(owner: type) -> set[str]:
    return {field.name for field in dataclasses.fields(owner)}
