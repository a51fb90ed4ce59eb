"""The chart of throughput per GPU over speed per user: its lines are the plan's, its rings what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import specmargin
from specmargin.catalog.lookup import device_names, model_names
from specmargin.catalog.measured_points import all_measured_points

if TYPE_CHECKING:
    from playwright.sync_api import Page


def figure(client: httpx.Client, **query: Any) -> dict[str, Any]:
    reply = client.get("/api/view", params={**query, "show": "pareto"}).json()
    found: dict[str, Any] = reply["figures"][0]
    return found


def test_lines_are_the_rows_of_the_plan(client: httpx.Client) -> None:
    asked = {"model": "deepseek-v3", "gpu": "h200", "gpus": 8, "prices": "laws"}
    rows = specmargin.plan("deepseek-v3", gpu="h200", gpus=8, prices="laws").to_dict()["rows"]
    lines = figure(client, **asked)["tables"]["lines"]
    for row in rows:
        (plain,) = [line for line in lines if line["batch"] == row["batch"] and line["side"] == "no speculation"]
        assert plain["user"] == pytest.approx(1 / row["no_spec_tpot_seconds"], rel=1e-3)
        assert plain["gpu"] == pytest.approx(row["no_spec_tokens_per_second"] / 8, rel=1e-3)
        drawn = [line for line in lines if line["batch"] == row["batch"] and line["side"] != "no speculation"]
        assert len(drawn) == row["fits"]
        if drawn:
            assert drawn[0]["gpu"] == pytest.approx(row["goodput_tokens_per_second"] / 8, rel=1e-3)


def test_measured_points_have_release_date_and_source(client: httpx.Client) -> None:
    for point in all_measured_points():
        assert point.model in model_names() and point.gpu in device_names()
        assert point.engine and point.source and point.date.startswith("2026-")
    drawn = figure(client, model="kimi-k2.5", gpu="rtx-pro-6000", gpus=8)
    assert len(drawn["tables"]["measured"]) == 16 and "vLLM 0.20.2rc1" in drawn["takeaway"]
    ring = drawn["tables"]["measured"][0]
    assert {"engine", "date", "source", "batch", "user", "gpu"} <= set(ring)
    assert figure(client, model="kimi-k2.5", gpu="b200", gpus=8)["tables"]["measured"] == []


def test_it_is_drawn_on_the_page(open_page: Callable[..., Page]) -> None:
    page = open_page("/?model=qwen3-30b-a3b&gpu=h200&prices=laws")
    page.wait_for_selector("#numbers dd")
    page.locator("#figure-pareto").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-pareto svg .mark-line path")
    assert page.locator("#figure-pareto svg .mark-symbol path").count() >= 30
