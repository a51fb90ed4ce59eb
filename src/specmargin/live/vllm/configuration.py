"""Adds Specmargin to vLLM's configuration. On an error, the server starts with the plug-in disabled."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from specmargin.errors import EngineError
from specmargin.files import read_json
from specmargin.live.board import report_failed_start
from specmargin.live.features import remaining_settings, table_settings
from specmargin.live.guard import reason
from specmargin.live.metrics import BoardCollector, show_with_multiprocess
from specmargin.live.parts import Feature, Report, check_installed
from specmargin.live.settings_schema import Mode, Settings, read_settings
from specmargin.live.vllm.gate.choice import refusal_of_configuration, wants_gate
from specmargin.live.vllm.graphs import FLAG, add_depth_table, depth_note
from specmargin.live.vllm.log import logger
from specmargin.live.vllm.names import KEY, SCHEDULERS, VARIABLE, WORKER_EXTENSIONS

_BOARDS = "SPECMARGIN_BOARDS"  # set by the parent for the API servers that it starts


def configure(config: Any) -> None:
    """Add the scheduler and the worker extension to the configuration, or leave it unchanged."""
    try:
        report = check_installed("vllm")
        logger.info("Specmargin: %s.", report.summary)
        for loss in report.losses:
            logger.warning("Specmargin: %s.", loss)
        if not report.has(Feature.OBSERVE):
            raise EngineError("this release of vLLM lacks what the plug-in observes it by")
        _install(config, _settings(config), report)
    except Exception as error:
        logger.error("Specmargin: %s. The server starts with the plug-in disabled.", reason(error))
        _uninstall(config)


def wishes(args: Any) -> Iterator[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """What Specmargin would like for `speculative_config` before vLLM builds its configuration from these `EngineArgs`,
    the most first, and whether vLLM would refuse that later: a gate, and CUDA graphs for every depth."""
    report = check_installed("vllm")
    settings, given = _settings(args), args.speculative_config
    gated = report.has(Feature.GATE) and wants_gate(args, settings, _log)
    for speculative in [{**given, FLAG: True}, given] if gated else [given]:
        with_table = add_depth_table(speculative, args, table_settings(settings, report), _log)
        if with_table is not given:
            yield with_table, _refuses_gate if speculative is not given else _refuses_nothing


def _refuses_nothing(_: Any) -> bool:
    return False


def _refuses_gate(config: Any) -> bool:
    """The log says why."""
    try:
        from vllm.platforms import current_platform  # noqa: PLC0415  # not every release has it

        capability = current_platform.get_device_capability()
        refusal = refusal_of_configuration(config, None if capability is None else capability.major)
    except Exception:  # vLLM decides when it loads the model
        return False
    if refusal is not None:
        _log(f"drafts are not gated on the GPU: {refusal}")
    return refusal is not None


def _log(text: str) -> None:
    logger.info("Specmargin: %s.", text)


def _settings(config: Any) -> Settings:
    """`config`: anything with vLLM's `additional_config`."""
    settings = config.additional_config.get(KEY) if isinstance(config.additional_config, dict) else None
    if settings is not None:
        return read_settings(settings, f"additional_config['{KEY}']")
    file = os.environ.get(VARIABLE)
    if not file:
        raise EngineError(
            "--scheduler-cls names Specmargin, but nothing configures it: give --additional-config "
            f'\'{{"{KEY}": {{"mode": "observe"}}}}\' or set {VARIABLE}'
        )
    return read_settings(read_json(Path(file), EngineError), file)


def _install(config: Any, settings: Settings, report: Report) -> None:
    scheduler, parallel = config.scheduler_config, config.parallel_config
    if scheduler.scheduler_cls not in (None, *SCHEDULERS.values()):
        raise EngineError(f"--scheduler-cls {scheduler.scheduler_cls} cannot be combined with Specmargin's")
    settings = remaining_settings(settings, report)
    board = _board_folder(parallel, shown=report.has(Feature.METRICS))
    payload = settings.model_copy(update={"board": board}).model_dump(mode="json")
    config.additional_config = {**config.additional_config, KEY: payload}
    scheduler.scheduler_cls = SCHEDULERS[report.has(Feature.DEPTH), bool(scheduler.async_scheduling)]
    extension = WORKER_EXTENSIONS.get((report.has(Feature.CAPTURE), report.has(Feature.GATE)))
    if extension is not None:
        _extend_workers(parallel, extension, settings)
    if settings.mode is not Mode.OBSERVE and config.speculative_config is not None:
        note = depth_note(config.speculative_config)
        if note is not None:
            logger.warning("Specmargin: %s.", note)


def _extend_workers(parallel: Any, extension: str, settings: Settings) -> None:
    if not parallel.worker_extension_cls:
        parallel.worker_extension_cls = extension
    elif settings.capture is not None:
        logger.warning("Specmargin: another worker extension is configured; no confidences are captured.")


def _uninstall(config: Any) -> None:
    """Remove the scheduler, and count the configuration fault in the metrics."""
    with suppress(Exception):
        if config.scheduler_config.scheduler_cls in SCHEDULERS.values():
            config.scheduler_config.scheduler_cls = None
        report_failed_start(_board_folder(config.parallel_config))


def _board_folder(parallel: Any, *, shown: bool = True) -> Path:
    """The folder of boards that the engine writes and `/metrics` reads; removed when its process exits.

    With several API servers, the parent creates the engine's configuration and each server one of its own: the servers
    show the parent's boards.
    """
    rank = getattr(parallel, "_api_process_rank", 0)  # -1: the parent
    shared = os.environ.get(_BOARDS)
    if shared and rank >= 0:
        folder = Path(shared)
    else:
        folder = Path(tempfile.mkdtemp(prefix="specmargin-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if rank < 0:
        os.environ[_BOARDS] = str(folder)
    if shown:
        BoardCollector.show(folder, REGISTRY)
    if shown and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        show_with_multiprocess(folder)
    return folder
