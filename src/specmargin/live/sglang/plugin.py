"""The entry point of `sglang.srt.plugins`: inert unless the adaptive configuration has Specmargin's key.

SGLang loads it in every process. It registers two hooks with SGLang's own registry: a subclass of the class that
chooses the depth of each round, and Specmargin's metrics on `/metrics`. Nothing here imports SGLang, Numba or the
Prometheus client (which SGLang must configure first) before SGLang calls it.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from specmargin.live.guard import reason
from specmargin.live.sglang.names import METRICS, PARAMS, board_folder, logger


def register() -> None:
    """Called by SGLang. Never raises: a faulty plug-in must not keep the server from starting."""
    try:
        _register()
    except Exception as error:
        logger.warning("Specmargin: %s. SGLang runs without the plug-in.", _why(error))


def _why(error: Exception) -> str:
    """The part that this release lacks, or the error itself."""
    with suppress(Exception):
        from specmargin.live.parts import Feature, check_installed  # noqa: PLC0415  # no cost where all is well

        report = check_installed("sglang")
        if not report.has(Feature.OBSERVE):
            return report.losses[0]
    return reason(error)


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415  # only called by SGLang

    from specmargin.live.sglang.params import SpecmarginParams  # noqa: PLC0415

    HookRegistry.register(PARAMS, SpecmarginParams, HookType.REPLACE)
    module, _, function = METRICS.rpartition(".")
    if hasattr(import_module(module), function):  # without it, the log of a configured plug-in says so
        HookRegistry.register(METRICS, _show_metrics, HookType.BEFORE)


def _show_metrics(*_: object, **__: object) -> None:
    """Before SGLang adds `/metrics` to its server."""
    folder = board_folder()
    with suppress(Exception):
        from specmargin.live.metrics import show_with_multiprocess  # noqa: PLC0415

        if folder is not None:
            show_with_multiprocess(folder)
