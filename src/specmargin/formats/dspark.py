"""Files that SGLang's DSpark reads: verify prices by batch and token count, and temperatures of its confidences.

`--speculative-dspark-sps-table-path`: the additive form, `bias_seconds` above 0, probes strictly increasing.
`--speculative-dspark-confidence-sts-path`: one temperature above 0 per position of the block.
(speculative/dspark_components/dspark_sps.py, dspark_sts.py and dspark_planner.py, 0.5.16 to 0.5.23)
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from specmargin.decisions.additive import AdditiveFit, AdditivePrices
from specmargin.step import FloatArray

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


def calibration_text(
    temperatures: FloatArray, *, source: str, rounds: int, error_before: FloatArray, error_after: FloatArray
) -> str:
    """Errors are of the calibration, by position."""
    return _text(
        {
            "temperatures": temperatures.tolist(),
            "dataset": source,
            "num_samples": rounds,
            "ece_before": error_before.tolist(),
            "ece_after": error_after.tolist(),
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
