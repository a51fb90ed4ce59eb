"""`plan --policy FILE`: the precomputed tables from which the live controller decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specmargin.acceptance.bank import read_bank
from specmargin.acceptance.calibration import Logistic, survival_of, tokens_of
from specmargin.acceptance.schema import read_acceptance
from specmargin.app.planning import Answer
from specmargin.files import write_text
from specmargin.live.making import make_policy
from specmargin.live.policy_schema import policy_text
from specmargin.live.settings_schema import Range
from specmargin.policies.tables import scenario_table
from specmargin.step import FloatArray

_MOST_ROUNDS = 512  # in the sample: more would not change the look-ahead


def write_policy(path: Path, best: Answer, acceptance: str | None, *, max_batch: int, force: bool) -> str:
    """Write the file and return a message for the user."""
    pricer, scenario = best.plan.pricer, best.plan.scenario
    depth = best.plan.max_depth
    ignored = best.plan.graph_limit is None
    table = scenario_table(pricer, max_batch=max_batch, max_depth=depth, ignore_graph_limit=ignored)
    calibrator, sample = _confidence(acceptance)
    schedule: list[Range] = [(r.first, r.last, r.depth) for r in best.config.schedule.ranges]
    file = make_policy(
        table=table,
        survival=scenario.survival.up_to(depth),
        schedule=schedule or [(1, max_batch, 0)],
        model=scenario.architecture.name,
        drafter=best.choice.kind,
        device=scenario.device.name,
        context=scenario.context,
        sources={name: str(source) for name, source in pricer.sources.items()},
        calibrator=calibrator,
        sample=sample,
    )
    write_text(path, policy_text(file), force=force)
    gated = "gates drafts by confidence" if sample is not None else "no confidences: depth by learned acceptance"
    return f"{path}, the policy of the live controller ({gated})"


def _confidence(acceptance: str | None) -> tuple[Logistic | None, FloatArray | None]:
    """Calibrator and sample of the bank or profile that `--acceptance` names; none for a curve or a constant."""
    path = Path(acceptance) if acceptance else None
    if path is not None and acceptance is not None and not path.exists():
        path = Path(acceptance.rpartition(":")[0] or acceptance)
    if path is None or not path.exists():
        return None, None
    if path.suffix == ".json":
        profile = read_acceptance(path)
        if profile.calibrator is None or not profile.sample:
            return None, None
        weights = np.array(profile.calibrator.weights)
        return Logistic(weights=weights, depths=profile.calibrator.depths, rich=True), np.array(profile.sample)
    rounds = read_bank([path]).with_confidence()
    if rounds is None:
        return None, None
    calibrator = Logistic.fit(tokens_of(rounds), depths=rounds.depth)
    survival = survival_of(rounds, calibrator)
    chosen = np.random.default_rng(0).permutation(survival.shape[0])[:_MOST_ROUNDS]
    return calibrator, survival[chosen]
