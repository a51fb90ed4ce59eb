"""Sentences from templates: slots, conditions, optional parts, alternatives and lists."""

from __future__ import annotations

import pytest

from specmargin.phrases import fill, listed, say

PHRASES = {
    "gain": ("{pays!}{speedup:.2f}× at batch {batch:,}[, up to {best:.1f}×]", "nothing"),
    "whole": ("It gains {gain}[ on {gpus} × {gpu}].",),
    "each": ("{only!}all {name}", "{end!}then {name}", "{second!}second {name}", "[{first!}first ]{name}"),
}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"pays": True, "speedup": 1.239, "batch": 1024}, "It gains 1.24× at batch 1,024."),
        ({"pays": True, "speedup": 1.0, "batch": 0, "best": 2.0}, "It gains 1.00× at batch 0, up to 2.0×."),
        ({"pays": False, "speedup": 1.0, "batch": 1, "gpus": 2, "gpu": "h200"}, "It gains nothing on 2 × h200."),
        ({"pays": True, "speedup": None, "batch": 1, "gpus": None, "gpu": "h200"}, "It gains nothing."),
    ],
)
def test_absent_values_drop_their_part_or_template(values: dict[str, object], text: str) -> None:
    assert say("whole", PHRASES, values) == text


def test_a_phrase_without_its_values_is_none() -> None:
    assert say("whole", {"whole": ("{missing} is absent",)}, {}) is None


@pytest.mark.parametrize(
    ("names", "text"),
    [("a", "all a"), ("ab", "first a, then b"), ("abcd", "first a, second b, c, then d")],
)
def test_items_know_their_place(names: str, text: str) -> None:
    assert listed("each", [{"name": name} for name in names], PHRASES, between=", ") == text


def test_brackets_and_braces_of_a_setting_stay() -> None:
    assert fill('{"steps": [{depth}], "at": {{entries}}}', {"depth": 3, "entries": "1: 3"}) == (
        '{"steps": [3], "at": {1: 3}}'
    )
    with pytest.raises(ValueError, match="missing"):
        fill("{depth}", {})
