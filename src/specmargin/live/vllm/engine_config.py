"""What is read of the `VllmConfig` of a running engine: Specmargin's settings, and the engine's identity in banks."""

from __future__ import annotations

from typing import Any

from specmargin.live.capture import Identity
from specmargin.live.settings_schema import Settings, read_settings
from specmargin.live.vllm.names import KEY


def engine_settings(config: Any) -> Settings:
    """As the plug-in left them there."""
    return read_settings(config.additional_config[KEY], f"additional_config['{KEY}']")


def bank_identity(config: Any) -> Identity:
    speculative = config.speculative_config
    drafter = speculative.model or speculative.method
    return Identity(
        model=str(config.model_config.model),
        speculator=f"{speculative.method}:{drafter}",
        config=f"k{speculative.num_speculative_tokens}",
    )
