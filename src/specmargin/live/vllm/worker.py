"""vLLM's worker extension with all that the plug-in does in a worker: it captures and gates."""

from __future__ import annotations

from specmargin.live.vllm import worker_capture, worker_gate  # noqa: F401  # importing them installs their hooks


class WorkerExtension:
    pass
