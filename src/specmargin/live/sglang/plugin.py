"""The entry point of `sglang.srt.plugins`: inert unless the adaptive configuration has Specmargin's key.

SGLang loads it in every process. It registers two hooks with SGLang's own registry: a subclass of the class that
chooses the depth of each round, and Specmargin's metrics on `/metrics`. Nothing here imports SGLang, Numba or the
Prometheus client (which SGLang must configure first) before SGLang calls it.
"""

from __future__ import annotations

from contextlib import suppress

from specmargin.live.release import check_release, reason
from specmargin.live.sglang.names import METRICS, PARAMS, SUPPORTED, board_folder, logger


def register() -> None:
    """Called by SGLang. Never raises: a faulty plug-in must not keep the server from starting."""
    try:
        _register()
    except Exception as error:
        logger.warning("Specmargin: %s. SGLang runs without the plug-in.", reason(error))


def _register() -> None:
    from sglang.version import __version__  # noqa: PLC0415  # only called by SGLang

    check_release("SGLang", __version__, SUPPORTED)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    from specmargin.live.sglang.params import SpecmarginParams  # noqa: PLC0415

    HookRegistry.register(PARAMS, SpecmarginParams, HookType.REPLACE)
    HookRegistry.register(METRICS, _show_metrics, HookType.BEFORE)


def _show_metrics(*_: object) -> None:
    """Before SGLang adds `/metrics` to its server."""
    folder = board_folder()
    with suppress(Exception):
        from specmargin.live.metrics import show_with_multiprocess  # noqa: PLC0415

        if folder is not None:
            show_with_multiprocess(folder)
