"""What a bank of rounds says: survival, calibration held out by request, and the ladder of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

import numpy as np

from specmargin.acceptance.bank import Rounds
from specmargin.acceptance.calibration import (
    Calibrator,
    IsotonicByDepth,
    Logistic,
    Quality,
    Raw,
    quality,
    survival_of,
    tokens_of,
)
from specmargin.acceptance.estimate import SurvivalEstimate, accepted_histogram, joint_table, survival_estimate
from specmargin.acceptance.schema import AcceptanceFile, CalibratorFile, CategoryFile
from specmargin.app.request_schema import ScenarioRequest
from specmargin.app.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.errors import AcceptanceError
from specmargin.modes import RooflineForm
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.ladder import CONCURRENCIES, Contest, LadderRow, ladder
from specmargin.policies.tables import scenario_table, study_table
from specmargin.prices.work import Scope

_SAMPLED = 512


class Clock(StrEnum):
    """At which prices the ladder is played."""

    STUDY_BLOCK = "study-block"
    STUDY_PASSES = "study-passes"
    REAL = "real"
    POST = "post"


CLOCKS = {
    Clock.STUDY_BLOCK: "study prices, block head",
    Clock.STUDY_PASSES: "study prices, autoregressive head, early stop",
    Clock.REAL: "Qwen3.6-35B-A3B on H200, MTP, vLLM, measured laws, its routing",
    Clock.POST: "published post's assumptions, B200 roofline, one max a step, uniform routing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationLine:
    depth: int
    raw: Quality
    isotonic: Quality
    logistic: Quality
    calibrated: Quality


def prices_of(clock: Clock) -> PriceTable:
    match clock:
        case Clock.STUDY_BLOCK:
            return study_table(by_pass=False)
        case Clock.STUDY_PASSES:
            return study_table(by_pass=True)
        case Clock.REAL:
            request = ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter="mtp")
        case Clock.POST:
            request = ScenarioRequest(
                model="qwen3.6-35b-a3b",
                gpu="b200",
                prices="datasheet",
                form=RooflineForm.WHOLE_STEP,
                drafter="mtp",
                routing="uniform-with-replacement",
                context=512,
            )
        case _:
            assert_never(clock)
    _, scenario = scenario_of(request)
    if clock is Clock.POST:
        scenario = replace(scenario, scope=Scope(sampling=False, state_writes=False, draft_catch_up=False))
    pricer = Pricer(scenario).with_graph_limit(None)
    return scenario_table(pricer, max_batch=max(CONCURRENCIES), max_depth=8)


def calibration_lines(rounds: Rounds, *, splits: int, seed: int = 0) -> list[CalibrationLine]:
    """Held-out quality of conditional acceptance by depth, averaged over splits by request."""
    tokens = tokens_of(rounds)
    requests = np.unique(rounds.prompt_by_round)
    if requests.size < 2:
        return []  # nothing to hold out
    found: dict[int, dict[str, list[Quality]]] = {}  # by depth and model
    for split in range(splits):
        half = np.random.default_rng([seed, split]).permutation(requests)[: requests.size // 2]
        ours = np.isin(rounds.prompt_by_round, half)[tokens.round]
        learn, judge = tokens.chosen(ours), tokens.chosen(~ours)
        models: dict[str, Calibrator] = {
            "raw": Raw(),
            "isotonic": IsotonicByDepth.fit(learn),
            "logistic": Logistic.fit(learn, depths=rounds.depth, rich=False),
            "calibrated": Logistic.fit(learn, depths=rounds.depth),
        }
        for name, model in models.items():
            probability = model.probability(judge)
            for depth in range(rounds.depth):
                at = judge.depth == depth
                if at.any():
                    judged = quality(probability[at], judge.accepted[at])
                    found.setdefault(depth, {}).setdefault(name, []).append(judged)
    return [
        CalibrationLine(depth=depth + 1, **{name: _mean(judged) for name, judged in by_model.items()})
        for depth, by_model in sorted(found.items())
    ]


def _mean(found: Sequence[Quality]) -> Quality:
    return Quality(
        rows=int(np.mean([quality.rows for quality in found])),
        calibration_error=float(np.mean([quality.calibration_error for quality in found])),
        log_loss=float(np.mean([quality.log_loss for quality in found])),
        brier=float(np.mean([quality.brier for quality in found])),
    )


Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def study(rounds: Rounds, *, clocks: Sequence[Clock], splits: int, progress: Progress) -> dict[str, Any]:
    """Everything that is shown, in the shape of the JSON. `progress`: a bar with a name and so many parts."""
    known = rounds.with_confidence()
    if clocks and known is None:
        raise AcceptanceError(f"{rounds.source}: has no confidences, which the ladder needs")
    estimates = {name: survival_estimate(rounds.of_category(name)) for name in rounds.categories}
    estimates["all"] = survival_estimate(rounds)
    payload: dict[str, Any] = {
        "schema": "specmargin.profile-acceptance/1",
        "source": rounds.source,
        "speculator": rounds.speculator,
        "categories": {name: _estimate(found) for name, found in estimates.items()},
        "histogram": accepted_histogram(rounds).tolist(),
        "calibration": [],
        "ladder": [],
    }
    if known is not None:
        payload["calibrated_rounds"] = known.count
        payload["joint"] = joint_table(known, survival_of(known, Raw())).tolist()
        with progress("calibrating", 1):
            payload["calibration"] = [_line(line) for line in calibration_lines(known, splits=splits)]
        contest = Contest.of(known, seed=0) if clocks else None
        for clock in clocks:
            with progress(f"ladder, {clock}", len(CONCURRENCIES)) as advance:
                assert contest is not None
                rows = list(ladder(contest, prices_of(clock), advance=lambda: advance(1)))
            payload["ladder"] += [asdict(row) | {"prices": str(clock)} for row in rows]
    return payload


def profile_file(rounds: Rounds, payload: dict[str, Any], name: str) -> AcceptanceFile:
    """What is kept: curves by category, the calibrator, and survivals of some rounds for the look-ahead."""
    calibrator, sample = None, []
    known = rounds.with_confidence()
    if known is not None:
        model = Logistic.fit(tokens_of(known), depths=known.depth)
        calibrator = CalibratorFile(depths=model.depths, weights=[float(f"{w:.6g}") for w in model.weights])
        spread = np.linspace(0, known.count - 1, min(known.count, _SAMPLED)).astype(np.int64)
        sample = np.round(survival_of(known, model)[spread], 4).tolist()
    return AcceptanceFile(
        schema="specmargin.acceptance/1",
        name=name,
        speculator=rounds.speculator,
        source=rounds.source,
        categories={key: CategoryFile(**value) for key, value in payload["categories"].items()},
        calibrator=calibrator,
        sample=sample,
    )


def _estimate(found: SurvivalEstimate) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "survival": found.survival.tolist(),
        "survival_stderr": found.standard_error.tolist(),
    }


def _line(line: CalibrationLine) -> dict[str, Any]:
    found: dict[str, Any] = {"depth": line.depth}
    for name in ("raw", "isotonic", "logistic", "calibrated"):
        quality: Quality = getattr(line, name)
        found |= {
            f"ece_{name}": quality.calibration_error,
            f"log_loss_{name}": quality.log_loss,
            f"brier_{name}": quality.brier,
        }
    return found


def ladder_rows(payload: dict[str, Any]) -> list[tuple[str, LadderRow]]:
    return [
        (CLOCKS[Clock(row["prices"])], LadderRow(**{key: value for key, value in row.items() if key != "prices"}))
        for row in payload["ladder"]
    ]
