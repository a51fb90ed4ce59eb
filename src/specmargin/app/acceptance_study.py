"""Study of a bank of rounds: survival, calibration held out by request, and the ladder of policies."""

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
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.errors import AcceptanceError
from specmargin.modes import RooflineForm
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.ladder import CONCURRENCIES, Contest, LadderRow, ladder
from specmargin.policies.tables import profiled_seconds, scenario_table, study_table
from specmargin.prices.work import Scope
from specmargin.step import FloatArray

_SAMPLED = 512  # rounds that a profile keeps


class LadderPrices(StrEnum):
    """Prices at which the ladder is replayed."""

    STUDY_BLOCK = "study-block"
    STUDY_PASSES = "study-passes"
    REAL = "real"
    POST = "post"


PRICE_TITLES = {
    LadderPrices.STUDY_BLOCK: "study prices, block head",
    LadderPrices.STUDY_PASSES: "study prices, autoregressive head, early stop",
    LadderPrices.REAL: "Qwen3.6-35B-A3B on H200, MTP, vLLM, measured laws, its routing",
    LadderPrices.POST: "published post's assumptions, B200 roofline, one max per step, uniform routing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationLine:
    depth: int
    raw: Quality
    isotonic: Quality
    logistic: Quality
    calibrated: Quality


def price_table(prices: LadderPrices) -> tuple[PriceTable, FloatArray | None]:
    """And verify seconds by positions as vLLM profiles them; None: the study's prices know no context."""
    match prices:
        case LadderPrices.STUDY_BLOCK:
            return study_table(by_pass=False), None
        case LadderPrices.STUDY_PASSES:
            return study_table(by_pass=True), None
        case LadderPrices.REAL:
            request = ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter="mtp")
        case LadderPrices.POST:
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
            assert_never(prices)
    _, scenario = scenario_of(request)
    if prices is LadderPrices.POST:
        scenario = replace(scenario, scope=Scope(sampling=False, state_writes=False, draft_catch_up=False))
    pricer, most = Pricer(scenario).with_every_graph(), max(CONCURRENCIES)
    table = scenario_table(pricer, Setting(max_depth=8), max_batch=most)
    return table, profiled_seconds(pricer, max_batch=most, max_depth=8)


