"""The log inside vLLM's processes, and attempts whose failure is only logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from vllm.logger import init_logger

P = ParamSpec("P")
T = TypeVar("T")
logger = init_logger("vllm.specmargin")


def attempt(consequence: str, fallback: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's result; where it fails, the fallback, and what that means once in the log."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # the engine continues
        logger.warning_once("Specmargin: %s (%s: %s).", consequence, type(error).__name__, error)
        return fallback
