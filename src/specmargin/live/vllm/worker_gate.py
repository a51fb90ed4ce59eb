"""vLLM's worker extension that gates drafts, in its second model runner; `worker_capture.py` says how it is loaded."""

from __future__ import annotations

from specmargin.live.vllm.log import attempt
from specmargin.live.vllm.worker_vote import VotingExtension


def _install() -> None:
    from specmargin.live.vllm.gate import graph_sizes, installation, returns  # noqa: PLC0415, F401  # importing them installs them


class GateExtension(VotingExtension):
    pass


attempt("drafts are not gated on the GPU, only their depth is controlled", None, _install)