def calibration_lines(rounds: Rounds, *, splits: int, seed: int = 0) -> list[CalibrationLine]:
    """Held-out quality of conditional acceptance by depth, averaged over splits by request."""
    tokens = tokens_of(rounds)
    requests = np.unique(rounds.prompt_by_round)
    if requests.size < 2:
        return []  # nothing to hold out
    qualities: dict[int, dict[str, list[Quality]]] = {}  # by depth and model
    for split in range(splits):
        half = np.random.default_rng([seed, split]).permutation(requests)[: requests.size // 2]
        in_half = np.isin(rounds.prompt_by_round, half)[tokens.round]
        learn, judge = tokens.chosen(in_half), tokens.chosen(~in_half)
        models: dict[str, Calibrator] = {
            "raw": Raw(),
            "isotonic": IsotonicByDepth.fit(learn),
            "logistic": Logistic.fit(learn, depths=rounds.depth, rich=False),
            "calibrated": Logistic.fit(learn, depths=rounds.depth),
        }
        for name, model in models.items():
            probability = model.probability(judge)
            for depth in range(rounds.depth):
                at_depth = judge.depth == depth
                if at_depth.any():
                    held_out = quality(probability[at_depth], judge.accepted[at_depth])
                    qualities.setdefault(depth, {}).setdefault(name, []).append(held_out)
    return [
        CalibrationLine(depth=depth + 1, **{name: _mean(splits) for name, splits in by_model.items()})
        for depth, by_model in sorted(qualities.items())
    ]


def _mean(qualities: Sequence[Quality]) -> Quality:
    return Quality(
        rows=int(np.mean([quality.rows for quality in qualities])),
        calibration_error=float(np.mean([quality.calibration_error for quality in qualities])),
        log_loss=float(np.mean([quality.log_loss for quality in qualities])),
        brier=float(np.mean([quality.brier for quality in qualities])),
    )


Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def study(rounds: Rounds, *, ladder_prices: Sequence[LadderPrices], splits: int, progress: Progress) -> dict[str, Any]:
    """Everything that is shown, in the shape of the JSON. `progress` opens a bar with a title and a total."""
    confident = rounds.with_confidence()
    if ladder_prices and confident is None:
        raise AcceptanceError(f"{rounds.source}: has no confidences, which the ladder needs")
    estimates = {name: survival_estimate(rounds.of_category(name)) for name in rounds.categories}
    estimates["all"] = survival_estimate(rounds)
    payload: dict[str, Any] = {
        "schema": "specmargin.profile-acceptance/1",
        "source": rounds.source,
        "speculator": rounds.speculator,
        "categories": {name: _estimate_payload(estimate) for name, estimate in estimates.items()},
        "histogram": accepted_histogram(rounds).tolist(),
        "calibration": [],
        "ladder": [],
    }
    if confident is not None:
        payload["calibrated_rounds"] = confident.count
        payload["joint"] = joint_table(confident, survival_of(confident, Raw())).tolist()
        with progress("calibrating", 1):
            payload["calibration"] = [_line_payload(line) for line in calibration_lines(confident, splits=splits)]
        contest = Contest.of(confident, seed=0) if ladder_prices else None
        for prices in ladder_prices:
            with progress(f"ladder, {prices}", len(CONCURRENCIES)) as advance:
                assert contest is not None
                table, profiled = price_table(prices)
                rows = list(ladder(contest, table, profiled=profiled, advance=lambda: advance(1)))
            payload["ladder"] += [asdict(row) | {"prices": str(prices)} for row in rows]
    return payload


def profile_file(rounds: Rounds, payload: dict[str, Any], name: str) -> AcceptanceFile:
    """The profile of a bank: curves by category, the calibrator, and survivals of sampled rounds for the look-ahead."""
    calibrator, sample = None, []
    confident = rounds.with_confidence()
    if confident is not None:
        model = Logistic.fit(tokens_of(confident), depths=confident.depth)
        calibrator = CalibratorFile(depths=model.depths, weights=[float(f"{w:.6g}") for w in model.weights])
        spread = np.linspace(0, confident.count - 1, min(confident.count, _SAMPLED)).astype(np.int64)
        sample = np.round(survival_of(confident, model)[spread], 4).tolist()
    return AcceptanceFile(
        schema="specmargin.acceptance/1",
        name=name,
        speculator=rounds.speculator,
        source=rounds.source,
        categories={key: CategoryFile(**value) for key, value in payload["categories"].items()},
        calibrator=calibrator,
        sample=sample,
    )


def _estimate_payload(estimate: SurvivalEstimate) -> dict[str, Any]:
    return {
        "rounds": estimate.rounds,
        "survival": estimate.survival.tolist(),
        "survival_stderr": estimate.standard_error.tolist(),
    }


def _line_payload(line: CalibrationLine) -> dict[str, Any]:
    payload: dict[str, Any] = {"depth": line.depth}
    for name in ("raw", "isotonic", "logistic", "calibrated"):
        quality: Quality = getattr(line, name)
        payload |= {
            f"ece_{name}": quality.calibration_error,
            f"log_loss_{name}": quality.log_loss,
            f"brier_{name}": quality.brier,
        }
    return payload


def ladder_rows(payload: dict[str, Any]) -> list[tuple[str, LadderRow]]:
    return [
        (
            PRICE_TITLES[LadderPrices(row["prices"])],
            LadderRow(**{key: value for key, value in row.items() if key != "prices"}),
        )
        for row in payload["ladder"]
    ]
