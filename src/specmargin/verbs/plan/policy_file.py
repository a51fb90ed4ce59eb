"""`plan --policy FILE`: the precomputed tables from which the live controller decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from specmargin.acceptance.bank import read_bank
from specmargin.acceptance.calibration import Logistic, survival_of, tokens_of
from specmargin.acceptance.schema import CalibratorFile, read_acceptance
from specmargin.files import write_text
from specmargin.formats.base import EngineConfig
from specmargin.live.policy_maker import make_policy
from specmargin.live.policy_schema import PolicyFile, policy_text
from specmargin.live.settings_schema import Mode, Range
from specmargin.live.sglang.names import KEY
from specmargin.policies.tables import scenario_table
from specmargin.step import FloatArray
from specmargin.verbs.plan.drafter_plan import MAX_NUM_SEQS, DrafterPlan

_MOST_ROUNDS = 512  # in the sample: more would not change what a gate is expected to give
Confidence = tuple[CalibratorFile | None, FloatArray | None]  # and calibrated survivals of some rounds


def write_policy(path: Path, best: DrafterPlan, *, force: bool) -> tuple[EngineConfig, str]:
    """Write the file; returns the engine's setting, whose flags may name it, and a message for the user."""
    inside = best.engine.policy_inside
    confidence = (None, None) if inside else _confidence(best.request.acceptance)  # SGLang shows no confidences
    text = policy_text(_policy(best, confidence, plan_graphs=inside))
    config, what = _configured(best, json.loads(text) if inside else str(path)), "the policy of the live controller"
    if inside:
        config = config.with_file(str(path))
        text, what = config.file_text or "", f"{best.engine.title}'s adaptive configuration with {what}"
        config = replace(config, file_text=None)  # written: too long to be shown
    write_text(path, text, force=force)
    gated = "gates drafts by confidence" if confidence[1] is not None else "no confidences: depth by learned acceptance"
    return config, f"{path}, {what} ({gated})"


def _configured(best: DrafterPlan, policy: object) -> EngineConfig:
    """The engine's setting with the plug-in's. `policy`: the policy, or the path of its file."""
    settings = {KEY: {"mode": Mode.ADAPTIVE.value, "policy": policy}}
    return best.config if best.engine.with_policy is None else best.engine.with_policy(best.config, settings)


def _policy(best: DrafterPlan, confidence: Confidence, *, plan_graphs: bool) -> PolicyFile:
    pricer, scenario, max_batch = best.plan.pricer, best.plan.scenario, best.request.max_batch or MAX_NUM_SEQS
    schedule: list[Range] = [(r.first, r.last, r.depth) for r in best.config.schedule.ranges]
    return make_policy(
        table=scenario_table(pricer, best.plan.setting, max_batch=max_batch, ranks=scenario.layout.data_ranks),
        survival=scenario.survival.up_to(best.plan.setting.max_depth),
        schedule=schedule or [(1, max_batch, 0)],
        model=scenario.architecture.name,
        drafter=best.choice.kind,
        device=scenario.device.name,
        context=scenario.context,
        sources={name: str(source) for name, source in pricer.sources.items()},
        calibrator=confidence[0],
        sample=confidence[1],
        plan_graphs=plan_graphs,
        ranks=scenario.layout.data_ranks,
    )


def _confidence(acceptance: str | None) -> Confidence:
    """Of the bank or profile that `--acceptance` names; none for a curve or a constant."""
    path = Path(acceptance) if acceptance else None
    if path is not None and acceptance is not None and not path.exists():
        path = Path(acceptance.rpartition(":")[0] or acceptance)
    if path is None or not path.exists():
        return None, None
    if path.suffix == ".json":
        profile = read_acceptance(path)
        usable = profile.calibrator is not None and profile.sample
        return (profile.calibrator, np.array(profile.sample)) if usable else (None, None)
    rounds = read_bank([path]).with_confidence()
    if rounds is None:
        return None, None
    calibrator = Logistic.fit(tokens_of(rounds), depths=rounds.depth)
    survival = survival_of(rounds, calibrator)
    chosen = np.random.default_rng(0).permutation(survival.shape[0])[:_MOST_ROUNDS]
    return CalibratorFile(depths=calibrator.depths, weights=calibrator.weights.tolist()), survival[chosen]
