"""Which vLLM the plug-in knows: it reaches into classes that vLLM does not promise to keep."""

from __future__ import annotations

import re

from specmargin.errors import EngineError

SUPPORTED = ("0.32",)


def check_version(version: str) -> None:
    found = re.match(r"\d+\.\d+", version)
    if found is None or found.group() not in SUPPORTED:
        raise EngineError(
            f"vLLM {version} is not supported (supported: {', '.join(f'{known}.x' for known in SUPPORTED)}); "
            "Specmargin leaves the engine as it is"
        )
