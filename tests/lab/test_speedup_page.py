"""The tables of docs/results/speedups.md: where they go, and what they hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.validation.marked import END
from lab.validation.speedup_page import BEGIN, PAGE, write_page
from lab.validation.speedup_sets import ONE_BOX_SET, RowSet
from lab.validation.speedups import row_sets

from specmargin.errors import InputError
from specmargin.validation.points_schema import read_points
from specmargin.validation.speedups import SpeedupReport, predict, speedup_lines

HEADER = "id,source,model,gpu,engine,drafter,depth,batch,accept_length,speedup\n"
ROW = "qwen3.6-35b-a3b,h200,vllm,mtp,3,8,2.4"


def reports(folder: Path) -> list[SpeedupReport]:
    found = []
    for name, rows in {
        "one": [f"a,A,{ROW},1.5", f"b,B,{ROW},0.9"],
        "two": [f"c,C,{ROW},1.4", f"d,D,{ROW},0.5"],
    }.items():
        file = folder / f"{name}.csv"
        file.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
        found.append(predict(read_points(file), folder))
    return found


def test_files_are_judged_alone_and_together_without_what_is_apart(tmp_path: Path) -> None:
    sets = RowSet.of_reports(["one", "two"], reports(tmp_path), apart=("D",))
    assert [(rows.name, len(rows.judged.rows)) for rows in sets] == [
        ("one", 2),
        ("two", 1),
        ("one and two", 3),
        (ONE_BOX_SET, 1),
    ]
    assert sets[1].judged.left_out_ranges is None  # of one source


def test_the_tables_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nearlier tables\n{END}\nafter\n", encoding="utf-8")
    sets = RowSet.of_reports(["one", "two"], reports(tmp_path), apart=("D",))
    for _ in range(2):
        write_page(sets, page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n") and "earlier tables" not in text
    assert text.count("### One and two: 3 rows of 3 sources") == 1
    assert "| b | B | qwen3.6-35b-a3b | h200 | 8 | 3 | 0.90× |" in text
    assert "### One box: 1 rows of 1 sources" in text
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(InputError, match="no place for the tables"):
        write_page(sets, page)


def test_the_page_has_the_marks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)


def test_the_page_has_the_errors_of_today() -> None:
    """Of every set of rows, in percent: median error and bias of the prediction and of the datasheet."""
    found = [
        (line.rule, 100.0 * line.median_error, 100.0 * line.bias)
        for rows in row_sets()
        for line in speedup_lines(rows.report)
        if line.group == "all rows" and line.rule in ("specmargin", "datasheet")
    ]
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^\| (specmargin|datasheet) \| ([\d.]+)% \| ([+-][\d.]+)% \|", text, re.MULTILINE)
    assert [rule for rule, *_ in shown] == [rule for rule, *_ in found]
    for (_, *said), (_, *now) in zip(shown, found, strict=True):
        assert [float(value) for value in said] == pytest.approx(now, abs=0.2)
    accuracy = (PAGE.parent / "accuracy.md").read_text(encoding="utf-8")
    said_there = (
        r"237 speed-ups published by others: median error ([\d.]+)%, bias ([+-][\d.]+)%.* roofline has ([\d.]+)%"
    )
    ((median, bias, datasheet),) = re.findall(said_there, accuracy)
    assert [float(median), float(bias), float(datasheet)] == pytest.approx([*found[0][1:], found[1][1]], abs=0.2)
