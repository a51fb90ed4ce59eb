"""SGLang's own loaders read the price table and the temperatures that are written for its DSpark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from specmargin.acceptance.bank import Rounds, read_bank
from specmargin.acceptance.temperatures import calibration_error, fit_temperatures
from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenarios_of
from specmargin.cli.main import run
from specmargin.decisions.additive import (
    AdditiveFit,
    fit_additive,
    nonnegative_least_squares,
    probes,
    ragged_round_seconds,
)
from specmargin.decisions.pricer import Pricer
from specmargin.errors import AcceptanceError, ScenarioError
from specmargin.formats.dspark import calibration_text, fit_text, price_table_text
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.step import FloatArray, Step
from specmargin.verbs.plan.price_table import check_price_table
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.scenarios import pricer
from tests.sglang_source import load

pytest.importorskip("msgspec", reason="SGLang's loaders need msgspec: pip install msgspec")
RELEASES = ("0.5.16", "0.5.23")
SPS, STS = (f"srt/speculative/dspark_components/dspark_{name}.py" for name in ("sps", "sts"))


def _fit(max_batch: int = 64) -> tuple[Pricer, AdditiveFit]:
    setting = pricer(drafter="dspark", context=2000)
    return setting, fit_additive(setting, max_batch=max_batch, depth=7)


# --- prices ---


@pytest.mark.parametrize("version", RELEASES)
def test_sglang_reads_the_prices(tmp_path: Path, version: str) -> None:
    setting, fit = _fit()
    file = tmp_path / "sps.json"
    file.write_text(price_table_text(fit.prices))
    sps = load(SPS, version=version)
    table = sps.load_sps_table_from_path(str(file))
    assert isinstance(table, sps.SpsAdditiveCostTable)
    assert not sps.is_uninitialized_sps_table(table)
    for batch in (1, 3, 10, 37, 64):
        for budget in (0, 1, 2 * batch, 7 * batch):
            theirs = table.step_time(num_reqs=batch, budget=budget)
            ours = fit.prices.seconds(np.asarray(float(batch)), np.asarray(float(batch + budget)))
            price = ragged_round_seconds(setting, np.asarray(float(batch)), np.asarray(float(batch + budget)), 7)
            assert theirs == pytest.approx(float(ours), rel=1e-12)
            assert theirs == pytest.approx(float(price), rel=max(fit.worst_error, 1e-9) + 0.01)


FAR = re.compile(r"([\d.]+)% from the plan's prices \(median\), at most ([\d.]+)% \(batch (\d+), (\d+) tokens\)")


def _plan(model: str, options: str, file: Path) -> None:
    """The whole way from the command line, with the routing and prices that a user has."""
    fixed = f"--gpu h200 --engine sglang --drafter dspark --sps-table {file}"
    run("plan", [model, *fixed.split(), *options.split()])


@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "deepseek-v3", "qwen3-8b", "deepseek-v4-flash"])
@pytest.mark.parametrize("prices", ["datasheet", "laws"])
def test_the_form_is_close_and_the_worst_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, prices: str
) -> None:
    file = tmp_path / "sps.json"
    _plan(model, f"--gpus {8 if model.startswith('deepseek') else 1} --prices {prices} --batch 1,8", file)
    assert load(SPS).load_sps_table_from_path(str(file)).bias_seconds > 0.0
    found = FAR.search(capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) <= 5.0
    assert float(found[1]) <= float(found[2])
    assert int(found[3]) <= int(found[4]) <= 8 * int(found[3])


def test_plan_says_how_to_start_in_30_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("sps.json")
    _plan("qwen3.6-35b-a3b", "--prices laws", file)
    shown = capsys.readouterr().out
    assert f"--speculative-dspark-sps-table-path {file}" in shown
    assert "SGLANG_RAGGED_VERIFY_MODE=compact" in shown
    lines = shown.splitlines()
    assert len(lines) <= 30
    assert all(len(line) <= 80 for line in lines if str(file) not in line)


def test_the_named_error_is_the_largest() -> None:
    setting, fit = _fit(max_batch=16)
    batch, tokens = (np.asarray(float(value)) for value in (fit.worst_batch, fit.worst_tokens))
    price = ragged_round_seconds(setting, batch, tokens, 7)
    assert float(abs(fit.prices.seconds(batch, tokens) / price - 1.0)) == pytest.approx(fit.worst_error)
    assert f"(batch {fit.worst_batch}, {fit.worst_tokens} tokens)" in fit_text(fit)


def test_a_full_verify_step_is_the_plans_own_round() -> None:
    setting, _ = _fit(max_batch=8)
    grid, batch = setting.grid([4.0], 7), np.asarray(4.0)
    assert float(ragged_round_seconds(setting, batch, 8 * batch, 7)) == pytest.approx(float(grid.round_seconds[0, 7]))


def test_a_step_that_verifies_no_draft_is_a_round_all_the_same() -> None:
    """It has drafted: with measured engine time it costs more than a plain step and its drafting."""
    request = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "engine": "sglang", "drafter": "dspark", "prices": "laws"}
    ((_, scenario),) = scenarios_of(read_request(PlanRequest, request))
    setting, batch = Pricer(scenario), np.asarray(64.0)
    none, hardly = (ragged_round_seconds(setting, batch, batch + extra, 7) for extra in (0.0, 1e-4))
    assert float(none) == pytest.approx(float(hardly), rel=1e-4)
    plain = setting.verify(Step.uniform(batch=64.0, depth=0.0, context=scenario.context)).total_seconds
    assert float(none) > 1.05 * float(plain + setting.draft_seconds(64.0, 7.0, scenario.context))


def test_ranks_with_their_own_sequences_are_priced_by_rank() -> None:
    """8 GPUs with data-parallel attention: a table by rank prices 8 sequences where it has 1."""
    setting = pricer("deepseek-v3", drafter="dspark", context=1000, layout=Layout(gpus=8, parallel=Parallel.DP_EP))
    one = ragged_round_seconds(setting, np.asarray(1.0), np.asarray(8.0), 7)
    assert float(one) == pytest.approx(float(setting.grid([8.0], 7).round_seconds[0, 7]))


@given(st.integers(1, 5000))
def test_probes_rise_from_one_to_the_largest(largest: int) -> None:
    made = probes(largest)
    assert (made[0], made[-1]) == (1, largest)
    assert (np.diff(made) > 0).all()
    assert (made[1:] <= np.maximum(made[:-1] * 1.25, made[:-1] + 1)).all()


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_least_squares_are_those_of_scipy(rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.normal(size=(rows, columns)), random.normal(size=rows)
    ours, (_, residual) = nonnegative_least_squares(matrix, target), nnls(matrix, target)
    assert (ours >= 0.0).all()
    assert float(np.linalg.norm(matrix @ ours - target)) == pytest.approx(float(residual), rel=1e-6, abs=1e-9)


def test_fitted_parts_never_fall() -> None:
    _, fit = _fit(max_batch=128)
    assert (np.diff(fit.prices.batch_seconds) >= 0.0).all()
    assert (np.diff(fit.prices.token_seconds) >= 0.0).all()


@pytest.mark.parametrize(
    "options", [{"engine": "vllm", "drafter": "dspark"}, {"engine": "sglang", "drafter": "mtp"}, {}]
)
def test_only_sglangs_dspark_takes_such_a_table(options: dict[str, str]) -> None:
    request = read_request(PlanRequest, {"model": "qwen3.6-35b-a3b", "gpu": "h200", **options})
    with pytest.raises(ScenarioError, match="add --engine sglang --drafter dspark"):
        check_price_table(request)


# --- temperatures ---


def _rounds(confidence: FloatArray, accepted: FloatArray) -> Rounds:
    count, depth = confidence.shape
    return Rounds(
        category_by_round=("all",) * count,
        prompt_by_round=np.arange(count) // 10,
        round_index=np.arange(count) % 10,
        drafted_by_round=np.full(count, depth),
        accepted_by_round=accepted.astype(np.int64),
        confidence_by_round_depth=confidence,
        speculator="dspark",
        source="a bank",
    )


def _overconfident(temperatures: list[float], count: int = 20_000) -> Rounds:
    """Tokens are accepted with σ(logit / T) where the drafter says σ(logit)."""
    random = np.random.default_rng(0)
    logits = random.normal(1.5, 1.5, size=(count, len(temperatures)))
    accepted = random.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits / np.array(temperatures)))
    return _rounds(1.0 / (1.0 + np.exp(-logits)), np.cumprod(accepted, axis=1).sum(axis=1))


def test_known_temperatures_are_found() -> None:
    fitted = fit_temperatures(_overconfident([1.0, 1.5, 2.5]))
    assert fitted.by_position == pytest.approx([1.0, 1.5, 2.5], rel=0.1)
    assert (fitted.error_after <= fitted.error_before + 0.005).all()
    assert fitted.error_after[2] < 0.5 * fitted.error_before[2]


@pytest.mark.parametrize("version", RELEASES)
def test_sglang_reads_the_temperatures(tmp_path: Path, version: str) -> None:
    bank, file = tmp_path / "bank.csv", tmp_path / "sts.json"
    rounds = _overconfident([1.2, 1.8], count=400)
    lines = [
        f"{accepted + 1},all,{a:.6f},{b:.6f}"
        for accepted, (a, b) in zip(rounds.accepted_by_round, rounds.confidence_by_round_depth, strict=True)
    ]
    bank.write_text("\n".join(["commits,category,a0,a1", *lines]) + "\n")
    run("profile", ["acceptance", str(bank), "--sts", str(file)])
    calibration = load(STS, version=version).load_sts_calibration_from_path(str(file))
    assert calibration.temperatures == pytest.approx(fit_temperatures(read_bank([bank])).by_position.tolist())
    assert (calibration.num_samples, len(calibration.ece_after)) == (400, 2)


def test_a_bank_without_confidences_has_no_temperatures() -> None:
    rounds = _rounds(np.full((4, 2), np.nan), np.array([0, 1, 2, 1]))
    with pytest.raises(AcceptanceError, match="a bank: has no confidences, which --sts needs"):
        fit_temperatures(rounds)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=50))
def test_the_calibration_error_is_a_distance(pairs: list[tuple[float, bool]]) -> None:
    probability, survived = (np.array(values) for values in zip(*pairs, strict=True))
    assert 0.0 <= calibration_error(probability, survived) <= 1.0
    assert calibration_error(survived.astype(np.float64), survived) == 0.0


def test_the_files_are_plain_json() -> None:
    _, fit = _fit(max_batch=4)
    assert set(json.loads(price_table_text(fit.prices))) == {
        "bias_seconds",
        "bs_probes",
        "alpha_seconds",
        "m_probes",
        "theta_seconds",
    }
    one = np.ones(1)
    text = calibration_text(one, source="a bank", rounds=3, error_before=one, error_after=one)
    assert set(json.loads(text)) == {"temperatures", "dataset", "num_samples", "ece_before", "ece_after"}
