"""Several GPUs or layouts in one table, with the price of each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

import specmargin
from specmargin.errors import InputError
from specmargin.show.explorer.schema import Query
from specmargin.verbs.plan import SeveralAnswer
from tests.command_line import payload, run

MODEL = ("qwen3.6-35b-a3b", "--prices", "laws", "--depth", "4")


def several(**options: object) -> SeveralAnswer:
    asked = {"gpu": "h100,h200", "prices": "laws", "depth": 4} | options
    answer = specmargin.plan("qwen3.6-35b-a3b", **asked)  # type: ignore[arg-type]
    assert isinstance(answer, SeveralAnswer)
    return answer


def test_a_row_is_what_the_plan_of_that_gpu_says() -> None:
    answer = payload("plan", *MODEL, "--gpu", "h200,b200", "--batch", "8", "--gpu-hour-price", "h200=3.5,b200=5")
    assert answer["schema"] == "specmargin.plans/1"
    for row, price in zip(answer["rows"], (3.5, 5), strict=True):
        alone = payload("plan", *MODEL, "--gpu", row["gpu"], "--batch", "8", "--gpu-hour-price", str(price))
        own = alone["rows"][0]
        assert row["depth"] == own["depth"]
        assert row["tokens_per_second_per_gpu"] == pytest.approx(own["goodput_tokens_per_second"])
        for name in ("speedup", "speedup_low", "speedup_high", "tpot_seconds", "cost_per_million_tokens"):
            assert row[name] == pytest.approx(own[name]), name
        assert row["no_spec_cost_per_million_tokens"] == pytest.approx(own["no_spec_cost_per_million_tokens"])
    plans = {plan["machine"]: plan for plan in answer["plans"]}
    assert plans["h200"]["config"] == payload("plan", *MODEL, "--gpu", "h200", "--batch", "8")["config"]


def test_layouts_have_their_own_number_of_gpus_and_parallelism() -> None:
    answer = several(gpu="2xh100, 4×h200:ep,b200", gpus=8, parallel="dp-ep", batch=16)
    assert [(row.machine, row.gpus, row.parallel) for row in answer.machines.rows] == [
        ("2 × h100 dp-ep", 2, "dp-ep"),
        ("4 × h200 ep", 4, "ep"),
        ("8 × b200 dp-ep", 8, "dp-ep"),
    ]
    per_gpu = answer.machines.rows[1].tokens_per_second_per_gpu
    assert per_gpu == pytest.approx(answer.machines.planned[1].ranked[0].plan.rows[0].goodput_tokens_per_second / 4)


def test_a_layout_alone_is_a_plan_of_it() -> None:
    short = payload("plan", *MODEL, "--gpu", "4xh200:ep", "--batch", "8")
    long = payload("plan", *MODEL, "--gpu", "h200", "--gpus", "4", "--parallel", "ep", "--batch", "8")
    assert short == long


def test_a_gpu_that_cannot_hold_the_model_is_a_row_that_says_so() -> None:
    text = run("plan", *MODEL, "--gpu", "l40s,h200").out
    assert "The model cannot be served by l40s." in " ".join(text.split())
    assert "l40s: qwen3.6-35b-a3b does not fit: weights need" in " ".join(text.split())
    rows = {row.gpu: row for row in several(gpu="l40s,h200").machines.rows}
    assert not rows["l40s"].fits
    assert rows["l40s"].speedup is None
    assert rows["h200"].speedup is not None


def test_where_no_gpu_can_hold_it_that_is_the_error() -> None:
    with pytest.raises(InputError, match="does not fit"):
        several(gpu="l40s,l4")


def test_without_a_batch_machines_are_compared_at_one_that_all_can_run() -> None:
    assert several().machines.batches == (16,)  # 31 sequences fit on the H100
    assert several(gpu="h200,b200").machines.batches == (32,)
    assert {row.batch for row in several(batch="1,64").machines.rows} == {1, 64}


def test_the_cheapest_machine_counts_plain_decoding_too() -> None:
    cheap = several(gpu_hour_price="h100=0.5,h200=9")
    assert cheap.verdict.startswith("Cheapest: h100, $")
    assert "per million tokens at batch 16 without speculation." in cheap.verdict  # drafts do not fit there
    assert "Drafts do not fit at this batch on h100." in cheap.verdict
    assert several(gpu_hour_price="h100=9,h200=0.5").verdict.startswith("Cheapest: h200, $")
    assert several(gpu_hour_price={"h100": 9}).verdict.startswith("Fastest per GPU: h200")  # one price is missing


def test_a_load_is_simulated_on_each(tmp_path: Path) -> None:
    table = tmp_path / "gpus.csv"
    load = ("--concurrency", "8", "--isl", "512", "--osl", "64")
    answer = payload("plan", *MODEL, "--gpu", "h200,b200", *load, "-o", str(table))
    services = [plan["service"] for plan in answer["plans"]]
    for row, service in zip(answer["rows"], services, strict=True):
        assert row["speedup"] == service["speedup"]
        assert row["tokens_per_second_per_gpu"] == service["speculating"]["tokens_per_second_per_gpu"]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["machine"] for row in rows] == ["h200", "b200"]
    assert float(rows[0]["speedup"]) == answer["rows"][0]["speedup"]


def test_frame_and_chart_have_a_row_and_a_line_per_gpu(tmp_path: Path) -> None:
    answer = several(gpu="h200,b200", batch=8)
    assert answer.to_frame()["machine"].to_list() == ["h200", "b200"]
    chart = tmp_path / "gpus.json"
    run("plan", *MODEL, "--gpu", "h200,b200", "--batch", "8", "--plot", str(chart))
    lines = json.loads(chart.read_text())["datasets"]["lines"]
    assert {row["series"] for row in lines} == {"h200", "b200"}


def test_the_table_fits_eighty_columns() -> None:
    text = run("plan", *MODEL, "--gpu", "8xh100,8xh200:ep,8xrtx-pro-6000:dp-ep,l4", "--gpu-hour-price", "3").out
    assert max(map(len, text.splitlines())) <= 80


def test_engines_are_named_where_no_one_engine_runs_everywhere() -> None:
    text = run("plan", "gpt-oss-20b", "--gpu", "h100,m4-max", "--batch", "1").out
    assert "vllm: h100; llamacpp: m4-max" in text
    assert "vllm:" not in run("plan", *MODEL, "--gpu", "h200,b200", "--batch", "1").out


def test_explain_has_the_plan_of_each() -> None:
    text = run("plan", *MODEL, "--gpu", "h200,b200", "--batch", "1", "--explain").out
    assert text.count("--speculative-config") == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--gpu", "h100,h999"), "unknown GPU 'h999'"),
        (("--gpu", "h100,,h200"), "a list names GPUs, such as h100,h200"),
        (("--gpu", "0xh100,h200"), "a machine has at least one GPU"),
        (("--gpu", "h100,h200", "--compare", "datasheet"), "--compare is for one GPU"),
        (("--gpu", "h100,h200", "-o", "flags.txt"), "several GPUs make a table"),
        (("--gpu", "h100,h200", "--policy", "x.policy"), "write the file of one machine"),
        (("--gpu", "h100,h200", "--gpu-hour-price", "b200=5"), "b200 is none of the GPUs of --gpu (h100, h200)"),
        (("--gpu", "h100", "--gpu-hour-price", "h100=x"), "is neither a price such as 2.5 nor one per GPU"),
        (("--gpu", "h100", "--gpu-hour-price", "-1"), "a price is at least 0"),
        (("--gpu", "h100", "--gpu-hour-price", "nan"), "a price is at least 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: tuple[str, ...], complaint: str) -> None:
    assert complaint in run("plan", *MODEL, *options, code=2).err


@pytest.mark.parametrize("gpu", ["h100,h200", "4xh200"])
@pytest.mark.parametrize("verb", ["price", "coverage", "report"])
def test_other_verbs_take_one_gpu(verb: str, gpu: str, tmp_path: Path) -> None:
    output = ("-o", str(tmp_path / "report.html")) if verb == "report" else ()
    assert "name one GPU here" in run(verb, "qwen3.6-35b-a3b", "--gpu", gpu, *output, code=2).err


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("gpu", "h100,h200", "'h100,h200' is not a bundled GPU"),
        ("gpu", "4xh200", "'4xh200' is not a bundled GPU"),
        ("drafter", "mtp,eagle", "unknown drafter 'mtp,eagle'"),
        ("gpu_hour_price", "h100=2", "valid number"),
    ],
)
def test_the_page_takes_one_of_each(field: str, value: str, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Query.model_validate({field: value})
