"""Whether a plug-in can start: the check of an engine's release, and why it did not start, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specmargin.errors import EngineError


def check_release(engine: str, version: str, supported: Sequence[str]) -> None:
    """`supported`: releases by their first numbers, such as 0.32 for every 0.32.x."""
    if not any(re.match(rf"{re.escape(release)}(?!\d)", version) for release in supported):
        raise EngineError(f"{engine} {version} is not supported (supported: {', '.join(supported)})")


def reason(error: Exception) -> str:
    """For a log line."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
