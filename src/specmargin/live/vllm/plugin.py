"""The entry point of `vllm.general_plugins`: inert unless configured.

vLLM loads it in every process, before the configuration is known. It wraps the function that creates the engine's
configuration: if Specmargin is configured there, CUDA graphs (`graphs`) and the gate on the GPU (`gate.choice`) are
requested beforehand, and `configuration` adds its scheduler class and worker extension. vLLM then loads both in the
processes where they belong.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from specmargin.live.hooks import around
from specmargin.live.vllm.names import KEY, SCHEDULERS, VARIABLE


def register() -> None:
    """Called by vLLM. Never raises: a faulty plug-in must not keep the server from starting."""
    try:
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415  # only called by vLLM

        around(EngineArgs, "create_engine_config")(_create_engine_config)
    except Exception:  # an unknown version of vLLM
        return


def _create_engine_config(create: Callable[..., Any], args: Any, *rest: Any, **kwargs: Any) -> Any:
    build = functools.partial(create, args, *rest, **kwargs)
    config = _build(build, args) if _is_configured(args) else build()
    if _is_configured(config):
        _configure(config)
    return config


def _configure(config: Any) -> None:
    """Never raises, not even where this release lacks what the plug-in imports."""
    try:
        from specmargin.live.vllm.configuration import configure  # noqa: PLC0415  # no cost without configuration

        configure(config)
    except Exception as error:
        logger = logging.getLogger("vllm.specmargin")
        logger.error("Specmargin: %s: %s. The server starts with the plug-in disabled.", type(error).__name__, error)
        with suppress(Exception):
            if config.scheduler_config.scheduler_cls in SCHEDULERS.values():
                config.scheduler_config.scheduler_cls = None


def _build(build: Callable[[], Any], args: Any) -> Any:
    """vLLM's configuration with the most of what Specmargin would like that vLLM accepts. If none of that was the
    cause of an error, vLLM raises the same again."""
    given = getattr(args, "speculative_config", None)
    for wish, is_refused in _wishes(args):
        args.speculative_config = wish
        with suppress(Exception):
            config = build()
            if not is_refused(config):
                return config
        args.speculative_config = given
    return build()


def _wishes(args: Any) -> Iterator[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """Never raises: a mistake in the settings is reported later."""
    try:
        from specmargin.live.vllm.configuration import wishes  # noqa: PLC0415  # no cost without configuration

        yield from wishes(args)
    except Exception:
        return


def _is_configured(config: Any) -> bool:
    additional = getattr(config, "additional_config", None)
    scheduler_class = getattr(getattr(config, "scheduler_config", None), "scheduler_cls", None)
    inline = isinstance(additional, dict) and KEY in additional
    return inline or bool(os.environ.get(VARIABLE)) or scheduler_class in SCHEDULERS.values()
