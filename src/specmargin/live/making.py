"""Makes the policy file of a live engine: prices, acceptance, a schedule and a look-ahead."""

from __future__ import annotations

import numpy as np

from specmargin.acceptance.calibration import Logistic
from specmargin.acceptance.schema import CalibratorFile
from specmargin.live.policy_schema import LookAheadFile, PolicyFile, TableFile
from specmargin.live.settings_schema import Range
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.lookahead import look_ahead
from specmargin.step import FloatArray


def make_policy(
    *,
    table: PriceTable,
    survival: FloatArray,
    schedule: list[Range],
    model: str,
    drafter: str,
    device: str,
    context: float,
    sources: dict[str, str],
    calibrator: Logistic | None = None,
    sample: FloatArray | None = None,
) -> PolicyFile:
    """`sample`: calibrated survivals of captured rounds, which the gate needs."""
    candidates = table.sensible_depths
    ahead = None if sample is None else look_ahead(table, sample, early_stop=False)
    return PolicyFile(
        model=model,
        drafter=drafter,
        device=device,
        context=context,
        sources=sources,
        table=TableFile.of(table),
        survival=np.clip(survival, 0.0, 1.0).tolist(),
        schedule=schedule,
        candidates=None if len(candidates) > table.max_depth else list(candidates),
        calibrator=None if calibrator is None else _calibrator_file(calibrator),
        look_ahead=None if ahead is None else LookAheadFile.of(ahead),
    )


def _calibrator_file(model: Logistic) -> CalibratorFile:
    return CalibratorFile(depths=model.depths, weights=[float(weight) for weight in model.weights])
