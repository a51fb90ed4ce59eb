"""Third-party measurements of served models (aiconfigurator-core's silicon_sample.csv), aggregated mode."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from lab.validation.accuracy import ACCURACY
from lab.validation.served.errors import ServedReport, peer_report, served_report
from lab.validation.served.peer import stratified
from lab.validation.served.rows import ServedRow, architecture_of, served_rows
from lab.validation.served.tpot import Wrapper

from specmargin.hardware.layout import Layout
from tests.conftest import ROOT


def _silent(_: str) -> Wrapper:
    return iter


@pytest.fixture(scope="module")
def rows() -> list[ServedRow]:
    return served_rows()


@pytest.fixture(scope="module")
def report(rows: list[ServedRow]) -> ServedReport:
    """Every row."""
    return served_report(rows, _silent)


def test_all_aggregated_rows_are_read(rows: list[ServedRow]) -> None:
    assert len(rows) == 3619
    assert sum(row.is_moe for row in rows) == 2556
    assert all(row.tpot_seconds > 0 for row in rows)


def test_gpus_that_two_sources_count_twice(rows: list[ServedRow]) -> None:
    """Two sources list TP 8 × EP 8 of one host as 64 GPUs; a third lists the same measurements with 8 GPUs."""
    assert max(row.layout.gpus for row in rows if row.device == "h200") <= 16
    sizes = Counter(row.layout.gpus for row in rows if row.is_moe)
    assert sizes[8] > sizes[64]


def test_formats_as_served(rows: list[ServedRow]) -> None:
    assert architecture_of("deepseek-ai/DeepSeek-R1", "nvfp4").parameters == pytest.approx(671e9, rel=0.01)
    names = {row.family for row in rows}
    assert {"DeepSeek", "gpt-oss", "Qwen3-235B", "Kimi-K2.5"} <= names


def test_nine_of_ten_moe_rows_are_priced_and_the_rest_is_named(report: ServedReport) -> None:
    priced = sum(row.is_moe for row in report.rows)
    assert priced / report.moe_rows >= 0.9
    assert priced + sum(report.refused.values()) == report.moe_rows
    assert all("do not divide" in reason for reason in report.refused)


def test_moe_rows_within_twelve_percent(report: ServedReport) -> None:
    """Median absolute error, with the rows of a model on a GPU held out of its engine time."""
    lines = {(line.group, line.source): line for line in report.lines()}
    tables, laws, sheet = (lines["MoE", source] for source in ("tables", "laws", "datasheet"))
    assert tables.median_error <= 0.12
    assert laws.median_error <= 0.12
    assert sheet.median_error > 3.0 * tables.median_error
    assert lines["MoE, no conflicting rows", "tables"].p90_error < tables.p90_error


def test_the_peer_prices_the_same_rows(report: ServedReport, rows: list[ServedRow]) -> None:
    """A peer that is always right but refuses one engine: its errors are zero, and its refusals are counted."""

    def oracle(row: ServedRow) -> float | None:
        return None if row.engine == "sglang" else row.tpot_seconds

    compared = peer_report(report, rows, oracle, wanted=40, seed=1, track=_silent)
    whole = {line.source: line for line in compared.lines if line.group == "sample"}
    assert whole["aiconfigurator"].rows == whole["tables"].rows == 40
    assert whole["aiconfigurator"].median_error == pytest.approx(0.0)
    assert compared.refused_by_peer > 0
    assert compared.sampled >= 40 + compared.refused_by_peer
    again = peer_report(report, rows, oracle, wanted=40, seed=1, track=_silent)
    assert again.lines == compared.lines


def test_a_sample_has_every_group_first(rows: list[ServedRow]) -> None:
    groups = {(row.family, row.device, row.engine) for row in rows}
    first = stratified(rows, seed=3)[: len(groups)]
    assert {(row.family, row.device, row.engine) for row in first} == groups


def test_layouts_are_what_they_say() -> None:
    assert Layout(gpus=8, attention_copies=8, expert_split=1).sequence_ranks == 8
    assert np.isclose(Layout(gpus=8).attention_ranks, 8)


def test_the_page_says_what_the_command_prints(report: ServedReport) -> None:
    lines = [line for line in report.lines() if line.group == "MoE"]
    cells = " | ".join(f"{line.median_error:.1%} ({line.p90_error:.0%})" for line in lines)
    row = f"| {lines[0].rows:,} MoE rows (98% of all; the rest refused by name) | {cells} | |"
    assert row in (ROOT / "docs" / "results" / "accuracy.md").read_text()
    (written,) = [line for line in json.loads(ACCURACY.read_text()) if "served MoE rows" in line["what"]]
    assert list(written["errors"].values()) == cells.split(" | "), "run `make lab`, then `make readme`"
