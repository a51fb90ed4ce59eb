"""The page in a real Chromium: what a reader does, and what may never happen (see `open_page`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from specmargin.prices.kernels import store
from tests.data import REFERENCE_BANK
from tests.explorer.test_api import CONFIG, planned

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

Open = Callable[..., "Page"]
needs_tables = pytest.mark.skipif(
    not store.available(), reason="the kernel tables are not installed: pip install '.[tables]'"
)


def ready(page: Page) -> Page:
    """Drawn: the verdict, and the first figure, which is below it."""
    page.wait_for_selector("#numbers dd")
    page.locator("#figure-speedup").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-speedup svg .mark-line path")
    return page


_ALL_SEEN_DRAWN = """() => [...document.querySelectorAll('.figure:not([hidden])')].filter((e) => {
    const { top, bottom } = e.getBoundingClientRect();
    return bottom > -120 && top < innerHeight + 120; // as far as the page itself looks
}).every((e) => e.querySelector('.chart svg, button'))"""


def settled(page: Page) -> Page:
    """Every figure in sight is drawn."""
    page.wait_for_function(_ALL_SEEN_DRAWN)
    return page


def redraws(page: Page) -> int:
    return int(page.evaluate("() => performance.getEntriesByName('redraw').length"))


def after(page: Page, act: Callable[[], Any]) -> float:
    """Do something and wait until it is drawn: milliseconds from event to last chart, by the browser's clock."""
    before = redraws(page)
    act()
    for _ in range(400):
        if redraws(page) > before:
            return float(page.evaluate("() => performance.getEntriesByName('redraw').at(-1).duration"))
        page.wait_for_timeout(25)
    raise AssertionError(f"nothing was redrawn; the page says: {page.inner_text('#error')!r}")


