"""vLLM's worker extension with all that the plug-in does in a worker: it captures, gates and follows votes."""

from __future__ import annotations

from specmargin.live.vllm import worker_capture, worker_gate  # noqa: F401  # importing them installs their hooks
from specmargin.live.vllm.worker_vote import VotingExtension


class WorkerExtension(VotingExtension):
    pass
