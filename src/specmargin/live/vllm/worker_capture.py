"""vLLM's worker extension that captures: confidences and routed experts, in its first model runner.

vLLM imports a worker extension only if the plug-in is configured; it has no methods, its import installs hooks.
"""

from __future__ import annotations

from specmargin.live.vllm.log import attempt


def _install() -> None:
    from specmargin.live.vllm import confidences, routing  # noqa: PLC0415, F401  # importing them installs them


class CaptureExtension:
    pass


attempt("captured rounds have no confidences and no routed experts", None, _install)
