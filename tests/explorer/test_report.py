"""The report: one file that needs nothing and nobody."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from specmargin._version import __version__
from specmargin.cli.main import run
from specmargin.errors import InputError
from specmargin.show.explorer.gallery import GALLERY
from specmargin.show.explorer.jobs import Jobs
from specmargin.show.explorer.schema import Progress
from specmargin.show.explorer.words import bottleneck, size
from specmargin.show.figures.theme import DARK_OF, PAIRED
from tests.explorer.test_api import planned

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCENARIO = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    run("report", [*SCENARIO, "-o", str(path)])
    return path.read_text(encoding="utf-8")


def test_it_runs_nothing_and_fetches_nothing(text: str) -> None:
    assert "<script" not in text.lower()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!#)""", text)  # not even a link: the command has none
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def cells(text: str, batch: int) -> dict[str, str]:
    """The row of a batch, by name of its column."""
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", text)
    by_name = [dict(re.findall(r'<td data-name="([^"]+)">(.*?)</td>', row)) for row in rows]
    return next(row for row in by_name if row["batch"] == f"{batch:,}")


def test_it_says_what_plan_says(text: str) -> None:
    expected = planned(*SCENARIO)
    assert html.escape(expected["verdict"]) in text
    assert html.escape(expected["config"]) in text
    for row in expected["rows"]:
        shown = cells(text, row["batch"])
        assert shown["speed-up"] == f"{row['speedup']:.2f}×"
        assert shown["bottleneck"] == html.escape(bottleneck(row["bound_by"]))
        assert shown["draft"] == (str(row["depth"]) if row["fits"] else f"({row['depth']})")


def test_rows_that_do_not_fit_are_marked(text: str) -> None:
    unfit = [row for row in planned(*SCENARIO)["rows"] if not row["fits"]]
    assert unfit and text.count("class=unfit") == len(unfit)
    assert "In parentheses: does not fit in memory" in text


def test_it_says_when_by_what_and_how_it_was_made(text: str) -> None:
    assert re.search(rf"Specmargin {re.escape(__version__)}, 20\d\d-\d\d-\d\d \d\d:\d\d UTC", text)
    assert "<pre>specmargin report qwen3.6-35b-a3b --gpu h200 --prices laws -o report.html</pre>" in text


def test_it_has_the_story_and_the_figures_in_light_and_dark(text: str) -> None:
    assert "MoE layers: extra tokens read experts" in text and "<h3>Verdict</h3>" in text
    assert text.count("<figure ") >= 12
    assert text.count('class="light"') == text.count('class="dark"')
    assert text.count('class="light"') + text.count('class="both"') == text.count("<figure ") == text.count("Source: ")
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))


def test_one_drawing_has_the_colours_of_both_themes(text: str) -> None:
    """Every colour of a drawing that serves both themes has a dark one in the style sheet."""
    drawings = re.findall(r'<div class="both">(.*?)</svg>', text, flags=re.S)
    colours = {colour for drawing in drawings for colour in re.findall(r'(?:fill|stroke)="(#\w+)"', drawing)}
    assert len(colours) > 8
    assert colours <= set(DARK_OF) | {"#000"}


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
    colour = "e => getComputedStyle(e).fill"
    ink = page.locator(f'.both text[fill="{PAIRED.ink}"]').first
    assert ink.evaluate(colour) == "rgb(28, 39, 51)"
    page.emulate_media(color_scheme="dark")
    assert ink.evaluate(colour) == "rgb(230, 235, 240)"
    assert page.locator("figure .dark svg").first.is_visible()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    shown = "all => all.filter(e => e.clientWidth).map(e => e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
    scales = page.eval_on_selector_all(".drawing svg", shown)
    assert len(scales) >= 12 and min(scales) > 0.55  # of 11 pixels, as a label has: still to be read
    beside = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
    assert page.eval_on_selector_all(".drawing", beside) == []
    for cell in page.locator("tbody tr:first-child td").all():
        box = cell.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400
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


# --- from the page ---


def test_the_page_shows_the_progress_of_its_report_and_the_report_links_back(open_page: Callable[..., Page]) -> None:
    page = open_page("/?model=qwen3-30b-a3b&prices=laws&batch=32")
    page.wait_for_selector('#report[href*="qwen3-30b-a3b"]')
    with page.expect_download(timeout=120_000) as saved:
        page.click("#report")
        page.wait_for_selector("#report-progress progress")
        assert page.get_attribute("#report", "aria-busy") == "true"
        said = page.locator("#report-progress [role=status]")
        counts = set()
        for _ in range(400):  # a figure takes a tenth of a second, and seconds on a busy machine
            page.wait_for_timeout(50)
            counts |= {text for text in said.all_inner_texts() if re.fullmatch(rf"Figure \d+ of {len(GALLERY)}", text)}
            if len(counts) >= 2:
                break
    assert len(counts) >= 2
    assert saved.value.suggested_filename == "report.html"
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    address = page.url.partition("?")[0]
    assert f'<a href="{address}?model=qwen3-30b-a3b&amp;prices=laws&amp;batch=32">' in text
    page.wait_for_selector("#report-progress", state="detached")


def test_progress_is_kept_by_job_and_only_of_the_last_ones(client: httpx.Client) -> None:
    jobs = Jobs()
    advance = jobs.started("a" * 8, 3)
    advance()
    assert jobs.progress("a" * 8) == Progress(done=1, total=3)
    for number in range(64):
        jobs.started(f"{number:08x}", 1)
    assert jobs.progress("a" * 8) == Progress()
    advance()  # forgotten: nothing happens
    assert client.get("/api/report/progress", params={"job": "f" * 16}).json() == {"done": 0, "total": 0}
    assert client.get("/api/report/progress", params={"job": "../x"}).status_code == 422


@pytest.mark.parametrize(
    ("parameters", "shown"), [(34.66e9, "34.7 B"), (1.573e12, "1.57 T"), (12.3e6, "12.3 M"), (999.8e9, "1 T")]
)
def test_sizes_of_models_have_three_digits(parameters: float, shown: str) -> None:
    assert size(parameters) == shown
