"""The page as it loads in a real Chromium: its first sentence, its policy, without scripts and on a phone.

Layout shift and the time to the answer: `tests/lab/test_page_loading.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("vl_convert")
from specmargin.show.site.build import Selection, build_cells
from specmargin.show.site.pages import write_pages
from tests.explorer.conftest import folder_served

MODEL = "qwen3.6-35b-a3b"


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    selection = Selection(models=(MODEL,), gpus=("h200",), engines=("vllm",), drafters=("own", "ngram"))
    write_pages(folder, selection, build_cells(selection, folder, 1)[0], None)
    with folder_served(folder) as address:
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 400, "height": 800})
    yield opened
    opened.close()


def test_a_reader_without_scripts_gets_the_answer(browser: Browser, small_site: str, server: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{small_site}{MODEL}/")
    told = page.inner_text("main")
    assert "at batch 1" in told and "--speculative-config" in told and page.locator("main table tr").count() >= 10
    assert page.is_hidden("#controls") and page.is_hidden("#engine")
    page.goto(f"{server}/?prices=laws&model=gpt-oss-20b&batch=4")
    page.click("noscript a")
    assert page.url == f"{server}/plain?prices=laws&model=gpt-oss-20b&batch=4"
    assert page.inner_text("h1") == "gpt-oss-20b on h200" and "--speculative-config" in page.inner_text("pre")
    context.close()


def test_the_plain_page_escapes_its_query(server: str) -> None:
    hostile = httpx.get(f'{server}/?x=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&y="><script>')
    assert "<script>alert" not in hostile.text and '"><script>"' not in hostile.text
    assert httpx.get(f"{server}/plain?model=nothing-like-it").status_code == 422


def test_the_site_allows_only_its_own_scripts(page: Page, small_site: str) -> None:
    page.goto(f"{small_site}{MODEL}/")
    page.wait_for_selector("#numbers dd")
    page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.hostile = 1'; document.body.append(s); }"
    )
    assert page.evaluate("() => window.hostile === undefined")
    assert page.evaluate("() => fetch('https://example.org/').then(() => 'sent', () => 'blocked')") == "blocked"


def test_the_site_says_what_it_leaves_out_of_a_link(page: Page, small_site: str) -> None:
    page.goto(f"{small_site}{MODEL}/?weights=fp8&concurrency=64&gpus=8&batch=4&utm_source=mail")
    page.wait_for_selector("#numbers dd")
    said = page.inner_text("#notices")
    assert "does not vary concurrency, weights and gpus" in said and "weights=fp8" in said and "answer is for 1" in said
    assert "utm_source" not in said
    page.goto(f"{small_site}{MODEL}/?batch=4&gpus=1")
    page.wait_for_selector("#numbers dd")
    assert page.is_hidden("#notices")


@pytest.mark.parametrize("width", [400, 1280])
def test_the_first_sentence_says_what_the_page_is_about(page: Page, server: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{server}/?prices=laws")
    page.wait_for_selector("#numbers dd")
    intro = page.locator("#intro")
    assert "Speculative decoding" in intro.inner_text() and "mixture of experts" in intro.inner_text()
    top, bottom = page.eval_on_selector(
        "#intro", "e => [e.getBoundingClientRect().top, e.getBoundingClientRect().bottom]"
    )
    assert top >= 0 and bottom < 400


def test_the_table_by_batch_shows_ten_rows(page: Page, server: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{server}/?prices=laws")
    page.wait_for_selector("#numbers dd")
    page.click("#by-batch summary")
    assert page.locator("#rows tbody tr").count() == 10
    hidden = page.eval_on_selector("#by-batch .scroll", "e => e.scrollHeight - e.clientHeight")
    assert hidden <= 1


#: But for drafters: names of published heads are longer than any list; the chosen one's is in full beside the answer.
_CLIPPED = """() => [...document.querySelectorAll("#controls select:not([name=drafter])")]
  .filter((e) => e.offsetParent).flatMap((e) => {
  const style = getComputedStyle(e), pen = document.createElement("canvas").getContext("2d");
  pen.font = style.font;
  const room = e.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 18; // its arrow
  return [...e.options].map((o) => o.textContent).filter((text) => pen.measureText(text).width > room);
})"""


@pytest.mark.parametrize("width", [400, 1280])
def test_no_name_of_a_list_is_clipped(page: Page, server: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{server}/?prices=laws")
    page.wait_for_selector("#numbers dd")
    if width == 400:
        page.click("#drawer")
    assert page.locator("[name=model] option").count() > 30
    assert page.evaluate(_CLIPPED) == []
    assert "the model's MTP head" in page.inner_text("#subject")
    assert "256 experts" in page.inner_text("#sizes") and "141 GB" in page.inner_text("#sizes")


# --- the drawer of a phone ---


def test_a_closed_drawer_is_out_of_reach_and_a_click_outside_closes_it(page: Page, server: str) -> None:
    page.goto(f"{server}/?prices=laws")
    page.wait_for_selector("#numbers dd")
    assert page.eval_on_selector("#controls", "e => e.inert") and page.locator("main").get_attribute("inert") is None
    for _ in range(25):
        page.keyboard.press("Tab")
        assert not page.evaluate("() => document.querySelector('#controls').contains(document.activeElement)")
    page.evaluate("() => scrollTo(0, 0)")
    page.click("#drawer")
    assert not page.eval_on_selector("#controls", "e => e.inert") and page.eval_on_selector("main", "e => e.inert")
    page.mouse.click(390, 400)  # beside it
    assert page.get_attribute("#drawer", "aria-expanded") == "false"
    assert page.eval_on_selector("#controls", "e => e.inert") and not page.eval_on_selector("main", "e => e.inert")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("() => !document.querySelector('#controls').inert")