def slide(page: Page, name: str, value: float) -> Callable[[], Any]:
    """As a reader's hand does it: value and event."""
    return lambda: page.eval_on_selector(
        f"#{name}", "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )


def drawn(page: Page, figure: str = "speedup") -> str:
    return str(page.inner_html(f"#figure-{figure} .chart svg"))


def sentence(page: Page) -> str:
    return str(page.text_content("#sentence"))


# --- the controls ---


def test_every_control_changes_verdict_and_figures(open_page: Open) -> None:
    page = ready(open_page())
    page.click("#more summary")
    changes: list[Callable[[], Any]] = [
        lambda: page.select_option("[name=gpu]", "b200"),
        lambda: page.select_option("[name=drafter]", "dflash"),
        slide(page, "alpha", 0.6),
        slide(page, "context", 14),
        lambda: page.select_option("[name=routing]", "uniform"),
        lambda: page.select_option("[name=prices]", "datasheet"),
        lambda: page.select_option("[name=model]", "qwen3-30b-a3b"),
    ]
    for change in changes:
        words, picture = sentence(page), drawn(page)
        after(page, change)
        assert sentence(page) != words
        assert drawn(page) != picture
    flags = page.inner_text("#flags")
    after(page, lambda: page.select_option("[name=engine]", "trtllm"))
    assert page.inner_text("#flags") != flags


def test_numbers_on_the_page_are_those_of_plan_json(open_page: Open) -> None:
    page = ready(open_page("/?model=qwen3-30b-a3b&gpu=h100&prices=laws&acceptance=0.70&batch=8"))
    expected = planned("qwen3-30b-a3b", "--gpu", "h100", "--prices", "laws", "--acceptance", "0.70", batch=8)
    assert sentence(page) == expected["verdict"]
    assert page.inner_text("#flags").strip() == expected["config"].strip()
    page.click("summary >> text=By batch")
    shown = page.eval_on_selector_all("#rows tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    for row, cells in zip(expected["rows"], shown, strict=True):
        assert cells[:3] == [f"{row['batch']:,}", str(row["depth"]), f"{row['speedup']:.2f}×"]
        assert cells[3] == f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}×"
        assert f"{row['goodput_tokens_per_second']:,.0f}" in cells[4:6]  # after `better`, where there is one
    here = next(row for row in expected["rows"] if row["batch"] == 8)
    sure = f"{here['speedup_low']:.2f} to {here['speedup_high']:.2f}"
    assert page.inner_text("[data-tile=speed-up] dd").split("\n") == [f"{here['speedup']:.2f}×", f"{sure}×"]
    assert page.inner_text("[data-tile=break-even] dd").startswith(f"{here['break_even_acceptance']:.2f}")
    assert page.inner_text("#line") == expected["verdict"].splitlines()[0]
    assert f"{here['speedup']:.2f}× as fast at batch 8 with " in page.inner_text("#line")
    assert f", likely {sure.replace(' to ', '–')}×." in page.inner_text("#line")


def test_a_range_that_spans_one_is_uncertain_on_the_page_as_in_the_json(open_page: Open) -> None:
    page = ready(open_page("/?model=qwen3-30b-a3b&gpu=h200&prices=laws&drafter=ngram&batch=1"))
    expected = planned("qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws", "--drafter", "ngram", batch=1)
    here = expected["rows"][0]
    assert expected["advice"] == "uncertain" and here["speedup_low"] < 1.0 < here["speedup"]
    assert sentence(page) == expected["verdict"] and expected["verdict"].startswith("Uncertain: ")
    sure = f"{here['speedup_low']:.2f}–{here['speedup_high']:.2f}×"
    assert sure in page.inner_text("#line") and page.inner_text("#line") == expected["verdict"].splitlines()[0]
    assert page.get_attribute("#answer", "data-says") == "uncertain"
    assert page.inner_text("#flags").strip() == expected["config"].strip() != ""


def test_the_page_keeps_every_field_of_its_address(open_page: Open) -> None:
    """Also fields without a control, through changes, the pinned scenario and the links to other pages."""
    address = "prices=laws&memory_utilization=0.7&kv_cache=fp8&step_ms=3"
    page = ready(open_page(f"/?{address}&vs=memory_utilization%3D0.8&unknown=1"))
    expected = planned(
        "qwen3.6-35b-a3b",
        "--gpu",
        "h200",
        "--prices",
        "laws",
        "--memory-utilization",
        "0.7",
        "--kv-cache",
        "fp8",
        "--step-ms",
        "3",
    )
    assert sentence(page) == expected["verdict"]
    after(page, lambda: page.select_option("[name=drafter]", "eagle"))
    kept = parse_qs(urlsplit(page.url).query)
    assert kept | {"memory_utilization": ["0.7"], "kv_cache": ["fp8"], "step_ms": ["3"]} == kept
    assert kept["vs"] == ["memory_utilization=0.8"]
    assert "unknown" not in kept
    for link in ("#json", "#report", "#to-story"):
        assert "memory_utilization=0.7" in str(page.get_attribute(link, "href"))
    story = open_page(f"/story?{address}")
    story.wait_for_selector("#paragraphs svg")
    assert "memory_utilization=0.7" in str(story.get_attribute("#to-explore", "href"))


def test_a_model_too_large_gets_the_gpus_it_needs(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    page.select_option("[name=model]", "deepseek-v3")
    page.wait_for_selector("#subject:has-text('8 × h200')")
    assert page.input_value("[name=gpus]") == "8"
    assert "set to 8" in page.inner_text("#model-hint")


def test_every_figure_is_drawn_when_it_comes_into_sight(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    for name in (
        "context",
        "pareto",
        "crossover",
        "roofline",
        "coverage",
        "popularity",
        "overlap",
        "histogram",
        "survival",
    ):
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name} .chart svg .mark-group")
    for name in ("day", "policies", "design", "validation"):  # slower ones
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name} .chart svg .mark-group", timeout=60_000)
    assert not page.is_visible("#figure-reliability")  # needs a bank


# --- links ---


def test_a_link_reproduces_the_state(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    after(page, lambda: page.select_option("[name=gpu]", "b200"))
    after(page, slide(page, "alpha", 0.6))
    after(page, slide(page, "batch", 3))
    words, address = sentence(page), page.url
    other = ready(open_page(address.partition(page.url.split("/")[2])[2]))
    assert sentence(other) == words
    assert other.inner_text("#numbers") == page.inner_text("#numbers")
    assert _rows(other, "speedup") == _rows(page, "speedup")
    assert other.input_value("[name=gpu]") == "b200"
    assert other.input_value("#alpha") == "0.6"


def _rows(page: Page, figure: str) -> str:
    page.click(f"#figure-{figure} summary")
    return page.inner_text(f"#figure-{figure} table")


def test_flags_are_copied(kept_page: Page) -> None:
    page = kept_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    page.wait_for_selector("#done:has-text('copied')")
    assert page.evaluate("() => navigator.clipboard.readText()") == page.inner_text("#flags")


# --- files ---


def drop(page: Page, name: str, text: str) -> None:
    """What a hand does: a file dragged over the page and let go."""
    page.evaluate(
        """([name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name));
            for (const kind of ["dragenter", "dragover", "drop"]) {
                const options = { bubbles: true, cancelable: true, dataTransfer: data };
                document.body.dispatchEvent(new DragEvent(kind, options));
            }
        }""",
        [name, text],
    )


def test_a_config_is_dropped_on_the_page(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    before = sentence(page)
    after(page, lambda: drop(page, "tiny-moe.json", json.dumps(CONFIG)))
    assert sentence(page) != before
    assert page.input_value("[name=model]").startswith("upload:")
    assert "4 of 64 experts" in page.inner_text("#model-hint")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "not json", "config.json"),
        ("config.json", '{"model_type": "unheard-of"}', "unheard-of"),
        ("notes.txt", "hello", "drop a config.json"),
        ("<img src=x onerror=alert(1)>.json", "{", ""),
        ("config.json", "x" * (3 << 20), "2 MB"),
    ],
)
def test_bad_files_are_refused_and_nothing_changes(kept_page: Page, name: str, text: str, said: str) -> None:
    page = ready(kept_page)
    words, picture, address = sentence(page), drawn(page), page.url
    drop(page, name, text)
    page.wait_for_selector("#error:not([hidden])")
    assert said in page.inner_text("#error")
    assert page.locator("#error img").count() == 0
    assert (sentence(page), drawn(page), page.url) == (words, picture, address)


