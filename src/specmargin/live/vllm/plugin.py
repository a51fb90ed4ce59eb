"""The entry point of `vllm.general_plugins`: inert unless configured.

vLLM loads it in every process before it knows its configuration. So it does one thing: where the front end makes the
engine's configuration, it looks whether we are in it, and if so `configuring` names our scheduler and our worker's hook
there. From then on vLLM itself carries both into the processes where they belong.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from specmargin.live.vllm.names import ASYNC_SCHEDULER, KEY, SCHEDULER, VARIABLE


def register() -> None:
    """Called by vLLM. Never raises: a server must start whatever is wrong with us."""
    try:
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415  # where there is no vLLM, there is no call either
    except Exception:  # not a vLLM that we know
        return
    make = getattr(EngineArgs, "create_engine_config", None)
    if make is None or hasattr(make, "specmargin"):
        return

    @functools.wraps(make)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = make(self, *args, **kwargs)
        if _is_asked_for(config):
            from specmargin.live.vllm.configuring import configure  # noqa: PLC0415  # a server without us pays nothing

            configure(config)
        return config

    create_engine_config.specmargin = True  # type: ignore[attr-defined]  # so that it is wrapped once
    EngineArgs.create_engine_config = create_engine_config


def _is_asked_for(config: Any) -> bool:
    given = getattr(config, "additional_config", None)
    named = getattr(getattr(config, "scheduler_config", None), "scheduler_cls", None)
    inline = isinstance(given, dict) and KEY in given
    return inline or bool(os.environ.get(VARIABLE)) or named in (SCHEDULER, ASYNC_SCHEDULER)
