"""Our settings into vLLM's configuration. What cannot be taken is said once, and the server starts without us."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import vllm
from prometheus_client import REGISTRY
from vllm.logger import init_logger

from specmargin.errors import EngineError
from specmargin.live.board import board_of_fault
from specmargin.live.settings_schema import Settings, read_settings, read_settings_file
from specmargin.live.vllm.metrics import BoardCollector, show_beside_files
from specmargin.live.vllm.names import ASYNC_SCHEDULER, KEY, SCHEDULER, VARIABLE, WORKER_EXTENSION, check_version

logger = init_logger("vllm.specmargin")
_SHARED = "SPECMARGIN_BOARDS"  # the parent's, for the API servers that it starts


def configure(config: Any) -> None:
    """Put our scheduler and our worker's hook into the configuration, or leave it as if we were not there."""
    try:
        check_version(vllm.__version__)
        _put_in(config, _settings(config))
    except Exception as error:  # a clear sentence where we made it, whatever else otherwise
        detail = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        logger.error("Specmargin: %s. The server starts without it.", detail)
        _take_out(config)


def _settings(config: Any) -> Settings:
    given = config.additional_config.get(KEY) if isinstance(config.additional_config, dict) else None
    if given is not None:
        return read_settings(given, f"additional_config['{KEY}']")
    file = os.environ.get(VARIABLE)
    if not file:
        raise EngineError(
            "--scheduler-cls names Specmargin, but nothing configures it: give --additional-config "
            f'\'{{"{KEY}": {{"mode": "observe"}}}}\' or set {VARIABLE}'
        )
    return read_settings(read_settings_file(Path(file)), file)


def _put_in(config: Any, settings: Settings) -> None:
    scheduler, parallel = config.scheduler_config, config.parallel_config
    if scheduler.scheduler_cls not in (None, SCHEDULER, ASYNC_SCHEDULER):
        raise EngineError(f"--scheduler-cls {scheduler.scheduler_cls} is not ours; the two cannot be combined")
    board = _board_folder(parallel)
    written = settings.model_copy(update={"board": board}).model_dump(mode="json")
    config.additional_config = {**config.additional_config, KEY: written}
    scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SCHEDULER
    if not parallel.worker_extension_cls:
        parallel.worker_extension_cls = WORKER_EXTENSION
    elif settings.confidence:
        logger.warning("Specmargin: another worker extension is configured; drafts go without confidence.")


def _take_out(config: Any) -> None:
    """A configuration that we could not take is counted too, where people look."""
    if config.scheduler_config.scheduler_cls in (SCHEDULER, ASYNC_SCHEDULER):
        config.scheduler_config.scheduler_cls = None
    with suppress(OSError):
        board_of_fault(_board_folder(config.parallel_config) / "engine-0.board", "configuration")


def _board_folder(parallel: Any) -> Path:
    """Where the engine writes and `/metrics` reads; gone with the process that made it.

    With several API servers their parent makes the engine's configuration, and each of them one of its own: they show
    the parent's boards.
    """
    rank = getattr(parallel, "_api_process_rank", 0)  # -1: the parent
    shared = os.environ.get(_SHARED)
    if shared and rank >= 0:
        folder = Path(shared)
    else:
        folder = Path(tempfile.mkdtemp(prefix="specmargin-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if rank < 0:
        os.environ[_SHARED] = str(folder)
    BoardCollector.show(folder, REGISTRY)
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        show_beside_files(folder)
    return folder
