"""The gate can fail: each kind of change is found, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.golden import files, predictions, rounds
from tests.golden.cells import KEY
from tests.golden.comparison import NOISE, TOLERANCE, Change, Table, compare_documents, compare_tables, summary
from tests.golden.parts import Part
from tests.golden.surface import key_paths, without_words

CELL = {"model": "qwen3-8b", "gpu": "h200", "engine": "vllm", "prices": "laws", "options": ""}
STEP = CELL | {
    "batch": 8,
    "verify_us": [1000.0, 2000.0, 3000.0],
    "draft_us": [0.0, 100.0, 200.0],
    "plain_us": 1000.0,
    "best_depth": 1,
    "scheduled_depth": 1,
    "speedup": 1.5,
    "hurdle": 0.2,
    "break_even": None,
    "distinct_experts": None,
}
GOODPUT = np.tile([0.9, 0.9995, 1.0], (512, 1))


def steps(*changes: dict[str, Any]) -> Table:
    return predictions.as_table("steps", [STEP | change for change in changes])


def changed(before: Table, after: Table, tolerance: float = TOLERANCE) -> list[Change]:
    return compare_tables(before, after, tolerance=tolerance, excuse=predictions.is_tie)


@pytest.fixture(autouse=True)
def _known_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_goodput", lambda _: GOODPUT)


def test_the_same_is_the_same() -> None:
    assert changed(steps({}), steps({})) == []
    assert summary([]) == "nothing moved"


def test_a_number_that_moved_is_named_with_its_place() -> None:
    after = steps({"verify_us": [1000.0, 2000.0, 3030.0]})
    (change,) = changed(steps({}), after)
    assert change.relative == pytest.approx(0.01, rel=1e-3)
    text = summary([change])
    assert "steps, verify_us: 1 row moved, by at most 1.000%, median 1.000%" in text
    assert "qwen3-8b h200 vllm laws batch 8 depth 2: 3000 → 3030 (+1.000%)" in text


@pytest.mark.parametrize(("factor", "caught"), [(1.0 + 0.5 * TOLERANCE, False), (1.0 + 2.0 * TOLERANCE, True)])
def test_numbers_may_move_within_the_tolerance(factor: float, caught: bool) -> None:
    assert bool(changed(steps({}), steps({"hurdle": 0.2 * factor}))) is caught


def test_numbers_that_come_and_go_are_caught() -> None:
    assert changed(steps({}), steps({"break_even": 0.5}))
    assert changed(steps({}), steps({"hurdle": None}))
    assert changed(steps({}), steps({"hurdle": float("nan")}))
    assert changed(steps({}), steps({"draft_us": [0.0, 100.0]}))
    assert changed(steps({}), steps({"draft_us": [0.1, 100.0, 200.0]}))
    assert not changed(steps({"hurdle": 1e-17}), steps({"hurdle": 3e-17}))  # both are nothing
    assert not changed(steps({"hurdle": 1e-14}), steps({"hurdle": -1e-14}), NOISE)


def test_a_cell_that_vanished_or_is_new_is_named() -> None:
    both, one = steps({}, {"batch": 16}), steps({})
    (gone,) = changed(both, one)
    assert str(gone) == "qwen3-8b h200 vllm laws batch 16: recorded → nothing"
    (new,) = changed(one, both)
    assert new.after == "new"


def test_a_refusal_in_place_of_a_price_is_caught() -> None:
    priced = predictions.as_table("cells", [CELL | {"outcome": "priced", "gpus": 1}])
    refused = predictions.as_table("cells", [CELL | {"outcome": "does not fit"}])
    assert {change.column for change in changed(priced, refused)} == {"outcome", "gpus"}


def test_a_depth_that_changed_is_caught_unless_it_is_a_tie() -> None:
    (real,) = changed(steps({}), steps({"best_depth": 0}))
    assert not real.tie
    (tied,) = changed(steps({}), steps({"best_depth": 2}))
    assert tied.tie
    assert "1 row tied" in summary([tied])
    (beyond,) = changed(steps({}), steps({"best_depth": 7}))
    assert not beyond.tie


def test_what_is_said_of_the_best_depth_is_excused_with_it_only() -> None:
    changes = changed(steps({}), steps({"best_depth": 2, "hurdle": 0.3, "plain_us": 2000.0}))
    assert {change.column: change.tie for change in changes} == {
        "best_depth": True,
        "hurdle": True,
        "plain_us": False,
    }
    assert [change.tie for change in changed(steps({}), steps({"hurdle": 0.3}))] == [False]


@pytest.mark.parametrize(
    ("schedule", "tie"), [("1-5:1 6-8:2", True), ("1-5:1 6-8:0", False), ("1-9:1", False), ("", False)]
)
def test_schedules_are_ties_where_their_depths_are(schedule: str, tie: bool) -> None:
    before, after = (
        predictions.as_table("cells", [CELL | {"outcome": "priced", "schedule": text, "config": text}])
        for text in ("1-8:1", schedule)
    )
    changes = changed(before, after)
    assert {change.column: change.tie for change in changes} == {"schedule": tie, "config": tie}


def test_a_decision_that_changed_is_caught() -> None:
    decided = {"controller": "gated", "step": 3, "draft_depth": 2, "draft_lengths": None, "verify_depths": [2, 1]}
    before = rounds.as_table("decisions", [decided])
    for change in ({"draft_depth": 1}, {"verify_depths": [2, 2]}, {"verify_depths": [2]}):
        (moved,) = compare_tables(before, rounds.as_table("decisions", [decided | change]))
        assert moved.row == "gated step 3"
        assert moved.column in change


def test_a_column_that_came_or_went_is_caught() -> None:
    before = steps({})
    without = Table(name=before.name, keys=before.keys, frame=before.frame.drop("hurdle"))
    assert [change.column for change in changed(before, without)] == ["hurdle"]
    assert [change.column for change in changed(without, before)] == ["hurdle"]


# --- documents ---


def test_keys_that_are_new_gone_or_of_another_type_are_caught() -> None:
    before = {"plan": key_paths({"rows": [{"batch": 1}]})}
    same = {"plan": key_paths({"rows": [{"batch": 2}, {"batch": 3}]})}
    assert compare_documents("verbs", before, same) == []
    for rows, caught in (
        ([{"batch": 1, "new": 2}], "rows[].new: nothing → 'int'"),
        ([{}], "rows[].batch: 'int' → nothing"),
        ([{"batch": "1"}], "rows[].batch: 'int' → 'str'"),
    ):
        (change,) = compare_documents("verbs", before, {"plan": key_paths({"rows": rows})})
        assert (change.column, str(change)) == ("plan", caught)


def test_keys_that_are_data_are_one() -> None:
    paths = key_paths({"sources": {"model": "a", "device": "b"}, "by": {"1": 2.0, "8": None}, "schema": "x/1"})
    assert paths == {"by": "object", "by.*": "float", "schema": "x/1", "sources": "object", "sources.*": "str"}


def test_schemas_keep_their_structure_and_lose_their_words() -> None:
    definitions = {"Inner": {"title": "Inner", "type": "object", "properties": {"title": {"type": "string"}}}}
    structure = without_words(
        {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/Inner", "description": "?"}}}
    )
    assert structure == {"properties": {"a": {"type": "object", "properties": {"title": {"type": "string"}}}}}


# --- writing ---


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    config = '--config "a, b"\n  {1: 2}'
    cell = CELL | {"outcome": "priced", "config": config}
    for table in (steps({}, {"batch": 16, "verify_us": None}), predictions.as_table("cells", [cell])):
        files.write_frame(table.name, table.frame)
        assert files.read_frame(table.name, table.frame.schema).equals(table.frame)
        assert len(files.table_path(table.name).read_text().splitlines()) == 1 + table.frame.height


def test_numbers_are_rounded_finer_than_noise_and_inputs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    exact = pl.DataFrame({"value": [1.000004999, 1234567.891, 9.99999499e-5, float("nan")]})
    files.write_frame("rounded", exact)
    assert files.table_path("rounded").read_text().split() == ["value", "1", "1.23457e+06", "9.99999e-05", "nan"]
    rounded = files.read_frame("rounded", exact.schema)
    assert compare_tables(_unkeyed(exact), _unkeyed(rounded), tolerance=NOISE) == []
    files.write_frame("exact", exact, exact=True)
    assert files.read_frame("exact", exact.schema).equals(exact)


def _unkeyed(frame: pl.DataFrame) -> Table:
    return Table(name="numbers", keys=("row",), frame=frame.with_row_index("row"))


def test_rows_that_did_not_move_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    before = steps({}, {"batch": 16}, {"batch": 32}, {"batch": 128})
    files.write_frame("steps", before.frame)
    noise = {"verify_us": [1000.0, 2000.0 * (1.0 + 0.9 * NOISE), 3000.0]}
    after = steps(noise, {"batch": 16, "speedup": 1.6}, {"batch": 64}, {"batch": 128, "best_depth": 2})
    files.update_table(after, changed(before, after, NOISE))
    recorded = files.read_frame("steps", predictions.STEPS)
    assert recorded["batch"].to_list() == [8, 16, 64, 128]
    assert recorded["speedup"].to_list() == [1.5, 1.6, 1.5, 1.5]
    assert recorded.row(0) == before.frame.row(0)  # noise
    assert recorded["best_depth"].to_list() == [1, 1, 1, 1]  # the last one is tied with 2


def test_a_new_column_is_written_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    after = steps({}, {"batch": 16})
    before = Table(name=after.name, keys=after.keys, frame=after.frame.drop("hurdle"))
    files.write_frame("steps", before.frame)
    files.update_table(after, changed(before, after))
    assert files.read_frame("steps", predictions.STEPS).equals(after.frame)


def test_a_document_that_lost_a_key_is_caught_and_one_of_several_parts_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    files.write_document("schemas", {"policy": 1, "sweep": 2})
    now = {"schemas": {"policy": 1}}
    assert [change.column for change in Part(documents=now).changes()] == ["sweep"]
    assert Part(documents=now, some_keys=True).changes() == []


def test_rows_that_nobody_asks_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DATA", tmp_path)
    files.write_frame("cells", predictions.as_table("cells", [CELL | {"outcome": "priced"}]).frame)
    assert files.left_over("cells", KEY, [tuple(CELL.values())]) == []
    (change,) = files.left_over("cells", KEY, [])
    assert str(change) == "qwen3-8b h200 vllm laws: recorded → nothing"


def test_frames_are_compared_by_key_and_not_by_order() -> None:
    table = steps({}, {"batch": 16, "hurdle": 0.4})
    turned = Table(name=table.name, keys=table.keys, frame=table.frame.reverse())
    assert compare_tables(table, turned) == []
    assert pl.concat([table.frame, turned.frame]).height == 4
