"""Published rows of one box: files, the rule that holds sources out, and the page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from lab.validation.marked import END
from lab.validation.one_box import FOLDER, OneBox, bounds, groups_of, held_out, one_box
from lab.validation.one_box_page import BEGIN, BEGIN_HELD_OUT, PAGE, tables, write_tables

from specmargin.errors import InputError
from specmargin.validation.points_schema import PlainPoint, read_plain, read_points
from specmargin.validation.speedups import predict
from specmargin.validation.token_speeds import PLAIN, SPECULATIVE, predict_plain, speed_error, speeds_of

SPEEDUPS = ("points.csv", "held-out.csv")
PLAINS = ("plain.csv", "plain-held-out.csv")
SOURCES = (FOLDER.parents[1] / "sources.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_speedups_are_the_ratio_of_their_figures() -> None:
    for name in SPEEDUPS:
        for point in read_points(FOLDER / name):
            assert point.plain and point.speculative and point.accept_length, point.id
            assert point.speculative / point.plain == pytest.approx(point.speedup, rel=1e-3), point.id
            assert point.accept_length <= point.depth + 1, point.id


def test_rows_say_where_they_are_from() -> None:
    for name in (*SPEEDUPS, *PLAINS):
        found = rows(name)
        assert len({row["id"] for row in found}) == len(found)
        for row in found:
            assert row["stated_as"] and row["date"] and row["source"], row["id"]
            assert row["unit"] == "tok/s decode", row["id"]
    assert all(read_plain(FOLDER / name) for name in PLAINS)


def test_there_are_enough_rows_and_about_a_third_is_held_out() -> None:
    development, held = (len(rows(name)) for name in SPEEDUPS)
    plain, plain_held = (len(rows(name)) for name in PLAINS)
    assert development + held >= 110 and plain + plain_held >= 200
    assert 0.25 <= held / (development + held) <= 0.42
    assert 0.2 <= plain_held / (plain + plain_held) <= 0.42


def test_sources_are_held_out_by_their_address_alone() -> None:
    for name in (*SPEEDUPS, *PLAINS):
        for row in rows(name):
            assert held_out(row["source"]) == ("held-out" in name), row["id"]
    assert held_out("ggml-org/llama.cpp#4167") and held_out("GGML-org/llama.cpp#4167")
    assert not held_out("lablup/mlxcel")  # used before


def test_losses_are_among_the_rows() -> None:
    for name in SPEEDUPS:
        assert sum(float(row["speedup"]) < 1.0 for row in rows(name)) >= 5


def test_every_source_is_listed() -> None:
    for name in (*SPEEDUPS, *PLAINS):
        for source in {row["source"] for row in rows(name)}:
            assert f"\n| {source} | " in SOURCES, f"{source}: no row in lab/data/sources.md"


HEADER = "id,source,model,gpu,engine,drafter,depth,accept_length,plain,speculative,unit,speedup\n"
PLAIN_HEADER = "id,source,model,gpu,engine,context,plain\n"


def test_figures_in_tokens_per_second_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text(
        f"{HEADER}a,s,qwen3-8b,h200,vllm,ngram,2,2.1,100,140,tok/s,1.4\n"
        "b,s,qwen3-8b,h200,vllm,ngram,2,2.1,9,7,TPOT ms,1.3\n"
    )
    report = predict(read_points(path), tmp_path)
    speeds = speeds_of(report.predicted)
    assert [(speed.what, speed.measured) for speed in speeds] == [(PLAIN, 100.0), (SPECULATIVE, 140.0)]
    plain, speculative = speeds
    row = report.predicted[0]
    assert plain.predicted == pytest.approx(1.0 / row.no_spec_seconds)
    assert speculative.predicted == pytest.approx(plain.predicted * row.speedup)
    assert plain.datasheet > plain.predicted  # no engine time


def test_plain_rows_are_predicted_alone_and_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text(f"{PLAIN_HEADER}a,s,qwen3-8b,h200,vllm,512,200\nb,s,no-such,h200,vllm,512,200\n")
    report = predict_plain(read_plain(path), tmp_path)
    (speed,) = report.predicted
    error = speed_error([speed])
    assert error.rows == 1 and error.bias == pytest.approx(speed.predicted / 200.0 - 1.0)
    assert list(report.refused) == ["b"] and "no-such" in report.refused["b"]
    assert "device NVIDIA" in list(groups_of(speed.point, speed.pricer))


def test_experts_in_main_memory_become_options() -> None:
    point = {"id": "a", "source": "s", "model": "m", "gpu": "g", "engine": "llamacpp", "plain": 1.0}
    some = PlainPoint.model_validate(point | {"cpu": "c", "n_cpu_moe": "12"})
    assert some.placement == {"cpu": "c", "n_cpu_moe": 12}
    everything = PlainPoint.model_validate(point | {"cpu": "c", "n_cpu_moe": "all"})
    assert everything.placement == {"cpu": "c", "experts_on": "cpu"}


@pytest.mark.parametrize(("engine", "gpu"), [("llamacpp", "rx-7900-xtx"), ("mlx", "m4-max")])
def test_a_backend_is_priced_by_llamacpp_alone_and_never_by_a_datasheet(engine: str, gpu: str, tmp_path: Path) -> None:
    point = {"id": "a", "source": "s", "model": "qwen3-8b", "gpu": gpu, "engine": engine, "plain": 1.0}
    named = PlainPoint.model_validate(point | {"backend": "vulkan"})
    report = predict_plain([named, PlainPoint.model_validate(point | {"id": "b"})], tmp_path)
    with_backend, default = report.predicted
    assert with_backend.datasheet == default.datasheet
    assert (with_backend.predicted == default.predicted) == (engine == "mlx")


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text(f"{PLAIN_HEADER}a,s,m,g,vllm,512,0\n")
    with pytest.raises(InputError, match=r"plain.csv, line 2: plain"):
        read_plain(path)


def test_the_page_has_the_marks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(BEGIN_HELD_OUT)


@pytest.mark.slow
def test_the_page_has_what_the_command_finds() -> None:
    """Development rows; those that were held out were judged once. After a change of prices: --write."""
    on_page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert on_page.split("\n") == ["", "", *tables(one_box()), ""]


def test_tables_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\nold\n<!-- end -->\n{BEGIN_HELD_OUT}\nonce\n<!-- end -->\n", encoding="utf-8")
    points = tmp_path / "points.csv"
    points.write_text(f"{HEADER}a,s,qwen3-8b,h200,vllm,ngram,2,2.1,100,140,tok/s,1.4\n")
    report = predict(read_points(points), tmp_path)
    found = OneBox(speedups=report.predicted, speeds=tuple(speeds_of(report.predicted)), refused={}, sources=1)
    write_tables(found, held=False, page=page)
    text = page.read_text(encoding="utf-8")
    assert "old" not in text and "once" in text and "| all rows | 1 |" in text
    assert all(f"- {line[0].upper()}{line[1:]}." in text for line in bounds(found))
