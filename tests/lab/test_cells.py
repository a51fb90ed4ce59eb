"""`simulate` against recorded cells of a server: what is measured, compared and refused. docs/results/served.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.gpu.served_jobs import HOST_EVERY, IDLE_SECONDS
from lab.validation.cells import report
from lab.validation.cells.__main__ import corrected_prices
from lab.validation.cells.calibrated import LOOK_SECONDS, PROMPT_SECONDS, CorrectedPricer, IdlePrompt, prompts_of
from lab.validation.cells.judged import Judged, judge, median_errors, rankings
from lab.validation.cells.observed import FIGURES, Cell, Played, Requests, Steps, depth_shares, figures, read_cells
from lab.validation.cells.predicted import Prediction, Prices, calibration, contestant, serving

from lab import DATA
from specmargin.errors import InputError
from specmargin.prices.launches import HOST_SEQUENCE, HOST_STEP, Graph, launches
from specmargin.simulator.results import Slo
from specmargin.simulator.run import tables_of

CPU = DATA / "measurements" / "served-cpu"
TARGET = Slo(ttft_seconds=0.5, tpot_seconds=0.03)
NONE = Slo()


def _played() -> Played:
    """Sent at 1, 3, 5 and 9 s; the window is 2 to 10 s. The last request gets no token before its end."""
    return Played(
        requests=Requests(
            sent=np.array([1.0, 3.0, 5.0, 9.0]),
            first=np.array([1.1, 3.2, 6.0, np.nan]),
            last=np.array([2.1, 3.4, 7.0, np.nan]),
            tokens=np.array([11, 11, 11, 11]),
        ),
        steps=Steps(
            ended=np.array([1.5, 2.5, 4.0, 9.5]),
            seconds=np.array([0.5, 1.0, 1.0, 2.0]),
            depth=np.array([0, 3, 3, 1]),
            decoding=np.array([1, 2, 4, 1]),
            waiting=np.array([9, 0, 0, 2]),
        ),
        tokens=80.0,
    )


def test_figures_are_of_the_window() -> None:
    found = figures(_played(), (2.0, 10.0), NONE)
    assert found["tok/s"] == 10.0
    assert found["TTFT p50"] == pytest.approx(600.0)  # of 0.2 s and 1.0 s: the request before the window is left out
    assert found["TPOT p50"] == pytest.approx(100.0)  # of 0.1, 0.02 and 0.1 s: it completes in it
    assert found["decoding"] == pytest.approx((2 + 4 + 2) / 4.0)
    assert found["waiting"] == pytest.approx(1.0)
    assert found["goodput"] == pytest.approx(33 / 8.0)
    assert depth_shares(_played(), (2.0, 10.0)) == {1: 0.5, 3: 0.5}


def test_goodput_counts_requests_within_both_targets() -> None:
    assert figures(_played(), (2.0, 10.0), TARGET)["goodput"] == pytest.approx(11 / 8.0)


def _judged(contestant: str, measured: float, predicted: float) -> Judged:
    played = _played()
    given = {"cell": f"a-{contestant}", "trace": "a", "contestant": contestant}
    return Judged(
        cell=Cell(folder=Path(), given=given, played=played),
        measured=dict.fromkeys(FIGURES, measured),
        shares={3: 1.0},
        predicted={"bundled": Prediction(figures=dict.fromkeys(FIGURES, predicted), depth_shares={3: 0.75, 2: 0.25})},
    )


def test_an_order_counts_where_contestants_differ_by_more_than_three_percent() -> None:
    cells = [_judged("none", 10.0, 12.0), _judged("table", 20.0, 11.0), _judged("fixed-3", 20.2, 30.0)]
    (speed, _) = rankings(cells, "bundled")
    assert (speed.pairs, speed.right) == (2, 1)
    errors = median_errors(cells, "bundled")
    assert errors["tok/s"] == pytest.approx(0.45)
    assert errors["depths"] == pytest.approx(0.25)


def test_the_page_gets_the_tables_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "served.md"
    page.write_text("before\n<!-- begin: served-cpu -->\nold\n<!-- end: served-cpu -->\nafter\n")
    report.write_page([_judged("none", 10.0, 12.0)], TARGET, "served-cpu", page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| a-none | 10.0 +20% |" in text and "TTFT ≤ 500 ms and TPOT ≤ 30 ms" in text
    with pytest.raises(InputError, match="no place for the tables"):
        report.write_page([_judged("none", 10.0, 12.0)], TARGET, "served-h200", page)


def test_what_is_no_cell_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no cells"):
        read_cells(tmp_path)
    path = tmp_path / "a.json.gz"
    path.write_bytes(b"not compressed")
    with pytest.raises(InputError, match=r"a\.json\.gz: is not a recorded cell"):
        read_cells(tmp_path)
    path.write_bytes(gzip.compress(b'{"cell": "a"}'))
    with pytest.raises(InputError, match="has no 'model'"):
        read_cells(tmp_path)


# --- those of a CPU ---


def _recorded() -> list[Cell]:
    return read_cells(CPU)


def test_every_trace_was_played_without_speculation_with_the_table_and_at_a_fixed_depth() -> None:
    by_trace: dict[str, set[str]] = {}
    for cell in _recorded():
        by_trace.setdefault(cell.given["trace"], set()).add(cell.given["contestant"])
        assert cell.given["requests"]["failures"] == []
    assert len(by_trace) == 3 and set(map(frozenset, by_trace.values())) == {frozenset({"none", "table", "fixed-3"})}


def test_a_cell_is_simulated_as_it_was_served() -> None:
    cell = next(cell for cell in _recorded() if cell.given["contestant"] == "table")
    served, choice = serving(cell, Prices(name="own")), contestant(cell)
    requests: dict[str, Any] = cell.given["requests"]
    assert served.workload.arrivals.requests == len(requests["at_seconds"])
    assert served.engine.max_num_seqs == cell.given["limits"]["max_num_seqs"]
    assert served.scenario.prices.name == "measured"
    assert choice is not None and choice.held_depth == len(cell.given["model"]["rates"])
    unknown = Cell(folder=cell.folder, given={**cell.given, "contestant": "ladder"}, played=cell.played)
    with pytest.raises(InputError, match="no contestant is named 'ladder'"):
        contestant(unknown)


def test_light_load_on_a_cpu_is_predicted_in_tokens_and_order() -> None:
    """The machine is shared and noisy: docs/results/served.md has the latencies."""
    cells = [judge(cell, [Prices(name="own")], NONE) for cell in _recorded() if "-30-" in cell.name]
    assert all(abs(cell.error("own", "tok/s")) < 0.05 for cell in cells)


def test_the_page_has_the_cells_that_are_recorded() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    for path in CPU.glob("*.json.gz"):
        assert f"| {json.loads(gzip.decompress(path.read_bytes()))['cell']} |" in text


# --- on an H200 ---

H200, PLAIN, UNSEEN = (DATA / "measurements" / f"served-h200{lease}" for lease in ("-second", "", "-fourth"))
CORRECTED, ALL_LOOKS = corrected_prices(H200 / "calibration")


def test_steps_outside_of_the_cells_show_host_and_kernels() -> None:
    """Qwen3-30B-A3B without speculation: kernels as priced; the host took 62 to 111 ms to launch a prompt."""
    cell = next(cell for cell in read_cells(H200) if cell.name == "qwen-code-85-none")
    found = calibration(cell, CORRECTED)
    assert 62e-3 / 1045 < found.launch_seconds < 111e-3 / 1045
    assert found.ratio == pytest.approx(np.ones_like(found.ratio), abs=0.08)
    assert serving(cell, CORRECTED).scenario.engine_time.kernel_launch_seconds == found.launch_seconds


def test_prompts_around_a_cell_show_how_fast_its_host_launches_kernels() -> None:
    """Ten sequences decode and a prompt joins them: the next step begins after so many launches of 50, then 70 µs."""
    cell = next(cell for cell in read_cells(H200) if cell.name == "glm-code-85-none")
    counts = serving(cell, Prices(name="own")).scenario.layer_counts
    launched = launches(Graph.COMPILED, counts, mixed=True) + HOST_STEP + HOST_SEQUENCE * 11

    def host(microseconds: float) -> dict[str, Any]:
        gaps = [0, 8_000, round(microseconds * launched), 8_000]  # of a decode step, the prompt's, a decode step
        columns = {"begun_us": gaps, "took_us": [8_000] * 4, "kv_usage": [0.1] * 4, "verified": [0] * 4}
        columns |= {"prompt_tokens": [0, 640, 0, 0], "sequences": [10, 11, 10, 10], "decoding": [10] * 4}
        return {"cache": cell.given["cache"], "steps": columns}

    looked = Cell(folder=cell.folder, given={**cell.given, "host": [host(50.0), host(70.0)]}, played=cell.played)
    assert calibration(looked, CORRECTED).launch_seconds == pytest.approx(60e-6, rel=1e-3)
    assert calibration(looked, CORRECTED).launch_seconds < calibration(cell, CORRECTED).launch_seconds


def test_hosts_keep_the_pace_that_was_recorded() -> None:
    """222 prompts in 14 looks, each 0.15 s after the one before: a run that begins in the middle meets them later."""
    cell = next(cell for cell in read_cells(PLAIN) if cell.name == "glm-chat-30-none")
    served, found = serving(cell, ALL_LOOKS), calibration(cell, ALL_LOOKS)
    assert isinstance(served.pricer, CorrectedPricer) and found.launches.size == 222
    whole, half = (served.pricer.host(tables_of(served), start) for start in (0.0, 0.5))
    assert whole.launch_slowdown.mean() == pytest.approx(1.0) and whole.slowdown_seconds == LOOK_SECONDS == HOST_EVERY
    assert PROMPT_SECONDS == IDLE_SECONDS
    assert (
        np.array_equal(half.launch_slowdown, np.roll(whole.launch_slowdown, -111)) and whole.launch_slowdown.std() > 0.1
    )


def test_prompts_of_the_calibrations_are_multiples_of_four() -> None:
    """So what others take more in FP8 blocks is from the cells of served-h200, and nothing in bf16."""
    cells = {cell.name: cell for cell in read_cells(H200)}
    assert calibration(cells["glm-code-85-none"], CORRECTED).prompts.unaligned_seconds == pytest.approx(8.4e-6)
    assert calibration(cells["qwen-code-85-none"], CORRECTED).prompts.unaligned_seconds == 0.0


@pytest.mark.parametrize("blocks", [True, False])
def test_prompts_that_are_no_multiple_of_four_show_what_they_take_more_in_fp8_blocks(blocks: bool) -> None:
    """Kernels take 1.2 times their price of 20 µs per token, and 5 µs more per token where they are not aligned."""
    aligned = [IdlePrompt(tokens, 1.2 * 20e-6 * tokens, 20e-6 * tokens) for tokens in (2400, 4000, 8000)]
    others = [IdlePrompt(tokens, (1.2 * 20e-6 + 5e-6) * tokens, 20e-6 * tokens) for tokens in (4001, 6001)]
    found = prompts_of([*aligned, *others], blocks=blocks)
    assert found.unaligned_seconds == pytest.approx(5e-6 if blocks else 0.0, rel=1e-6)
    assert found.factor(np.array([2400.0, 8000.0])) == pytest.approx(1.2)
    assert found.tokens.size == (3 if blocks else 5)


def test_looks_at_a_host_are_of_its_cells_or_of_all() -> None:
    """The look after a cell is the one before the next of its server, so 10 cells of two commands have 14."""
    cells = read_cells(PLAIN)
    around = {cell.name: calibration(cell, CORRECTED).launch_seconds for cell in cells}
    everywhere = {calibration(cell, ALL_LOOKS).launch_seconds for cell in cells}
    assert len(everywhere) == 1 and 50e-6 < min(around.values()) < next(iter(everywhere)) < max(around.values()) < 95e-6


def test_cells_of_an_h200_are_predicted_as_the_page_says() -> None:
    """Held out: traces were drawn, and the simulator was finished, without sight of a cell."""
    cells = [judge(cell, [CORRECTED], TARGET) for cell in read_cells(UNSEEN)]
    assert len(cells) == 24
    text = report.PAGE.read_text(encoding="utf-8")
    for headings in report.TABLES:
        *_, medians = report.rows(cells, CORRECTED.name, headings)
        assert f"| {' | '.join(medians)} |" in text
    errors = median_errors(cells, CORRECTED.name)
    assert errors["tok/s"] <= 0.05 and errors["TPOT p50"] <= 0.07
    assert max(errors["TTFT p50"], errors["TPOT p99"]) <= 0.12
    assert all(ranking.right >= 0.9 * ranking.pairs for ranking in rankings(cells, CORRECTED.name))


def test_cells_of_an_h200_played_the_traces_that_were_drawn_before() -> None:
    traces = json.loads((UNSEEN / "jobs.json").read_text())["traces"]
    for cell in read_cells(UNSEEN):
        trace, requests = traces[cell.given["trace"]], cell.given["requests"]
        assert not requests["failures"] and cell.given["rate"] == trace["rate"]
        for name in ("at_seconds", "prompt_tokens", "output_tokens"):
            assert requests[name] == trace[name]
