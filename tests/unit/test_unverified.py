"""Unverified decoding: an upper bound on what speculation can gain, labelled as lossy wherever it is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specmargin.acceptance.early_stop import assumed_stop
from specmargin.cli.main import run
from specmargin.decisions.duel import duel
from specmargin.decisions.plan import make_plan
from specmargin.decisions.setting import Setting
from specmargin.decisions.unverified import unverified, unverified_seconds
from specmargin.errors import ScenarioError
from specmargin.words import UNVERIFIED
from tests.scenarios import pricer

BATCHES = (1, 8, 64)
DRAFTERS = ("mtp", "eagle", "dflash", "ssd", "model:qwen3-0.6b", "ngram", "free")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("acceptance", ["0.4", "0.9", "1"])
def test_no_plan_exceeds_the_bound(drafter: str, acceptance: str) -> None:
    plan = make_plan(pricer(drafter=drafter, acceptance=acceptance), BATCHES, Setting(max_depth=6))
    for row in unverified(plan).rows:
        bound = row.bound
        assert row.planned_speedup <= max(row.free_speedup, 1.0) * (1 + 1e-9)
        assert row.free_speedup <= bound.speedup * (1 + 1e-9) <= bound.depth + 1 + 1e-6
        assert 0.0 <= bound.verification_share < 1.0


def test_without_a_price_of_drafting_the_bound_is_one_token_per_position() -> None:
    plan = make_plan(pricer(drafter="free", acceptance="0.9"), BATCHES, Setting(max_depth=4))
    for row in unverified(plan).rows:
        assert row.bound.speedup == pytest.approx(row.bound.depth + 1)
        assert row.bound.unverified_seconds == pytest.approx(row.bound.plain_seconds)


def test_verification_is_the_verify_step_beyond_a_plain_one() -> None:
    priced = pricer(drafter="mtp", acceptance="0.9")
    (row,) = unverified(make_plan(priced, [8], Setting(max_depth=4))).rows
    grid = priced.grid([8], 4)
    depth = row.bound.depth
    assert depth == row.planned_depth > 0
    extra = grid.verify_seconds[0, depth] - grid.no_spec_seconds[0]
    assert row.bound.verification_seconds == pytest.approx(extra)
    assert row.bound.verification_share == pytest.approx(extra / grid.round_seconds[0, depth])


def test_overlapped_drafting_takes_the_longer_part_and_repeats_nothing() -> None:
    drafter = pricer(drafter="ssd").scenario.drafter
    assert unverified_seconds(drafter, np.array(3e-3), np.array(1e-3)) == pytest.approx(3e-3)
    assert unverified_seconds(drafter, np.array(1e-3), np.array(3e-3)) == pytest.approx(3e-3)


def test_a_plan_that_never_drafts_has_a_bound_at_depth_one() -> None:
    (row,) = unverified(make_plan(pricer(drafter="mtp", acceptance="0"), [1], Setting(max_depth=4))).rows
    assert (row.planned_depth, row.bound.depth) == (0, 1)
    with pytest.raises(ScenarioError, match="--depth 1 or more"):
        unverified(make_plan(pricer(), [1], Setting(max_depth=0)))


def test_drafts_that_stop_early_commit_what_they_drafted() -> None:
    priced = pricer(drafter="free", acceptance="0.8")
    stop = assumed_stop(priced.scenario.survival, 0.5)
    (row,) = unverified(make_plan(priced.with_survival(priced.scenario.survival, stop), [1], Setting(max_depth=4))).rows
    assert row.bound.speedup == pytest.approx(1 + stop.mean_drafted(row.bound.depth))
    assert row.planned_speedup <= row.free_speedup <= row.bound.speedup < row.bound.depth + 1


def test_a_duel_shows_the_bound_but_never_lets_it_win() -> None:
    result = duel(pricer(drafter="free"), batch=8, alpha=1.0)
    assert result.unverified.goodput_tokens_per_second > result.depth.goodput_tokens_per_second
    assert result.unverified.goodput_tokens_per_second > result.width.goodput_tokens_per_second
    assert result.winner in ("width", "depth")


_ASKED = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws"]


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("plan", ["--batch", "1,64", "--compare", "unverified"]),
        ("price", ["--batch", "8", "--depth", "3"]),
        ("duel", ["--batch", "8", "--alpha", "0.8"]),
    ],
)
def test_every_verb_labels_the_bound(verb: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, [*_ASKED, *options]) == 0
    assert UNVERIFIED in " ".join(capsys.readouterr().out.split())
    assert run(verb, [*_ASKED, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unverified"]["label"] == UNVERIFIED


def test_price_without_drafts_has_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("price", [*_ASKED, "--batch", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unverified"] is None


def test_price_and_plan_state_the_same_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", [*_ASKED, "--batch", "8", "--compare", "unverified", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["unverified"]["rows"]
    assert run("price", [*_ASKED, "--batch", "8", "--depth", str(row["depth"]), "--json"]) == 0
    price = json.loads(capsys.readouterr().out)["unverified"]
    for name in ("speedup", "round_seconds", "verification_seconds", "verification_share"):
        assert row[name] == pytest.approx(price[name])
