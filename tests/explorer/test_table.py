"""The front table: its cells are those of `plan`, it reads without scripts, filters, sorts, and leads to scenarios."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import specmargin
from specmargin.show.explorer.front import BATCHES, bundled, bundled_prices, cell_from
from specmargin.show.site.build import Selection, build_cells
from specmargin.show.site.pages import write_pages
from tests.explorer.conftest import folder_served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DATA = bundled()
CELLS = [
    (model, gpu, engine, drafter)
    for model, by_gpu in DATA["cells"].items()
    for gpu, by_engine in by_gpu.items()
    for engine, by_drafter in by_engine.items()
    for drafter in by_drafter
]


@pytest.mark.parametrize("cell", random.Random(7).sample(CELLS, 12), ids="-".join)
def test_a_cell_is_what_plan_answers(cell: tuple[str, str, str, str]) -> None:
    """Where this fails after a change of prices, `make front` writes the cells again."""
    model, gpu, engine, drafter = cell
    shown = cell_from(DATA["cells"][model][gpu][engine][drafter])
    if shown.refused is not None:
        return
    fixed = {"engine": engine, "drafter": shown.drafter, "prices": bundled_prices(gpu)}
    asked: dict[str, Any] = {"gpus": shown.gpus, **fixed}
    plan = specmargin.plan(model, gpu=gpu, **asked).to_dict()
    assert shown.stops == plan["stops_at_batch"] and shown.fits == plan["largest_batch"]
    rows = {row["batch"]: row for row in plan["rows"] if row["fits"]}
    for batch, mark in zip(BATCHES, shown.marks, strict=True):
        assert (mark.kind == "full") == (batch not in rows)
        if batch in rows:
            assert mark.speedup == pytest.approx(rows[batch]["speedup"], abs=6e-4)
            spans = rows[batch]["depth"] > 0 and rows[batch]["speedup_low"] <= 1 <= rows[batch]["speedup_high"]
            assert not spans or mark.kind == "uncertain"
            assert mark.kind != "pays" or rows[batch]["speedup_low"] > 1


def test_most_cells_have_a_plan_and_several_kinds_occur() -> None:
    marks = [cell_from(DATA["cells"][m][g][e][d]) for m, g, e, d in CELLS]
    kinds = {mark.kind for cell in marks for mark in cell.marks}
    assert {"pays", "uncertain"} <= kinds
    assert sum(cell.refused is None for cell in marks) > 0.8 * len(marks)
    assert any(cell.gpus > 1 for cell in marks)


# --- the local page ---


def test_the_table_is_served_as_html_and_refuses_what_it_lacks(client: httpx.Client) -> None:
    page = client.get("/table")
    assert page.status_code == 200 and page.text.count("<tr data-model") == len(DATA["models"])
    assert client.get("/table").elapsed.total_seconds() < 1.0  # rendered once
    other = client.get("/table", params={"engine": "sglang", "drafter": "ngram"}).text
    assert other != page.text and "aria-current=true>SGLang" in other
    refused = client.get("/table", params={"engine": "<b>"})
    assert refused.status_code == 400 and "vllm, sglang" in refused.json()["error"]


def test_it_is_a_plain_table_without_scripts(browser: Browser, server: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server}/table")
    assert page.locator("#front tbody tr").count() == len(DATA["models"])
    assert not page.locator("#filters").is_visible()
    assert "×" in page.locator("#front td").first.inner_text()
    page.click("text=SGLang")  # switches are links
    assert parse_qs(urlsplit(page.url).query)["engine"] == ["sglang"]
    context.close()


def test_its_basis_and_every_word_of_its_cells_are_explained_above_the_rows(client: httpx.Client) -> None:
    page = client.get("/table").text
    above, table = page.split('<table id="front">')
    assert "Context 1,024. Prices: laws fitted to measured kernels" in above and "borrowed" in above
    key = above[above.index('class="key"') :]
    shades = set(re.findall(r'class="m b\d+ ([a-z]+(?: p\d)?)"', table))
    assert len(shades) > 4 and all(f'class="m {shade}"' in key for shade in shades)
    stops = {" ".join(words.split()[:2]) for words in re.findall(r'class="stop">([^<]+)<', table)}
    words = stops | set(re.findall(r'class="none"[^>]*>([^<]+)<', table))
    assert words and all(f"<b>{word}" in key for word in words)


def test_filter_sort_and_batch(open_page: Callable[..., Page]) -> None:
    page = open_page("/table")
    shown = "() => [...document.querySelectorAll('#front tbody tr:not([hidden])')].map((row) => row.dataset.model)"
    page.fill("#by-model", "gpt-oss deepseek")
    assert all("gpt-oss" in name or "deepseek" in name for name in page.evaluate(shown))
    page.fill("#by-model", "")
    page.select_option("#by-kind", "dense")
    assert "llama-3.1-8b" in page.evaluate(shown) and "deepseek-v3" not in page.evaluate(shown)
    page.select_option("#by-kind", "")
    page.fill("#by-gpu", "h200")
    assert page.locator("#front thead th:visible").count() == 2
    page.fill("#by-gpu", "")
    page.check("[name=shown][value='64']")
    assert not page.locator("td .m.b16").first.is_visible()
    page.click("#front th[data-sort=h200] button")
    values = page.evaluate(
        "() => [...document.querySelectorAll('#front tbody td[data-gpu=h200]')]"
        ".map((td) => Number(td.dataset.by?.split(',')[2] || -1))"
    )
    assert values == sorted(values, reverse=True) and values[0] > 1
    page.click("#front th[data-sort=model] button")
    assert page.evaluate(shown) == sorted(page.evaluate(shown))


def test_a_phone_has_short_rows_until_another_batch_is_chosen(open_page: Callable[..., Page]) -> None:
    page = open_page("/table", width=400, height=800)
    page.wait_for_selector("#filters:not([hidden])")
    assert page.is_checked("[name=shown][value='16']") and not page.locator("td .m.b64").first.is_visible()
    height = "() => document.querySelector('#front tbody tr').offsetHeight"
    short = page.evaluate(height)
    assert page.evaluate("() => document.querySelector('#front').getBoundingClientRect().top") < 620
    page.check("[name=shown][value='all']")
    assert page.locator("td .m.b64").first.is_visible() and page.evaluate(height) > short + 40


def test_a_cell_leads_to_its_scenario(open_page: Callable[..., Page]) -> None:
    page = open_page("/table")
    link = page.locator("tr[data-model='qwen3.6-35b-a3b'] td[data-gpu=h200] a")
    shown = link.locator(".m.b16").inner_text()
    link.click()
    page.wait_for_selector("#numbers dd")
    assert shown.split()[-1] in page.inner_text("[data-tile='speed-up']")
    assert "prices: laws fitted to measured kernels" in page.inner_text("#subject")  # as the table says
    page.click("#to-table")
    page.wait_for_selector("#front")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_and_width(open_page: Callable[..., Page], axe_source: str, theme: str) -> None:
    page = open_page("/table", width=400 if theme == "dark" else 1280, color_scheme=theme)
    page.evaluate(axe_source)
    found = page.evaluate("() => axe.run()")["violations"]
    assert [entry["id"] for entry in found if entry["impact"] in ("serious", "critical")] == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


# --- the static site ---


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("table-site")
    selection = Selection(
        models=("gpt-oss-20b",), gpus=("h100", "rtx-4090"), engines=("vllm", "sglang"), drafters=("own", "ngram")
    )
    write_pages(folder, selection, build_cells(selection, folder, 1)[0], None)
    with folder_served(folder) as address:
        yield address


def test_the_sites_root_is_the_table_and_its_cells_agree_with_the_page(browser: Browser, site: str) -> None:
    page, faults = browser.new_page(), []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(site)
    assert page.locator("#front tbody tr").count() == 1 and page.locator("#filters").is_visible()
    page.click(".switch >> text=n-gram")
    assert page.url.endswith("table/vllm-ngram/")
    page.click(".switch >> text=SGLang")
    assert page.url.endswith("table/sglang-ngram/")
    link = page.locator("td[data-gpu=h100] a")
    shown = link.locator(".m.b16").inner_text().split()[-1]
    link.click()
    page.wait_for_selector("#numbers dd")
    plan: dict[str, Any] = specmargin.plan("gpt-oss-20b", gpu="h100", engine="sglang", drafter="ngram").to_dict()
    (row,) = [row for row in plan["rows"] if row["batch"] == 16]
    assert shown in (f"{row['speedup']:.2f}×", "uncertain", "off", "room")
    assert "sglang" in page.url
    page.locator("#figure-pareto").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-pareto svg .mark-line path")
    assert "tokens/s per user" in page.inner_text("#figure-pareto .takeaway")
    page.click("#to-table")
    page.wait_for_selector("#front")
    assert page.url == site
    page.close()
    assert faults == []


def test_links_of_the_sites_root_from_before_lead_to_the_explorer(browser: Browser, site: str) -> None:
    page = browser.new_page()
    page.goto(f"{site}?gpu=rtx-4090&batch=4")
    page.wait_for_selector("#numbers dd")
    assert "gpu=rtx-4090" in page.url and "batch=4" in page.url
    page.close()
