"""Names of the plug-in inside vLLM, and the supported releases.

Nothing here imports vLLM: the entry point imports it in every process.
"""

from __future__ import annotations

import re

from specmargin.errors import EngineError

KEY = "specmargin"  # of the settings in vLLM's additional_config
VARIABLE = "SPECMARGIN_CONFIG"
WANTS_CONFIDENCE = "specmargin_wants_confidence"  # attribute of the scheduler's output
SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginScheduler"
ASYNC_SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginAsyncScheduler"
WORKER_EXTENSION = "specmargin.live.vllm.worker.SpecmarginWorkerExtension"
#: The plug-in patches classes that are not part of vLLM's public API.
SUPPORTED = ("0.31", "0.32")


def check_version(version: str) -> None:
    match = re.match(r"\d+\.\d+", version)
    if match is None or match.group() not in SUPPORTED:
        raise EngineError(
            f"vLLM {version} is not supported (supported: {', '.join(f'{supported}.x' for supported in SUPPORTED)})"
        )
