"""The entry point of `vllm.general_plugins`: inert unless configured.

vLLM loads it in every process, before the configuration is known. It wraps the function that creates the engine's
configuration: if Specmargin is configured there, `graphs` requests CUDA graphs beforehand, and `configuring` adds its
scheduler class and worker extension. vLLM then loads both in the processes where they belong.
"""

from __future__ import annotations

import functools
import os
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
        requested = _is_configured(self) and _request_graphs(self)
        try:
            config = create(self, *args, **kwargs)
        except Exception:
            if not requested:
                raise
            _drop_graphs(self)  # if this was not the cause, vLLM raises the same again
            config = create(self, *args, **kwargs)
        if _is_configured(config):
            from specmargin.live.vllm.configuring import configure  # noqa: PLC0415  # no cost without configuration

            configure(config)
        return config

    create_engine_config.specmargin = True  # type: ignore[attr-defined]  # so that it is wrapped once
    EngineArgs.create_engine_config = create_engine_config


def _request_graphs(args: Any) -> bool:
    """Ask for CUDA graphs of every depth that may be chosen. Never raises: a mistake in the settings is told later."""
    try:
        from specmargin.live.vllm.configuring import request_graphs  # noqa: PLC0415  # no cost without configuration

        return request_graphs(args)
    except Exception:  # the configuration is as the user gave it
        return False


def _drop_graphs(args: Any) -> None:
    from specmargin.live.vllm.graphs import remove_depth_table  # noqa: PLC0415

    remove_depth_table(args)


def _is_configured(config: Any) -> bool:
    additional = getattr(config, "additional_config", None)
    scheduler_class = getattr(getattr(config, "scheduler_config", None), "scheduler_cls", None)
    inline = isinstance(additional, dict) and KEY in additional
    return inline or bool(os.environ.get(VARIABLE)) or scheduler_class in (SCHEDULER, ASYNC_SCHEDULER)
