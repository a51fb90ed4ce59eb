"""Driver, clocks and temperature of the GPU, as nvidia-smi reports them."""

from __future__ import annotations

import subprocess
from contextlib import suppress


def nvidia_smi(fields: str) -> str:
    """The comma-separated fields of the first GPU, or an empty string where nvidia-smi does not run."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()[0]
    return ""
