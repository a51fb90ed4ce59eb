"""What the plug-in is called inside vLLM, and which releases it knows.

Nothing here imports vLLM: the entry point reads it in every process.
"""

from __future__ import annotations

import re

from specmargin.errors import EngineError

KEY = "specmargin"  # of our settings in vLLM's additional_config
VARIABLE = "SPECMARGIN_CONFIG"
LISTENS = "specmargin_listens"  # in the scheduler's output: whether the step's drafts shall come with confidences
SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginScheduler"
ASYNC_SCHEDULER = "specmargin.live.vllm.scheduler.SpecmarginAsyncScheduler"
WORKER_EXTENSION = "specmargin.live.vllm.worker.SpecmarginWorkerExtension"
#: The plug-in reaches into classes that vLLM does not promise to keep.
SUPPORTED = ("0.32",)


def check_version(version: str) -> None:
    release = re.match(r"\d+\.\d+", version)
    if release is None or release.group() not in SUPPORTED:
        raise EngineError(
            f"vLLM {version} is not supported (supported: {', '.join(f'{known}.x' for known in SUPPORTED)}); "
            "Specmargin leaves the engine as it is"
        )