def test_a_bank_is_dropped_and_its_figures_appear(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    files = [str(REFERENCE_BANK / name) for name in ("acceptance.parquet", "speculator.parquet")]
    after(page, lambda: page.set_input_files("#file", files))
    for name in ("survival", "reliability", "joint"):
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name} .chart svg .mark-group", timeout=60_000)
    assert "calibrated" in page.inner_text("#figure-reliability .takeaway")


# --- the story ---


def test_the_story_speaks_of_the_readers_model(open_page: Open) -> None:
    page = open_page("/story?model=gpt-oss-20b&prices=laws")
    page.wait_for_selector("#part-verdict .chart svg")
    assert page.locator("#paragraphs section").count() == 8
    assert "gpt-oss-20b uses 4 of 32 experts" in page.inner_text("#part-tax")
    page.select_option("[name=model]", "qwen3.6-27b")
    page.wait_for_selector("#part-verdict p:has-text('qwen3.6-27b')")
    assert page.locator("#part-tax").count() == 0  # a dense model pays no expert tax


# --- light, dark, small, by keyboard, read aloud ---


def test_dark_follows_the_system_and_the_button(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws", color_scheme="dark"))
    assert page.get_attribute("html", "data-theme") == "dark"
    dark = drawn(page)
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"
    page.locator("#figure-speedup").scroll_into_view_if_needed()  # the button is at the top, and what is seen is drawn
    page.wait_for_function(
        "dark => document.querySelector('#figure-speedup .chart svg')?.innerHTML !== dark", arg=dark, timeout=10_000
    )


def test_small_screens_do_not_scroll_sideways(open_page: Open) -> None:
    page = open_page("/?prices=laws", width=400, height=800)
    page.wait_for_selector("#numbers dd")
    for name in ("speedup", "context", "roofline", "histogram"):
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name} .chart svg")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400


def test_the_keyboard_reaches_everything(open_page: Open) -> None:
    page = ready(open_page("/?prices=laws"))
    seen = []
    for _ in range(70):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("() => document.activeElement.name || document.activeElement.id"))
    for name in (
        "model",
        "gpu",
        "engine",
        "drafter",
        "acceptance",
        "alpha",
        "batch",
        "context",
        "weights",
        "mode",
        "tpot_slo",
        "file",
        "copy",
        "copy-command",
        "all-gpus",
    ):
        assert name in seen
    page.focus("#alpha")
    after(page, lambda: page.keyboard.press("ArrowLeft"))
    assert "acceptance=" in page.url


