"""`validate speedups`: the file, its errors, and the rules that predictions are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specmargin.cli.main import run
from specmargin.errors import InputError
from specmargin.validation.points_schema import Point, read_points
from specmargin.validation.speedups import PredictedPoint, RoundCost, SpeedupReport, ranges, speedup_lines

HEADER = "id,source,model,gpu,engine,drafter,depth,batch,accept_length,speedup,isl,osl,prefill_inside\n"


def file(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "points.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


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
    cost = RoundCost(
        no_spec_seconds=speedup,
        rest_seconds=length,
        prompt_seconds=0.0,
        accept_length=length,
        counts=(0.0, 0.0, 0.0),
        terms=(0.0, 0.0, 0.0),
    )
    return PredictedPoint(
        point=point, speedup=speedup, cost=cost, datasheet_speedup=speedup, is_moe=True, prices="laws"
    )


def test_a_row_is_predicted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(
        tmp_path, "a,own,qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4,1.5,,,", "b,own,no-such-model,h200,vllm,mtp,3,8,2,1,,,"
    )
    assert run("validate", ["speedups", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["rows"]
    assert 0.5 < row["predicted"] < 2.4
    assert "no-such-model" in answer["not_predicted"]["b"]
    assert run("validate", ["speedups", str(path)]) == 0
    assert "not predicted: b" in capsys.readouterr().out


def test_prefill_draws_the_speed_up_towards_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "own,qwen3.6-35b-a3b,h200,vllm,mtp,3,64,2.4,1.5"
    path = file(tmp_path, f"decode,{row},,,", f"short,{row},1024,4096,1", f"long,{row},8192,64,1")
    assert run("validate", ["speedups", str(path), "--json"]) == 0
    by_id = {row["id"]: row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert by_id["decode"] > by_id["short"] > by_id["long"] > 1.0


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
    spread = ranges(SpeedupReport(predicted=rows, refused={}))
    assert spread is not None
    assert spread.low.tolist() == pytest.approx([1.8, 1.0, 1.0])
    assert spread.high.tolist() == pytest.approx([2.2, 1.0, 1.0])
    assert spread.inside.tolist() == [True, False, False]
    assert ranges(SpeedupReport(predicted=rows[1:], refused={})) is None


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
    with pytest.raises(InputError, match=r"needs one FILE\.csv"):
        run("validate", ["speedups"])
