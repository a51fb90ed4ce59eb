"""`specmargin profile acceptance`: how it works and what it shows. The command itself is in `cli/profile.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

import numpy as np
from rich.console import Console

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
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import AcceptanceError
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.ladder import CONCURRENCIES, OURS, Contest, LadderRow, ladder
from specmargin.policies.tables import scenario_table, study_table
from specmargin.prices.roofline import RooflineForm
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
            options = o.ScenarioOptions(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter="mtp")
        case Clock.POST:
            options = o.ScenarioOptions(
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
    _, scenario = options.one()
    if clock is Clock.POST:
        scenario = replace(scenario, scope=Scope(sampling=False, state_writes=False, draft_catch_up=False))
    return scenario_table(scenario.with_graphs_for(None), max_batch=max(CONCURRENCIES), max_depth=8)


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


def run(rounds: Rounds, *, clocks: Sequence[Clock], splits: int) -> dict[str, Any]:
    """Everything that is shown, in the shape of the JSON."""
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
        with render.progress("calibrating", 1):
            payload["calibration"] = [_line(line) for line in calibration_lines(known, splits=splits)]
        contest = Contest.of(known, seed=0) if clocks else None
        for clock in clocks:
            with render.progress(f"ladder, {clock}", len(CONCURRENCIES)) as advance:
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


# --- tables ---


def show(out: Console, payload: dict[str, Any]) -> None:
    whole = payload["categories"]["all"]
    accepted = sum(whole["survival"])
    out.print(
        f"{whole['rounds']:,} rounds of {payload['speculator'] or payload['source']}: {accepted:.2f} draft tokens "
        f"accepted on average, the first with probability {whole['survival'][0]:.3f}.",
        style="bold",
    )
    out.print()
    _show_survival(out, payload)
    if payload["calibration"]:
        left_out = whole["rounds"] - payload["calibrated_rounds"]
        if left_out:
            out.print(f"(requests without all their confidences, {left_out:,} rounds, left out)", style="dim")
        _show_calibration(out, payload["calibration"])
    for clock in dict.fromkeys(row["prices"] for row in payload["ladder"]):
        _show_ladder(out, Clock(clock), [row for row in payload["ladder"] if row["prices"] == clock])


def _show_survival(out: Console, payload: dict[str, Any]) -> None:
    depth = len(payload["categories"]["all"]["survival"])
    columns = [("category", "left"), ("rounds", "right"), *((f"S{d}", "right") for d in range(1, depth + 1))]
    shown = render.table("survival (product-limit; ± standard error over requests for the first)", columns)
    for name, found in payload["categories"].items():
        first = f"{found['survival'][0]:.3f} ± {found['survival_stderr'][0]:.3f}"
        rest = [f"{value:.3f}" for value in found["survival"][1:]]
        shown.add_row(name, f"{found['rounds']:,}", first, *rest)
    out.print(shown)
    out.print()


def _show_calibration(out: Console, lines: Sequence[dict[str, Any]]) -> None:
    names = ("raw", "isotonic", "logistic", "calibrated")
    columns = [("depth", "right")]
    columns += [(f"{name}", "right") for name in names]
    shown = render.table("expected calibration error (log loss), requests held out", columns)
    for line in lines:
        cells = [f"{line[f'ece_{name}']:.4f} ({line[f'log_loss_{name}']:.4f})" for name in names]
        shown.add_row(str(line["depth"]), *cells)
    out.print(shown)
    out.print()


def _show_ladder(out: Console, clock: Clock, rows: Sequence[dict[str, Any]]) -> None:
    concurrencies = list(dict.fromkeys(row["concurrency"] for row in rows))
    shown = render.table(
        f"goodput over the best fixed depth, by concurrency: {CLOCKS[clock]}",
        [("policy", "left"), *((str(number), "right") for number in concurrencies)],
    )
    for policy in dict.fromkeys(row["policy"] for row in rows):
        gains = [f"{row['gain']:+.1%}" for row in rows if row["policy"] == policy]
        shown.add_row(policy, *gains, style="bold" if policy == OURS else None)
    out.print(shown)
    out.print()


def ladder_rows(payload: dict[str, Any]) -> list[tuple[str, LadderRow]]:
    return [
        (CLOCKS[Clock(row["prices"])], LadderRow(**{key: value for key, value in row.items() if key != "prices"}))
        for row in payload["ladder"]
    ]
