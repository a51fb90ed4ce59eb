"""vLLM's worker extension that captures: confidences and routed experts, in its first model runner.

vLLM imports a worker extension only if the plug-in is configured. Its import installs hooks; its methods are for votes.
"""

from __future__ import annotations

from specmargin.live.vllm.log import attempt
from specmargin.live.vllm.worker_vote import VotingExtension


def _install() -> None:
    from specmargin.live.vllm import confidences, routing  # noqa: PLC0415, F401  # importing them installs them


class CaptureExtension(VotingExtension):
    pass


attempt("captured rounds have no confidences and no routed experts", None, _install)