# axe-core takes milliseconds for the contrast of each cell of a figure's numbers: all rows are checked once.
_EVERY_ROW = "/?prices=laws", 1280, "light"
_FURTHER_ROWS = ".figure details tbody tr:nth-child(n + 4)"
_COMPARED = "/?prices=laws&vs=gpu%3Db200%26prices%3Dlaws&gpu_hour_price=3"


@pytest.mark.parametrize(
    ("path", "width", "scheme"),
    [
        ("/?prices=laws", 1280, "light"),
        (_COMPARED, 1280, "light"),
        (_COMPARED, 1280, "dark"),
        ("/?prices=laws&drafter=ssd&batch=many", 1280, "dark"),
        ("/?prices=laws#drawer", 400, "dark"),
        ("/story?prices=laws", 1280, "light"),
        ("/story?prices=laws", 1280, "dark"),
    ],
)
def test_no_serious_accessibility_violation(
    open_page: Open, axe_source: str, path: str, width: int, scheme: str
) -> None:
    page = open_page(path, color_scheme=scheme, width=width, expect="Failed to load resource")
    page.wait_for_load_state("networkidle")
    if path.endswith("#drawer"):
        page.click("#drawer")
    elif "story" not in path:
        page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true; })")
    # What nobody sees is not drawn, and the first cards are hidden unless scenarios are compared.
    page.locator(".figure:not([hidden])").first.scroll_into_view_if_needed()
    page.wait_for_selector(".figure:not([hidden]) svg .mark-group")
    settled(page)
    if (path, width, scheme) != _EVERY_ROW:
        page.eval_on_selector_all(_FURTHER_ROWS, "rows => rows.forEach((row) => row.remove())")
    page.evaluate(axe_source + "; 0")
    audit = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    serious = [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in audit["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert serious == []


# --- quick ---


@pytest.mark.parametrize("prices", ["laws", pytest.param("tables", marks=needs_tables)])
def test_a_change_asks_once_and_redraws_once(open_page: Open, prices: str) -> None:
    """How long that takes is measured by `lab/speed/explorer.py`, on a quiet machine."""
    page = settled(ready(open_page(f"/?prices={prices}")))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/view?" in request.url else None)
    changes = [slide(page, "alpha", 0.62), slide(page, "batch", 4), slide(page, "context", 11)]
    changes += [partial(page.select_option, "[name=drafter]", kind) for kind in ("eagle", "ngram")]
    drawn = redraws(page)
    for change in changes:
        after(page, change)
    assert len(asked) == len(changes)
    assert redraws(page) - drawn == len(changes)


def test_what_a_change_leaves_as_it_is_is_not_drawn_again(open_page: Open) -> None:
    """Another marked batch changes the chart of the speed-up alone, and no change of a value makes new options."""
    page = ready(open_page("/?prices=laws&batch=4"))
    bar, option = "#figure-ledger svg .mark-rect path", "[name=model] option"
    page.wait_for_selector(bar)
    for selector in (bar, option):
        page.eval_on_selector(selector, "e => { e.wasHere = true; }")
    picture = drawn(page)
    after(page, slide(page, "batch", 6))
    assert drawn(page) != picture
    assert page.eval_on_selector(bar, "e => e.wasHere")
    after(page, slide(page, "alpha", 0.4))
    assert not page.eval_on_selector(bar, "e => Boolean(e.wasHere)")
    assert page.eval_on_selector(option, "e => e.wasHere")


def test_what_takes_long_is_said_to_be_under_way(open_page: Open) -> None:
    held: list[Route] = []
    waited = False

    def hold(route: Route) -> None:  # answered when the page has said that it waits, whichever comes first
        if waited:
            route.continue_()
        else:
            held.append(route)

    page = ready(open_page("/?prices=laws"))
    page.route("**/api/view?*", hold)
    page.select_option("[name=gpu]", "b200")
    page.wait_for_selector("main[aria-busy=true]")
    assert "h200" in page.inner_text("#subject")  # what was there stays until the answer comes
    faded = "(id) => getComputedStyle(document.getElementById(id)).opacity < 1"
    assert all(page.evaluate(faded, name) for name in ("line", "verdict", "engine"))
    assert page.is_disabled("#copy")  # flags of the old answer
    waited = True
    for route in held:
        route.continue_()
    page.wait_for_selector("#subject:has-text('b200')")
    page.wait_for_selector("main:not([aria-busy])")
    assert page.get_attribute("main", "aria-busy") is None and page.is_enabled("#copy")
