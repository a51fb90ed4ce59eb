"""The identity of a vLLM engine in the banks captured from it."""

from __future__ import annotations

from typing import Any

from specmargin.live.capture import Identity


def bank_identity(config: Any) -> Identity:
    """`config`: a `VllmConfig`."""
    speculative = config.speculative_config
    drafter = speculative.model or speculative.method
    return Identity(
        model=str(config.model_config.model),
        speculator=f"{speculative.method}:{drafter}",
        config=f"k{speculative.num_speculative_tokens}",
    )
