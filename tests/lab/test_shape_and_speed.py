"""Size and speed of the package against another commit: what is counted, and what is read from the benchmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.checkouts import checkout
from lab.shape import entered_files, functions_of
from lab.speed.__main__ import Contest, compare, decision_seconds, price_seconds, token_seconds
from lab.speed.prices import main as time_prices
from lab.speed.turns import Side, median_interval, ratio_of
from lab.speed.weeks import FULL, REQUESTS, SMALL, Week, weekly

from specmargin.errors import InputError
from specmargin.simulator.workload import Poisson
from tests.conftest import ROOT


def test_a_plan_enters_prices_and_not_the_simulator() -> None:
    entered = entered_files(ROOT)
    assert {"step.py", "decisions/pricer.py", "prices/work.py"} <= set(entered)
    assert not any(name.startswith(("simulator/", "live/", "measure/")) for name in entered)


def test_lines_of_a_function_are_those_from_def_to_end() -> None:
    code = "@decorated\ndef one():\n    x = 1\n    return x\n\n\nclass Two:\n    async def three(self): ...\n"
    lines = {function.name: function.lines for function in functions_of(Path("file.py"), code)}
    assert lines == {"file.py: one": 3, "file.py: three": 1}


def test_an_unknown_commit_is_one_sentence() -> None:
    with pytest.raises(InputError, match="'no-such-commit' is not a commit"):
        checkout("no-such-commit")


def test_prices_are_read_from_their_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    time_prices()
    seconds = price_seconds(capsys.readouterr().out)
    assert 0.0 < seconds["prices, per step of a grid"] < seconds["prices, one step per call"] < 1.0


def test_decisions_and_tokens_are_read_from_their_benchmarks() -> None:
    text = (
        "1 sequences × 8: median 3.1 µs, 99th percentile 5.0 µs, 0.10% of a 5 ms step; plain NumPy 400 µs (129 times)\n"
        "256 sequences × 8: median 40.0 µs, 99th percentile 55 µs, 1% of a 5 ms step; plain NumPy 900 µs (23 ×)\n"
    )
    expected = {"decision for 1 sequences": 3.1e-6, "decision for 256 sequences": 40e-6}
    assert decision_seconds(text) == pytest.approx(expected)
    text = (
        "specmargin 40,000 requests: 9,961,172 tokens in 0.20 s, 50.0 M/s\n"
        "  fixed:2    0.25 s, 40.0 M/s\n"
        "  controller 99.00 s, 0.0 M/s\n"  # it had to compile
    )
    expected = {"simulated token, no speculation": 2e-8, "simulated token, fixed:2": 2.5e-8}
    assert token_seconds(text) == pytest.approx(expected)


def test_both_sides_take_turns_and_the_first_is_not_counted() -> None:
    order: list[Path] = []

    def timed(folder: Path) -> dict[str, float]:
        order.append(folder)
        return {"it": 100.0 if len(order) <= 2 else 2.0 if folder == ROOT else 4.0}

    assert compare(Contest(name="test", time=timed), Path("base"), 3) == {"it": (4.0, 2.0)}
    assert order == [Path("base"), ROOT] * 4


def test_ratios_are_of_neighbouring_runs_and_their_interval_is_by_ranks() -> None:
    """By counting: of 15 values the 4th and 12th hold the median in 96.5% of samples, of 6 the outermost in 96.9%."""
    assert median_interval([float(value) for value in range(15)]) == (3.0, 11.0)
    assert median_interval([5.0, 0.0, 3.0, 1.0, 4.0, 2.0]) == (0.0, 5.0)
    assert median_interval([2.0, 1.0]) == (1.0, 2.0)
    busy = [1.0, 5.0, 2.0, 1.0, 3.0, 1.0]  # other work on the machine, which both sides of a turn meet
    one = ratio_of(busy, [1.2 * seconds for seconds in busy])
    assert (one.median, one.low, one.high) == pytest.approx((1.2, 1.2, 1.2))
    assert (one.base_seconds, one.seconds) == pytest.approx((1.5, 1.8))


def test_a_simulator_that_ends_is_one_sentence(tmp_path: Path) -> None:
    with Side(tmp_path) as side, pytest.raises(InputError, match="the simulator ended under the policy none"):
        side.seconds("none")


@pytest.mark.parametrize("load", [FULL, SMALL])
def test_a_week_has_three_million_requests(load: str) -> None:
    """At the rate of the weeks, which is the same for every load."""
    arrivals = weekly(load, 500).workload.arrivals
    assert isinstance(arrivals, Poisson)
    assert (arrivals.requests, arrivals.requests_per_second) == (500, 5.0)
    assert REQUESTS / arrivals.requests_per_second == pytest.approx(7 * 24 * 3600, rel=0.01)


def test_a_week_is_in_time_only_within_a_minute_and_4_gib() -> None:
    week = Week(load=FULL, policy="none", seconds=59.0, peak_bytes=4 * 2**30, steps=1)
    assert week.in_time
    assert not replace(week, seconds=61.0).in_time
    assert not replace(week, peak_bytes=4 * 2**30 + 1).in_time
