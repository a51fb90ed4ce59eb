"""Prices per GPU-hour: the user's, else a dated list price, which is labelled and decides nothing."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

import specmargin
from specmargin.catalog.bundled import bundled_text
from specmargin.catalog.gpu_hours import gpu_hour
from specmargin.catalog.lookup import device_names
from tests.command_line import run

LISTED = tomllib.loads(bundled_text("gpu_hours.toml"))


@pytest.mark.parametrize("name", LISTED)
def test_every_list_price_has_a_device_a_month_and_a_source(name: str) -> None:
    entry = LISTED[name]
    assert name in device_names()
    assert set(entry) == {"usd", "month", "source"}
    assert 0.05 < entry["usd"] < 20.0
    assert re.fullmatch(r"202[67]-(0[1-9]|1[0-2])", entry["month"])


def planned(**options: Any) -> dict[str, Any]:
    return specmargin.plan("qwen3-30b-a3b", gpu="h200", prices="laws", **options).to_dict()


def test_a_given_price_wins() -> None:
    assumed, given = planned(), planned(gpu_hour_price=2.0)
    assert assumed["gpu_hour"] == {"usd": LISTED["h200"]["usd"], "assumed": True, **_named("h200")}
    assert given["gpu_hour"] == {"usd": 2.0, "assumed": False, "source": None, "month": None}
    ratio = assumed["rows"][0]["cost_per_million_tokens"] / given["rows"][0]["cost_per_million_tokens"]
    assert ratio == pytest.approx(LISTED["h200"]["usd"] / 2.0)
    assert planned(gpu_hour_price=0)["rows"][0]["cost_per_million_tokens"] == 0.0


def _named(gpu: str) -> dict[str, str]:
    return {"source": LISTED[gpu]["source"], "month": LISTED[gpu]["month"]}


def test_a_gpu_without_a_list_price_has_no_costs() -> None:
    assert gpu_hour("dgx-spark") is None
    answer = specmargin.plan("qwen3-30b-a3b", gpu="dgx-spark").to_dict()
    assert answer["gpu_hour"] is None
    assert "cost_per_million_tokens" not in answer["rows"][0]


def test_the_terminal_says_that_a_price_is_assumed() -> None:
    shown = run("plan", "qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws").out
    (line,) = [line for line in shown.splitlines() if line.startswith("$/Mtok")]
    assert "assumed $4.59/GPU-h (RunPod 2026-10)" in line
    assert len(line) <= 80
    given = run("plan", "qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws", "--gpu-hour-price", "2").out
    assert "assumed $" not in given
    assert "plain $" in given


def test_an_assumed_price_shows_costs_of_several_gpus_and_does_not_choose_one() -> None:
    answer = specmargin.plan("qwen3-30b-a3b", gpu="h100,h200", prices="laws")
    assert answer.verdict.startswith("Fastest per GPU")
    shown = run("plan", "qwen3-30b-a3b", "--gpu", "h100,h200", "--prices", "laws").out
    assert "assumed $ per GPU-hour: h100 3.99 (RunPod 2026-11)" in shown
    rows = answer.table()
    assert [row["gpu_hour_price_assumed"] for row in rows] == [True, True]
    given = specmargin.plan("qwen3-30b-a3b", gpu="h100,h200", prices="laws", gpu_hour_price="h100=1,h200=9")
    assert given.verdict.startswith("Cheapest: h100")
