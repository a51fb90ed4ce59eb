"""Names of the plug-in inside vLLM.

Nothing here imports vLLM: the entry point imports it in every process.
"""

from __future__ import annotations

KEY = "specmargin"  # of the settings in vLLM's additional_config
VARIABLE = "SPECMARGIN_CONFIG"
_SCHEDULERS = "specmargin.live.vllm.scheduler"
#: By whether it decides and whether scheduling is asynchronous.
SCHEDULERS = {
    (True, False): f"{_SCHEDULERS}.SpecmarginScheduler",
    (True, True): f"{_SCHEDULERS}.SpecmarginAsyncScheduler",
    (False, False): f"{_SCHEDULERS}.ObservingScheduler",
    (False, True): f"{_SCHEDULERS}.ObservingAsyncScheduler",
}
#: By whether it captures and whether it gates: importing one installs the hooks of just these.
WORKER_EXTENSIONS = {
    (True, True): "specmargin.live.vllm.worker.WorkerExtension",
    (True, False): "specmargin.live.vllm.worker_capture.CaptureExtension",
    (False, True): "specmargin.live.vllm.worker_gate.GateExtension",
}
