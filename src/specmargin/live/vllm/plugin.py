"""The entry point of `vllm.general_plugins`: inert unless configured.

vLLM loads it in every process, before the configuration is known. It wraps the function that creates the engine's
configuration: if Specmargin is configured there, CUDA graphs (`graphs`) and the gate on the GPU (`gate.choice`) are
requested beforehand, and `configuring` adds its scheduler class and worker extension. vLLM then loads both in the
processes where they belong.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from specmargin.live.vllm.names import ASYNC_SCHEDULER, KEY, SCHEDULER, VARIABLE


def register() -> None:
    """Called by vLLM. Never raises: a faulty plug-in must not keep the server from starting."""
    try:
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415  # only called by vLLM
    except Exception:  # an unknown version of vLLM
        return
    create = getattr(EngineArgs, "create_engine_config", None)
    if create is None or hasattr(create, "specmargin"):
        return

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        requests = _request(self) if _is_configured(self) else []
        config = _create(functools.partial(create, self, *args, **kwargs), self, requests)
        if _is_configured(config):
            from specmargin.live.vllm.configuration import configure  # noqa: PLC0415  # no cost without configuration

            configure(config)
        return config

    create_engine_config.specmargin = True  # type: ignore[attr-defined]  # so that it is wrapped once
    EngineArgs.create_engine_config = create_engine_config


def _request(args: Any) -> list[Callable[[Any], None]]:
    """Ask for a gate, and for CUDA graphs of every depth that may be chosen. Returns what undoes it. Never raises: a
    mistake in the settings is told later."""
    try:
        from specmargin.live.vllm.configuration import request  # noqa: PLC0415  # no cost without configuration

        return request(args)
    except Exception:  # the configuration is as the user gave it
        return []


def _create(create: Callable[[], Any], args: Any, requests: list[Callable[[Any], None]]) -> Any:
    """vLLM's configuration; without requests that make it raise. If none was the cause, vLLM raises the same again."""
    while True:
        try:
            config = create()
        except Exception:
            if not requests:
                raise
            requests.pop(0)(args)
            continue
        if not requests or not _refuses_gate(config, args, requests):
            return config


def _refuses_gate(config: Any, args: Any, requests: list[Callable[[Any], None]]) -> bool:
    """Whether the gate was requested for a model that vLLM does not support it for: then the request is undone."""
    from specmargin.live.vllm.gate.choice import remove_gate  # noqa: PLC0415

    if remove_gate not in requests:
        return False
    from specmargin.live.vllm.configuration import gate_refused  # noqa: PLC0415

    if not gate_refused(config):
        return False
    requests.remove(remove_gate)
    remove_gate(args)
    return True


def _is_configured(config: Any) -> bool:
    additional = getattr(config, "additional_config", None)
    scheduler_class = getattr(getattr(config, "scheduler_config", None), "scheduler_cls", None)
    inline = isinstance(additional, dict) and KEY in additional
    return inline or bool(os.environ.get(VARIABLE)) or scheduler_class in (SCHEDULER, ASYNC_SCHEDULER)
