"""Names of the plug-in inside SGLang, the supported releases, and where its metrics are.

Nothing here imports SGLang: the entry point imports it in every process.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

KEY = "specmargin"  # in the file of --speculative-adaptive-config; SGLang skips keys that are not numbers
PARAMS = "sglang.srt.speculative.adaptive_spec_params.AdaptiveSpeculativeParams"
METRICS = "sglang.srt.utils.common.add_prometheus_middleware"
#: The plug-in replaces a class that is not part of SGLang's public API.
SUPPORTED = ("0.5.21", "0.5.22", "0.5.23")

logger = logging.getLogger("sglang.specmargin")


def board_folder() -> Path | None:
    """Where SGLang's processes share their metrics; None without --enable-metrics."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(folder) / KEY if folder else None
