"""The committed table of engine releases × features is what the check finds in the releases' sources."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from lab.live import releases

from specmargin.live.parts import ENGINES, Feature, parts_list
from tests.engine_files import absent, fetch_engines

ROWS = releases.read_rows(fetch_engines.TABLE.read_text())
PAGE = releases.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.engine}-{row.release}")
def test_a_release_has_the_features_of_its_row(row: releases.Row) -> None:
    if not fetch_engines.is_fetched(row.engine, row.release):
        absent(f"{row.engine} {row.release} is not there")
    assert releases.check(row.engine, row.release, row.day) == row


def test_the_page_shows_the_table() -> None:
    since, asked = map(date.fromisoformat, re.findall(r"releases from (\S+) to (\S+):", PAGE)[0])
    assert releases.page_text(ROWS, PAGE, asked=asked, since=since) == PAGE
    assert since == releases.six_months_before(asked)
    assert all(since <= row.day <= asked for row in ROWS)
    assert {row.engine for row in ROWS} == set(ENGINES)


def test_tested_releases_have_every_feature() -> None:
    for engine in ENGINES:
        listed = parts_list(engine)
        tested = [row for row in ROWS if row.engine == engine and row.release.startswith(listed.tested)]
        assert len(tested) >= len(listed.tested)
        assert all(row.cells[[*Feature].index(one)] == "yes" for row in tested for one in listed.features)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_module_that_has_parts_is_fetched(engine: str) -> None:
    """Otherwise a release would lack them only here."""
    for module in {part.module for part in parts_list(engine).parts}:
        path = module.replace(".", "/")
        wanted = fetch_engines.PARTS[engine]
        assert f"{path}.py" in wanted or f"{path}/__init__.py".startswith(wanted) or f"{path}.py".startswith(wanted)


@pytest.mark.parametrize(("today", "before"), [("2026-11-18", "2026-05-18"), ("2026-03-31", "2025-09-28")])
def test_six_months(today: str, before: str) -> None:
    assert releases.six_months_before(date.fromisoformat(today)) == date.fromisoformat(before)


def test_without_an_index_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(fetch_engines, "released", offline)
    monkeypatch.setattr(fetch_engines, "TABLE", tmp_path / "table.csv")
    assert releases.main([]) == 1
    assert "The package index does not answer (no route): nothing is written." in capsys.readouterr().err
    assert not fetch_engines.TABLE.exists()
