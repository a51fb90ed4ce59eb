"""`simulate --find`: the largest load within targets, on the same requests, with an interval and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specmargin.answers.request_schema import read_request
from specmargin.verbs.plan.commands import capacity_command
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.command_line import ended, run

MODEL = ("llama-3.1-8b", "--gpu", "h200", "--prices", "laws", "--isl", "256", "--osl", "32", "--seeds", "2")


def found(*arguments: str) -> Any:
    return json.loads(run("simulate", *MODEL, *arguments, "--json").out)


@pytest.fixture(scope="module")
def rates() -> Any:
    return found("--find", "qps", "--tpot-slo", "12", "--ttft-slo", "200", "--policy", "fixed:2,none")


def test_the_rate_meets_the_targets_and_a_larger_one_does_not(rates: Any) -> None:
    for row in rates["policies"]:
        assert row["ttft_at_percentile_seconds"] <= 0.2 and row["tpot_at_percentile_seconds"] <= 0.012
        assert row["load_low"] <= row["load"] <= row["load_high"]
        assert row["load"] in row["load_by_seed"] and len(row["load_by_seed"]) == 2
        for seed, load in enumerate(row["load_by_seed"]):
            above = [each["load"] for each in row["tried"] if each["seed"] == seed and each["missed"]]
            assert load < min(above) <= 1.011 * load
        load, seed = row["load"], row["load_by_seed"].index(row["load"])
        options = ("--tpot-slo", "12", "--ttft-slo", "200", "--policy", row["policy"], "--seed", str(seed))
        again = json.loads(run("simulate", *MODEL, "--qps", str(load), *options, "--json").out)
        assert again["tpot_seconds"]["p99"] < 1.1 * 0.012


def test_policies_and_rates_serve_the_same_requests(rates: Any) -> None:
    """Common random numbers: arrivals scaled in time, and the same lengths."""
    fixed, none = rates["policies"]
    assert fixed["requests"] == none["requests"] and fixed["committed"] == none["committed"]
    assert fixed["span_seconds"] * fixed["load"] == pytest.approx(none["span_seconds"] * none["load"], rel=0.02)


def test_a_looser_percentile_allows_more(rates: Any) -> None:
    options = ("--find", "qps", "--tpot-slo", "12", "--ttft-slo", "200", "--policy", "none")
    median = found(*options, "--percentile", "50")["policies"][0]
    assert median["percentile"] == 50.0
    assert median["load"] > rates["policies"][1]["load"]


def test_users_are_whole() -> None:
    row = found("--find", "concurrency", "--tpot-slo", "12", "--policy", "none")["policies"][0]
    assert row["load"] == int(row["load"]) > 1
    assert row["limited_by"] == ["TPOT"]


def test_a_target_that_every_rate_meets_is_limited_by_the_engine() -> None:
    text = run("simulate", *MODEL, "--find", "qps", "--tpot-slo", "100000", "--policy", "none").out
    assert "more is not served" in text
    assert max(map(len, text.partition("sources")[0].splitlines())) <= 80


def test_tables_and_figures(tmp_path: Path) -> None:
    table, chart = tmp_path / "capacity.csv", tmp_path / "capacity.svg"
    options = ("--find", "concurrency", "--tpot-slo", "12", "--policy", "none", "-o", str(table), "--plot", str(chart))
    run("simulate", *MODEL, *options)
    assert "load_low" in table.read_text().splitlines()[0] and chart.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--find", "qps"), "--find needs a target in ms: --tpot-slo, --ttft-slo or both"),
        (("--find", "qps", "--tpot-slo", "9", "--qps", "3"), "--find chooses the load: leave out --qps"),
        (("--find", "qps", "--tpot-slo", "9", "--requests", "3"), "and --requests"),
        (("--find", "rate", "--tpot-slo", "9"), "qps"),
        (("--find", "qps", "--tpot-slo", "0.01", "--policy", "none"), "at the lowest load TPOT is "),
    ],
)
def test_what_cannot_be_found_is_refused_in_one_sentence(options: tuple[str, ...], message: str) -> None:
    said = ended("simulate", *MODEL, *options)
    assert said.code != 0 and message in said.err and said.err.count("\n") == 1


def test_the_command_of_a_plan_runs() -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h200", "prices": "laws", "qps": 4.0, "isl": 256, "osl": 32, "tpot_slo": 9}
    command = capacity_command(drafter_plans(read_request(PlanRequest, asked))[0])
    assert command.endswith("--isl 256 --osl 32 --find qps --tpot-slo 9")
    assert "TPOT p99" in run(*command.split()[1:], "--policy", "none", "--seeds", "1").out
