"""Files that SGLang's DSpark reads: verify prices by batch and token count, and temperatures of its confidences.

`--speculative-dspark-sps-table-path`: the additive form, `bias_seconds` above 0, probes strictly increasing.
`--speculative-dspark-confidence-sts-path`: one temperature above 0 per position of the block.
(speculative/dspark_components/dspark_sps.py, dspark_sts.py and dspark_planner.py, 0.5.16 to 0.5.23)
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.decisions.additive import AdditiveFit, AdditivePrices

if TYPE_CHECKING:
    from specmargin.acceptance.temperatures import Temperatures

#: Without it SGLang verifies whole blocks and ignores the table.
ENVIRONMENT = "SGLANG_RAGGED_VERIFY_MODE=compact"
MEDIAN_LIMIT = 0.05


def price_table_text(prices: AdditivePrices) -> str:
    return _text(
        {
            "bias_seconds": prices.bias_seconds,
            "bs_probes": prices.batches.tolist(),
            "alpha_seconds": prices.batch_seconds.tolist(),
            "m_probes": prices.tokens.tolist(),
            "theta_seconds": prices.token_seconds.tolist(),
        }
    )


def calibration_text(fitted: Temperatures) -> str:
    return _text(
        {
            "temperatures": fitted.by_position.tolist(),
            "dataset": fitted.source,
            "num_samples": fitted.rounds,
            "ece_before": fitted.error_before.tolist(),
            "ece_after": fitted.error_after.tolist(),
        }
    )


def price_table_flag(path: Path) -> str:
    return f"--speculative-dspark-sps-table-path {shlex.quote(str(path))}"


def calibration_flag(path: Path) -> str:
    return f"--speculative-dspark-confidence-sts-path {shlex.quote(str(path))}"


def fit_text(fit: AdditiveFit) -> str:
    """How far the additive form is from the prices."""
    where = f"batch {fit.worst_batch}, {fit.worst_tokens} tokens"
    return f"{fit.median_error:.1%} from the plan's prices (median), at most {fit.worst_error:.1%} ({where})"


def _text(content: dict[str, object]) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"
