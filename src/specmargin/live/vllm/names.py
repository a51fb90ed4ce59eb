"""Names of the plug-in inside vLLM, and the supported releases.

Nothing here imports vLLM: the entry point imports it in every process.
"""

from __future__ import annotations

from specmargin.live.release import check_release

KEY = "specmargin"  # of the settings in vLLM's additional_config
VARIABLE = "SPECMARGIN_CONFIG"
SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginScheduler"
ASYNC_SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginAsyncScheduler"
WORKER_EXTENSION = "specmargin.live.vllm.worker.SpecmarginWorkerExtension"
#: The plug-in patches classes that are not part of vLLM's public API.
SUPPORTED = ("0.31", "0.32")


def check_version(version: str) -> None:
    check_release("vLLM", version, SUPPORTED)
