"""The page in a real Chromium: the answer, refusals, comparison, commands, the glossary and small screens."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import specmargin
from specmargin.show.explorer.gallery import GALLERY, DoesNotApplyError, absent_figures, figure
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.uploads import Uploads
from specmargin.show.explorer.view import view_of
from tests.explorer.test_api import planned
from tests.explorer.test_browser import Open, after, slide

if TYPE_CHECKING:
    from playwright.sync_api import Page

COMPARED = "/?prices=laws&vs=gpu%3Db200%26prices%3Dlaws"


def answered(page: Page) -> Page:
    page.wait_for_selector("#numbers dd")
    return page


def in_view(page: Page, selector: str) -> bool:
    script = (
        "e => { const b = e.getBoundingClientRect(); return b.top >= 0 && b.bottom <= innerHeight && b.height > 0; }"
    )
    return bool(page.eval_on_selector(selector, script))


# --- the answer ---


def test_a_drafter_that_no_engine_runs_has_nothing_to_copy(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&drafter=ssd"))
    assert page.inner_text("#line").startswith("Not yet: ")
    assert "leave speculation" not in page.inner_text("#engine")
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--drafter", "ssd")
    note = plan["config_notes"][0]
    assert page.inner_text("#no-flags") == f"{note[0].upper()}{note[1:]}."
    assert page.is_disabled("#copy") and not page.is_visible("#flags") and not page.is_visible("#serve-part")


def test_there_is_one_schedule_on_the_page_the_one_in_the_flags(kept_page: Page) -> None:
    page = kept_page
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws")
    shown = page.eval_on_selector_all(
        "#strip li", "all => all.map(e => [e.dataset.first, e.dataset.last, e.dataset.depth])"
    )
    fits = plan["largest_batch"]
    expected = [[a, min(b, fits), depth] for a, b, depth in plan["schedule"] if a <= fits]
    assert [[int(value) for value in entry] for entry in shown] == expected
    said = page.locator("#bullets li[data-topic=verdict]").all_inner_texts()
    assert [page.inner_text("#line"), *said] == plan["verdict"].splitlines()


def test_the_answer_stays_in_sight(kept_page: Page) -> None:
    page = kept_page
    page.mouse.wheel(0, 4000)
    page.wait_for_function("() => scrollY > 1000")
    assert in_view(page, "#line")


def test_two_columns_from_1200_pixels_on_and_absent_cards_are_gone(open_page: Open) -> None:
    wide = answered(open_page("/?prices=laws&model=qwen3.6-27b", width=1200))
    columns = "e => getComputedStyle(e).gridTemplateColumns.split(' ').length"
    grid = wide.locator(".figures:not([hidden]) .grid").first
    assert grid.evaluate(columns) == 2
    assert not wide.is_visible("#figure-coverage") and not wide.is_visible("text=Nothing to draw")
    assert not wide.is_visible("section[aria-label='Other experts']")
    narrow = answered(open_page("/?prices=laws&model=qwen3.6-27b", width=1199))
    assert narrow.locator(".figures:not([hidden]) .grid").first.evaluate(columns) == 1


@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "qwen3.6-27b", "llama-3.1-8b"])
def test_absent_figures_are_those_that_refuse(model: str) -> None:
    files = Uploads()
    view = view_of(Query(model=model, prices="laws"), files)
    refused = []
    for name, entry in GALLERY.items():
        if entry.slow and name not in ("reliability", "joint", "ladder", "design"):
            continue
        try:
            figure(name, view)
        except DoesNotApplyError:
            refused.append(name)
    files.close()
    assert sorted(absent_figures(view)) == sorted(refused)


# --- refusals ---


def test_a_refusal_is_in_sight_and_in_the_words_of_the_page(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&model=qwen3-30b-a3b"))
    page.mouse.wheel(0, 3000)
    line = page.inner_text("#line")
    page.select_option("[name=drafter]", "mtp")  # it has none
    page.wait_for_selector("#error:not([hidden])")
    said = page.inner_text("#error")
    assert "has no MTP head" in said and "--" not in said
    assert in_view(page, "#error")
    assert page.input_value("[name=drafter]") == ""
    page.click("#reset")
    page.wait_for_selector("#error", state="hidden")
    page.wait_for_selector("#subject:has-text('qwen3.6-35b-a3b')")
    assert line != page.inner_text("#line")


def test_a_raised_number_of_gpus_is_not_kept_for_the_next_model(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws"))
    page.select_option("[name=model]", "deepseek-v3")
    page.wait_for_selector("#subject:has-text('8 × h200')")
    assert "8 GPUs" in page.inner_text("#model-hint")
    page.select_option("[name=model]", "gpt-oss-20b")
    page.wait_for_selector("#subject:has-text('gpt-oss-20b on h200')")
    assert page.input_value("[name=gpus]") == "1" and "gpus" not in page.url


def test_a_number_of_gpus_that_the_reader_chose_is_kept(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws"))
    page.select_option("[name=gpus]", "2")
    page.wait_for_selector("#subject:has-text('2 × h200')")
    page.select_option("[name=model]", "gpt-oss-20b")
    page.wait_for_selector("#subject:has-text('gpt-oss-20b')")
    assert page.inner_text("#subject").startswith("gpt-oss-20b on 2 × h200")
    assert page.input_value("[name=gpus]") == "2" and "gpus=2" in page.url


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("batch=many&prices=laws", "Ignored in this link: Batch must be a whole number, got 'many'. Using 16."),
        ("gpu=h20O&prices=laws", "Ignored in this link: GPU: 'h20O' is not a bundled GPU"),
        ("context=-3&prices=laws", "Ignored in this link: Context must be at least 0, got -3. Using 1024."),
        ("concurrency=4&qps=2&prices=laws", "Ignored in this link: Give one load"),
        ("prices=laws&vs=gpu%3Dnothing", "The comparison in this link is left out."),
    ],
)
def test_bad_links_fall_back_and_say_so(open_page: Open, address: str, said: str) -> None:
    page = answered(open_page(f"/?{address}", expect="Failed to load resource"))
    assert said in page.inner_text("#notices")
    assert "NaN" not in page.inner_text("body") and "--" not in page.inner_text("#notices")
    assert page.inner_text("#line").startswith(("Yes: ", "Only if 161 sequences at a time are enough: "))


@pytest.mark.parametrize(
    ("address", "said", "offer"),
    [
        ("model=upload:0123456789abcdef", "drop it on the page again", None),
        ("model=llama-3.1-8b&routing=uniform:x&prices=laws", "uniform", "Without routing profile"),
    ],
)
def test_a_link_without_an_answer_shows_no_other_scenario(
    open_page: Open, address: str, said: str, offer: str | None
) -> None:
    page = open_page(f"/?{address}", expect="Failed to load resource")
    page.wait_for_selector("#error:not([hidden])")
    assert said in page.inner_text("#error") and page.inner_text("#line").startswith("No answer for ")
    assert page.url.endswith(address) and not page.is_visible("#verdict")
    if offer is not None:
        page.click(f"#fixes button:has-text('{offer}')")
        answered(page)
        assert page.inner_text("#subject").startswith("llama-3.1-8b on h200")


# --- controls ---


def test_a_load_is_answered_as_plan_answers_it(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&model=gpt-oss-20b"))
    page.select_option("#mode", "concurrency")
    page.wait_for_selector("#line:has-text('concurrency 32')", timeout=120_000)
    page.fill("[name=isl]", "2000")
    page.keyboard.press("Enter")
    page.wait_for_selector("#subject:has-text('context 2,150')")
    load = ("--concurrency", "32", "--isl", "2000", "--osl", "300")
    asked = ("gpt-oss-20b", "--gpu", "h200", "--prices", "laws")
    plan = planned(*asked, *load)
    assert f"{plan['service']['speedup']:.2f}×" in page.inner_text("#line")
    assert page.text_content("#sentence") == plan["verdict"]
    assert page.input_value("[name=range_ratio]") == "0.5"
    page.fill("[name=range_ratio]", "0")
    page.keyboard.press("Enter")
    equal = planned(*asked, *load, "--range-ratio", "0")["verdict"]
    assert equal != plan["verdict"]
    page.wait_for_function("(text) => document.querySelector('#sentence').textContent === text", arg=equal)
    page.fill("[name=gpu_hour_price]", "3")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-tile='$/M tokens']")
    page.fill("[name=tpot_slo]", "500")
    page.keyboard.press("Enter")
    page.wait_for_selector("#bullets:has-text('meets the target of 500 ms')")
    page.select_option("#preset", "agent")
    page.wait_for_selector("#line:has-text('concurrency 16')")


def test_acceptance_as_a_list_or_a_length(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws"))
    page.select_option("[name=acceptance]", "typed")
    page.wait_for_selector("#typed", state="visible")
    page.fill("#typed", "0.7, 0.5 0.3")
    page.keyboard.press("Enter")
    page.wait_for_url("**acceptance=0.7%2C0.5%2C0.3*")
    page.select_option("[name=acceptance]", "length")
    page.wait_for_selector("#length", state="visible")
    page.fill("#length", "2.4")
    page.keyboard.press("Enter")
    page.wait_for_url("**acceptance=length%3A2.4%403*")
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--acceptance", "length:2.4@3")
    assert page.text_content("#sentence") == plan["verdict"]


def test_precisions_and_memory_reach_the_command(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws"))
    page.select_option("[name=weights]", "fp8")
    page.wait_for_selector("#subject:has-text('weights fp8')")
    page.select_option("[name=kv_cache]", "fp8")
    page.wait_for_selector("#subject:has-text('KV fp8')")
    page.click("#more summary")
    page.fill("[name=memory_utilization]", "0.8")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#serve').textContent.includes('0.8')")
    command = str(page.text_content("#serve"))
    assert "--kv-cache-dtype fp8" in command and "--gpu-memory-utilization 0.8" in command


# --- commands ---


def test_the_scenario_is_copied_as_command_line_and_as_python(open_page: Open) -> None:
    address = "/?model=qwen3-30b-a3b&gpu=h100&prices=laws&acceptance=0.70&context=4096&kv_cache=fp8&batch=8"
    page = answered(open_page(address))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    verdict = page.text_content("#sentence")
    page.click("#copy-command")
    page.wait_for_selector("#done:has-text('Command line copied')")
    verb, *arguments = shlex.split(page.evaluate("() => navigator.clipboard.readText()"))[1:]
    assert verb == "plan" and planned(*arguments)["verdict"] == verdict
    page.click("#copy-python")
    page.wait_for_selector("#done:has-text('Python copied')")
    code = page.evaluate("() => navigator.clipboard.readText()")
    names: dict[str, object] = {"print": lambda *_: None}
    exec(code, names)
    assert isinstance(names["plan"], type(specmargin.plan("llama-3.2-1b", gpu="h200", prices="laws")))
    assert names["plan"].verdict == verdict


# --- comparison ---


def lines(page: Page, name: str = "overlay-speedup") -> list[dict[str, object]]:
    """The rows of an overlay, as it shows them."""
    page.locator(f"#figure-{name}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#figure-{name} .chart svg .mark-line path")
    if not page.eval_on_selector(f"#figure-{name} details", "e => e.open"):
        page.click(f"#figure-{name} summary")
    table = page.locator(f"#figure-{name} table").first
    head = table.locator("thead th").all_inner_texts()
    rows = table.evaluate("t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))")
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_compared_scenarios_are_series_of_one_chart(open_page: Open) -> None:
    page = answered(open_page(COMPARED))
    assert page.locator("#sides li").count() == 2
    series = {row["series"] for row in lines(page)}
    assert series == {"h200", "b200"}
    assert page.locator("#figure-overlay-speedup .chart > svg, #figure-overlay-speedup .chart svg.marks").count() == 1
    width = "e => e.getBoundingClientRect().width"
    drawn = page.locator("#figure-overlay-speedup .chart svg").first.evaluate(width)
    assert drawn > 0.8 * page.locator("#figure-overlay-speedup .chart").evaluate(width)
    rows = page.locator("#compared tbody th").all_inner_texts()
    assert rows == ["h200", "b200"]
    assert page.locator("#sides li").nth(1).inner_text().count("%") == 2  # differences


def test_batch_and_context_move_together_unless_unlinked(open_page: Open) -> None:
    page = answered(open_page(COMPARED))
    expected = planned("qwen3.6-35b-a3b", "--gpu", "b200", "--prices", "laws", "--context", "8192", batch=64)
    after(page, slide(page, "context", 13))
    after(page, slide(page, "batch", 11))  # 64
    second = "#compared tbody tr:nth-child(2) td:nth-child(2)"
    assert "At batch 64" in page.inner_text("#compared caption")
    row = next(row for row in expected["rows"] if row["batch"] == 64)
    assert page.inner_text(second) == f"{row['speedup']:.2f}×"
    page.click("#linked")
    page.wait_for_url("**linked=0*")
    kept = page.inner_text(second)
    slide(page, "batch", 3)()
    page.wait_for_selector("#compared caption:has-text('Each at its own load')")
    assert page.inner_text(second) == kept
    again = answered(open_page("/?" + urlsplit(page.url).query))
    assert again.inner_text("#compared") == page.inner_text("#compared")
    assert not again.is_checked("#linked")


def test_all_drafters_and_all_gpus_are_one_click(open_page: Open, client: httpx.Client) -> None:
    page = answered(open_page("/?prices=laws"))
    page.click("#all-drafters")
    page.wait_for_selector("#compared tbody tr:nth-child(4)")
    assert page.locator("#compared tbody th").all_inner_texts() == ["mtp", "eagle", "dflash", "ngram"]
    assert page.inner_text("#all-gpus") == "All GPUs that fit, at 1 GPU"
    page.click("#all-gpus")
    page.wait_for_selector("#compared tbody th:has-text('b200')")
    names = page.locator("#compared tbody th").all_inner_texts()
    fitting = client.get("/api/alternatives/gpu", params={"prices": "laws"}).json()
    assert sorted(names) == sorted(fitting) and "l40s" not in names
    assert not page.locator("#compared tbody tr.dim").count()  # all of them fit
    assert len(parse_qs(urlsplit(page.url).query)["vs"]) == len(names) - 1
    page.locator("#sides li").nth(1).get_by_text("Edit").click()
    page.wait_for_selector(f"#subject:has-text('on {names[1]}')")
    page.click("#clear")
    page.wait_for_selector("#compared tbody", state="detached")
    assert "vs=" not in page.url


# --- glossary, small screens ---


def test_terms_are_explained_on_hover_focus_and_touch(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws"))
    page.hover("[data-tile='one more token'] .term")
    assert "one more draft token would add" in page.inner_text("#tip")
    page.mouse.move(5, 5)
    page.focus("#copy")
    page.keyboard.press("Shift+Tab")
    page.focus("[data-tile=break-even] .term")
    page.keyboard.press("Tab")
    page.wait_for_selector("#tip", state="visible")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
    missing = page.evaluate(
        """() => [...document.querySelectorAll('[data-term]')].filter((e) => {
            const target = e.matches('label') ? e.querySelector('select, input') : e;
            const text = document.getElementById(target?.getAttribute('aria-describedby') ?? '');
            return !text || text.textContent.length < 10;
        }).map((e) => e.dataset.term)"""
    )
    assert missing == []


def test_on_a_phone_the_answer_comes_first_and_controls_are_a_drawer(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws", width=400, height=800))
    assert in_view(page, "#line") and not page.is_visible("[name=model]")
    heights = page.eval_on_selector_all("#strip li", "all => all.map((e) => e.getBoundingClientRect().height)")
    assert len(heights) > 1 and max(heights) < 48  # one line each
    page.click("#drawer")
    assert page.is_visible("[name=model]") and page.get_attribute("#drawer", "aria-expanded") == "true"
    page.select_option("[name=gpu]", "b200")
    page.wait_for_selector("#subject:has-text('b200')", state="attached")
    page.keyboard.press("Escape")
    assert not page.is_visible("[name=model]")
    page.click("#all-drafters")
    page.wait_for_selector("#compared tbody tr")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400


def test_the_plan_is_the_only_source_of_the_answer(open_page: Open, server: str) -> None:
    """The provider is one module: nothing else on the page fetches."""
    page = answered(open_page("/?prices=laws"))
    names = page.evaluate("() => performance.getEntriesByType('resource').map((e) => e.name)")
    scripts = [
        name for name in names if name.startswith(f"{server}/static/") and name.endswith(".js") and "/lib/" not in name
    ]
    with httpx.Client() as client:
        fetching = [name.rpartition("/")[2] for name in scripts if "fetch(" in client.get(name).text]
    assert sorted(fetching) == ["api.js", "report.js"]  # the report is a file, not an answer
    assert json.loads(httpx.get(f"{server}/api/catalog").text)["can"]["compare"] is True
