"""The report: one file that needs nothing and nobody."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from specmargin.cli.main import run
from specmargin.errors import InputError
from tests.explorer.test_api import planned

SCENARIO = ["qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    run("report", [*SCENARIO, "-o", str(path)])
    return path.read_text(encoding="utf-8")


def test_it_runs_nothing_and_fetches_nothing(text: str) -> None:
    assert "<script" not in text.lower()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!#)""", text)
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_it_says_what_plan_says(text: str) -> None:
    expected = planned(*SCENARIO)
    assert html.escape(expected["verdict"]) in text
    assert html.escape(expected["config"]) in text
    for row in expected["rows"]:
        assert f"<td>{row['batch']:,}</td><td>{row['depth']}</td><td>{row['speedup']:.2f}×</td>" in text


def test_it_has_the_story_and_the_figures_in_light_and_dark(text: str) -> None:
    assert "MoE layers: extra tokens read experts" in text and "<h3>Verdict</h3>" in text
    assert text.count("<figure") >= 12
    assert text.count('class="light"') == text.count('class="dark"') == text.count("<figure")
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))


def test_it_draws_in_the_browser_without_a_complaint(text: str, tmp_path: Path, browser: object) -> None:
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    page = browser.new_page()  # type: ignore[attr-defined]
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else faults.append(asked.url))
    page.goto(path.as_uri())
    assert page.locator("figure .light svg").first.is_visible()
    assert not page.locator("figure .dark svg").first.is_visible()
    page.close()
    assert faults == []


def test_it_is_not_written_over_anything(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(InputError, match="give --force"):
        run("report", [*SCENARIO, "-o", str(path)])
    with pytest.raises(InputError, match=r"must end in \.html"):
        run("report", [*SCENARIO, "-o", str(tmp_path / "report.pdf")])
    assert path.read_text() == "mine"
