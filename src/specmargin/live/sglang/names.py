"""Names of the plug-in inside SGLang, and where its metrics are.

Nothing here imports SGLang: the entry point imports it in every process.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

KEY = "specmargin"  # in the file of --speculative-adaptive-config; SGLang skips keys that are not numbers
PARAMS = "sglang.srt.speculative.adaptive_spec_params.AdaptiveSpeculativeParams"
METRICS = "sglang.srt.utils.common.add_prometheus_middleware"

logger = logging.getLogger("sglang.specmargin")


def board_folder() -> Path | None:
    """Where SGLang's processes share their metrics; None without --enable-metrics."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(folder) / KEY if folder else None
