"""`validate speedups`: the file, its errors, and the rules that predictions are compared with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.accuracy import price_errors
from specmargin.cli.main import run
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.errors import InputError, MissingExtraError
from specmargin.simulator.service import ServiceLoad, service
from specmargin.validation.calls import count_calls, grows_by, judge_rows
from specmargin.validation.points_schema import Point, read_points
from specmargin.validation.speedup_ranges import Ranges, general_errors, left_out_ranges, own_ranges
from specmargin.validation.speedups import (
    PredictedPoint,
    SpeedupReport,
    predict,
    source_median,
    speedup_lines,
)
from specmargin.validation.whole_requests import Loop, load_of
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.validate_speedups import SpeedupsRequest, validate_speedups

HEADER = "id,source,model,gpu,engine,drafter,depth,batch,accept_length,speedup,isl,osl,prefill_inside\n"


def file(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "points.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


@cache
def priced_by_laws() -> Pricer:
    return Pricer(
        scenario_of(read_request(PlanRequest, {"model": "qwen3.6-35b-a3b", "gpu": "b200", "prices": "laws"}))[1]
    )


def predicted(identity: str, source: str, *, length: float, measured: float, speedup: float) -> PredictedPoint:
    point = Point(
        id=identity,
        source=source,
        model="m",
        gpu="g",
        engine="vllm",
        drafter="mtp",
        depth=3,
        batch=1,
        accept_length=length,
        speedup=measured,
    )
    return PredictedPoint(
        point=point,
        pricer=priced_by_laws(),
        no_spec_seconds=1.0,
        round_speedup=speedup,
        datasheet_speedup=speedup,
        loop=None,
    )


def test_a_row_is_predicted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(
        tmp_path, "a,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4,1.5,,,", "b,own,no-such-model,h200,vllm,mtp,3,8,2,1,,,"
    )
    assert run("validate", ["speedups", str(path), "--json", "--allow-skipped"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["rows"]
    assert 0.5 < row["predicted"] < 2.4
    assert "no-such-model" in answer["not_predicted"]["b"]
    assert run("validate", ["speedups", str(path), "--allow-skipped"]) == 0
    assert "not predicted: b" in capsys.readouterr().out


def test_skipped_rows_are_an_error_that_names_each_reason_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "a,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4,1.5,,,"
    lost = [f"b{i},own,no-such-model,h200,vllm,mtp,3,8,2,1,,," for i in range(15)]
    empty = "c,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,,1.5,,,"
    path = file(tmp_path, good, *lost, empty)
    with pytest.raises(InputError) as raised:
        run("validate", ["speedups", str(path)])
    said = str(raised.value)
    assert "16 of 17 rows cannot be predicted (--allow-skipped reports the others)" in said
    assert said.count("no-such-model") == 1
    assert "b0, b1" in said and "b11 and 3 more: " in said
    assert "c: accept_length is empty" in said
    assert run("validate", ["speedups", str(path), "--allow-skipped", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in answer["rows"]] == ["a"]
    assert "accept_length" in answer["not_predicted"]["c"]


def test_a_file_without_any_row_to_predict_is_an_error_even_if_skipping_is_allowed(tmp_path: Path) -> None:
    path = file(tmp_path, "a,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,,1.5,,,")
    with pytest.raises(InputError, match="1 of 1 rows cannot be predicted: a: accept_length is empty"):
        run("validate", ["speedups", str(path), "--allow-skipped"])


def test_a_missing_extra_is_not_the_fault_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise MissingExtraError("numba is not installed")

    monkeypatch.setattr("specmargin.validation.speedups._predict_point", missing)
    points = read_points(file(tmp_path, "a,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4,1.5,,,"))
    with pytest.raises(MissingExtraError):
        predict(points, tmp_path)


def test_prefill_draws_the_speed_up_towards_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "own,qwen3.6-35b-a3b,h200,vllm,mtp,3,64,2.4,1.5"
    path = file(tmp_path, f"decode,{row},,,", f"short,{row},1024,4096,1", f"long,{row},8192,64,1")
    assert run("validate", ["speedups", str(path), "--json"]) == 0
    by_id = {row["id"]: row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert by_id["decode"] > by_id["short"] > by_id["long"]
    assert by_id["long"] == pytest.approx(1.0, abs=0.05)  # the drafter reads prompts too: it may lose


def test_whole_requests_are_the_closed_loop_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Throughput and time between tokens, from the service that `plan --concurrency` simulates."""
    header = HEADER.replace("prefill_inside", "prefill_inside,unit")
    row = "own,llama-3.1-8b,h200,vllm,eagle,2,16,2.0,1.5,2048,128"
    path = file(tmp_path, f"throughput,{row},1,tok/s", f"tokens,{row},0,TPOT ms", header=header)
    assert run("validate", ["speedups", str(path), "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    asked = {"model": "llama-3.1-8b", "gpu": "h200", "drafter": "eagle", "acceptance": "length:2.0@2"}
    priced = Pricer(scenario_of(read_request(PlanRequest, asked))[1])
    load = ServiceLoad(
        prompt_tokens=2048, output_tokens=128, users=16, max_num_batched_tokens=8192, requests=1000
    )  # as a load generator sends, ramp and drain included
    answer = service(priced, load, Schedule.fixed(2, last=16))
    assert rows["throughput"]["closed_loop"]["speedup"] == pytest.approx(answer.speedup)
    assert rows["throughput"]["predicted"] == rows["throughput"]["closed_loop"]["speedup"]  # not shown beside it
    assert rows["throughput"]["round"] != pytest.approx(answer.speedup, rel=1e-3)
    assert rows["throughput"]["closed_loop"]["prefill_share"] == pytest.approx(answer.plain.prefill_share)
    plain, speculating = answer.plain.tpot_seconds, answer.speculating.tpot_seconds
    assert plain is not None and speculating is not None
    assert rows["tokens"]["closed_loop"]["speedup"] == pytest.approx(plain / speculating)


@pytest.mark.parametrize(
    ("stated", "isl", "osl", "expected"),
    [
        ("Qwen3-8B, MT-Bench", None, None, (51, 512, False)),
        ("Hy3 on 8x H20, GSM8K", None, 1024, (59, 1024, False)),
        ("own traffic", None, None, None),
        ("own traffic", 300, None, (300, 512, False)),
        ("MT-Bench", 2048, 64, (2048, 64, True)),
    ],
)
def test_lengths_are_stated_or_those_of_the_dataset(
    stated: str, isl: int | None, osl: int | None, expected: tuple[int, int, bool] | None
) -> None:
    point = predicted("a", "one", length=2.0, measured=2.0, speedup=2.0).point
    load = load_of(point.model_copy(update={"stated_as": stated, "isl": isl, "osl": osl}), 8192)
    found = None if load is None else (load.prompt_tokens, load.output_tokens, load.requests is not None)
    assert found == expected
    assert load is None or load.max_num_batched_tokens == 8192
    told = load_of(point.model_copy(update={"isl": 2048, "max_num_batched_tokens": 32_768}), 8192)
    assert told is not None and told.max_num_batched_tokens == 32_768


def test_rows_that_are_mostly_prefill_widen_no_other_range() -> None:
    exact = [predicted(name, name, length=2.0, measured=2.0, speedup=2.0) for name in ("a", "b")]
    loop = Loop(speedup=2.0, prefill_share=0.8)
    far_off = replace(predicted("c", "c", length=2.0, measured=1.0, speedup=2.0), loop=loop)
    spread = left_out_ranges((*exact, far_off))
    assert spread is not None
    assert spread.low[:2].tolist() == pytest.approx([2.0, 2.0])
    assert not spread.inside[2]


def test_the_median_over_sources_counts_each_source_once() -> None:
    rows = [predicted(f"a{i}", "a", length=2.0, measured=1.0, speedup=1.1) for i in range(9)]
    rows += [predicted(f"{name}", name, length=2.0, measured=1.0, speedup=1.4) for name in ("b", "c")]
    assert source_median(SpeedupReport(predicted=tuple(rows), refused={})) == pytest.approx(0.4)


def test_the_constant_comes_from_other_sources() -> None:
    """One source measures half of its accept length, the other all of it: each is predicted by the other's constant."""
    rows = (
        predicted("a", "one", length=2.0, measured=1.0, speedup=1.0),
        predicted("b", "two", length=3.0, measured=3.0, speedup=2.7),
    )
    lines = {(line.group, line.rule): line for line in speedup_lines(SpeedupReport(predicted=rows, refused={}))}
    assert lines["source one", "constant × accept length"].bias == pytest.approx(1.0)
    assert lines["source two", "constant × accept length"].bias == pytest.approx(-0.5)
    assert lines["source two", "specmargin"].median_error == pytest.approx(0.1)
    assert lines["all rows", "specmargin"].right_calls == 1.0


def test_a_range_comes_from_the_other_sources() -> None:
    """Source one is exact, source two measures 10% more and 10% less than predicted."""
    rows = (
        predicted("a", "one", length=2.0, measured=2.0, speedup=2.0),
        predicted("b", "two", length=2.0, measured=1.1, speedup=1.0),
        predicted("c", "two", length=2.0, measured=0.9, speedup=1.0),
    )
    spread = left_out_ranges(rows)
    assert spread is not None
    assert spread.low.tolist() == pytest.approx([1.8, 1.0, 1.0])
    assert spread.high.tolist() == pytest.approx([2.2, 1.0, 1.0])
    assert spread.inside.tolist() == [True, False, False]
    assert left_out_ranges(rows[1:]) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,own,m,h200,vllm,mtp,x,8,2.4,1.5,,,", "line 2.*depth"),
        ("a,own,m,h200,vllm,mtp,3,8,0.4,1.5,,,", "line 2.*accept_length"),
        ("a,own,m,h200,vllm,mtp,3,8,2.4,,,,", "line 2.*speedup"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_points(file(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        read_points(file(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        read_points(tmp_path / "missing.csv")


def test_a_range_from_its_own_prices_is_wider_by_its_doubts() -> None:
    errors = price_errors("laws", "b200")
    sure = predicted("a", "one", length=2.0, measured=2.0, speedup=2.0)
    both = own_ranges([sure, replace(sure, doubt=(-0.3, 0.2))])
    assert np.log(both.low / 2.0) == pytest.approx([errors.low, -np.hypot(errors.low, 0.3)])
    assert np.log(both.high / 2.0) == pytest.approx([errors.high, np.hypot(errors.high, 0.2)])


def test_the_errors_of_prices_leave_out_what_is_uncertain_about_a_row_itself() -> None:
    """Ten rows 20% too slow: an error of that size, unless each says that it could be."""
    rows = [predicted(f"{i}", f"{i}", length=2.0, measured=0.8, speedup=1.0) for i in range(10)]
    assert general_errors(rows).low == pytest.approx(math.log(0.8))
    doubtful = [replace(row, doubt=(-0.5, 0.5)) for row in rows]
    assert (general_errors(doubtful).low, general_errors(doubtful).high) == (0.0, 0.0)
    partly = general_errors([replace(row, doubt=(-0.2, 0.0)) for row in rows])
    assert math.hypot(partly.low, 0.2) == pytest.approx(-math.log(0.8))


def test_losses_are_called_uncertain_or_missed() -> None:
    cases = {
        "called": (0.9, 0.9, 0.8),
        "uncertain": (0.9, 1.1, 0.8),
        "missed": (0.9, 1.5, 1.2),
        "wrong": (1.2, 0.9, 0.8),
    }
    rows = [predicted(name, "s", length=2.0, measured=m, speedup=p) for name, (m, p, _) in cases.items()]
    low = np.array([low for _, _, low in cases.values()])
    calls = count_calls(rows, Ranges(low=low, high=low + 1.0, inside=low > 0))
    assert (calls.losses, calls.losses_called, calls.losses_uncertain) == (3, 1, 1)
    assert (calls.gains, calls.gains_called_losses, calls.gains_uncertain) == (1, 1, 0)


def test_a_group_of_ten_rows_behind_the_datasheet_is_marked() -> None:
    row = replace(predicted("a", "s", length=2.0, measured=1.0, speedup=1.2), datasheet_speedup=1.1)
    few, many = (judge_rows([row] * count).groups[0] for count in (9, 10))
    assert not few.behind_datasheet and many.behind_datasheet
    assert [many.median_error, many.datasheet_median_error] == pytest.approx([0.2, 0.1])
    ahead = judge_rows([replace(row, datasheet_speedup=1.3)] * 10).groups[0]
    assert not ahead.behind_datasheet


def test_what_a_round_exceeds_a_plain_step_by() -> None:
    row = predicted("a", "s", length=2.0, measured=1.0, speedup=0.9)
    first, *_ = row.growth.items()
    assert grows_by(row, most=1) == f"{first[0]} +{first[1]:.0%}"
    assert list(row.growth.values()) == sorted(row.growth.values(), reverse=True)


def test_sources_are_judged_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4"
    path = file(tmp_path, f"a,own,{row},1.5,,,", f"b,own,{row},0.9,,,", f"c,other,{row},9.0,,,")
    assert run("validate", ["speedups", str(path), "--json", "--apart", "other"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["id"]: row["apart"] for row in answer["rows"]} == {"a": False, "b": False, "c": True}
    everything = next(group for group in answer["groups"] if group["group"] == "all rows")
    assert everything["rows"] == 2 and answer["apart"]["rows"] == 1
    assert (everything["losses"], everything["gains"]) == (1, 1)
    assert {"GPU h200", "MoE, context below 8k", "prices tables"} & {group["group"] for group in answer["groups"]}
    assert [loss["id"] for loss in answer["losses"]] == ["b"] and "+" in answer["losses"][0]["grows_by"]
    assert run("validate", ["speedups", str(path), "--apart", "other"]) == 0
    shown = capsys.readouterr().out
    assert "apart" in shown and "losses: " in shown
    with pytest.raises(InputError, match="has no source 'third'; its sources are other, own"):
        validate_speedups(SpeedupsRequest(file=path, apart=("third",)))


def test_the_general_error_is_the_narrowest_that_holds_four_fifths() -> None:
    """Of ten sources one is far off: nine tenths are held without it, and eight on one side do not need the ninth."""
    errors = [1.0, 1.0, 1.0, 1.0, 1.0, 0.95, 0.95, 1.05, 1.1, 0.2]
    rows = [predicted(f"{i}", f"{i}", length=2.0, measured=error, speedup=1.0) for i, error in enumerate(errors)]
    fitted = general_errors(rows)
    assert [fitted.low, fitted.high] == pytest.approx([math.log(0.95), math.log(1.05)])
    held = [fitted.low - 1e-9 <= math.log(error) <= fitted.high + 1e-9 for error in errors]
    assert sum(held) == 8


def test_rows_where_rounds_were_measured_widen_no_other_range() -> None:
    asked = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws"}
    measured_rounds = Pricer(scenario_of(read_request(PlanRequest, asked))[1])
    rows = [predicted(name, name, length=2.0, measured=1.0, speedup=1.0) for name in "ab"]
    far = replace(predicted("c", "c", length=2.0, measured=0.5, speedup=1.0), pricer=measured_rounds)
    sure = left_out_ranges([*rows, far])
    assert sure is not None
    assert sure.low.tolist() == pytest.approx([1.0, 1.0, math.exp(price_errors("laws", "h200").low)])


def test_rows_to_which_no_other_source_is_left_have_the_catalogs_range() -> None:
    """Two sources, of which one says nothing about other prices: its errors are of rounds that were measured."""
    asked = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws"}
    measured_rounds = Pricer(scenario_of(read_request(PlanRequest, asked))[1])
    alone = predicted("a", "a", length=2.0, measured=1.0, speedup=1.0)
    other = replace(predicted("b", "b", length=2.0, measured=1.0, speedup=1.0), pricer=measured_rounds)
    sure = left_out_ranges([alone, other])
    assert sure is not None
    known = [price_errors(row.prices, row.pricer.scenario.device.name).low for row in (alone, other)]
    assert sure.low.tolist() == pytest.approx(np.exp(known).tolist())


def test_words_fill_columns_that_a_row_lacks(tmp_path: Path) -> None:
    header = "id,source,model,gpu,engine,drafter,depth,batch,accept_length,speedup,draft_vocabulary,stated_as,assumed\n"
    stated = "MTP k=4 (int4 module, 40k draft vocabulary)"
    runner = "draft_model forces the first runner and synchronous scheduling"
    cells = "qwen3-8b,h200,vllm,mtp,4,1,2.5,1.5"
    path = tmp_path / "points.csv"
    path.write_text(
        f'{header}a,s,{cells},,"{stated}",{runner}\nb,s,{cells},500,"{stated}, vLLM 0.31",{runner}\nc,s,{cells},,,\n'
    )
    a, b, c = read_points(path)
    assert (a.draft_vocabulary, a.draft_weights, a.named_engine_time) == (40_000, "int4-g128", "vllm:0.29")
    assert (b.draft_vocabulary, b.named_engine_time) == (500, "vllm:0.31")
    assert (c.draft_vocabulary, c.draft_weights, c.named_engine_time) == (None, None, None)
