"""How a bank names the engine that it was captured from."""

from __future__ import annotations

from typing import Any

from specmargin.live.capture import Identity


def identity_of(config: Any) -> Identity:
    """`config`: vLLM's own configuration."""
    speculative = config.speculative_config
    drafter = speculative.model or speculative.method
    return Identity(
        model=str(config.model_config.model),
        speculator=f"{speculative.method}:{drafter}",
        config=f"k{speculative.num_speculative_tokens}",
    )
