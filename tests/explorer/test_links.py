"""Links in a real Chromium: what a link asks for is shown, back and forward work, and nothing is lost silently."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from specmargin.show.explorer.card import CardRow
from specmargin.show.explorer.choices import marked_row
from specmargin.show.explorer.guard import FRAMED_POLICY
from specmargin.show.explorer.previews import card_of
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.uploads import Uploads
from specmargin.show.explorer.view import view_of
from tests.explorer.test_api import CONFIG, planned
from tests.explorer.test_browser import Open, after, slide

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def answered(page: Page) -> Page:
    page.wait_for_selector("#numbers dd")
    return page


def fields(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def offers(page: Page) -> list[str]:
    page.wait_for_selector("#fixes button")
    return page.locator("#fixes button").all_inner_texts()


# --- a link that cannot be answered ---


def test_a_link_that_cannot_be_answered_is_shown_refused_and_keeps_its_address(open_page: Open, server: str) -> None:
    page = open_page("/?model=deepseek-v3&gpu=rtx-4090")
    assert "8 × h200" in offers(page)
    assert page.inner_text("#line") == "No answer for deepseek-v3 on rtx-4090"
    assert "does not fit" in page.inner_text("#error") and "Qwen" not in page.inner_text("main")
    assert page.get_attribute("#answer", "data-says") == "refused"
    assert (page.input_value("[name=model]"), page.input_value("[name=gpu]")) == ("deepseek-v3", "rtx-4090")
    assert page.url == f"{server}/?model=deepseek-v3&gpu=rtx-4090"
    assert not page.is_visible("#verdict") and not page.is_visible("#engine") and not page.is_visible("#figures")
    page.click("#fixes button:has-text('8 × h200')")
    page.wait_for_selector("#subject:has-text('deepseek-v3 on 8 × h200')")
    assert not page.is_visible("#fixes") and not page.is_visible("#error") and page.is_visible("#engine")
    page.go_back()
    page.wait_for_selector("#line:has-text('No answer for deepseek-v3 on rtx-4090')")
    assert page.url == f"{server}/?model=deepseek-v3&gpu=rtx-4090" and "8 × h200" in offers(page)


def test_every_offer_can_be_answered(client: httpx.Client) -> None:
    kinds = set()
    for asked in (
        {"model": "qwen3-235b-a22b", "gpu": "h100"},
        {"model": "deepseek-v3", "gpu": "rtx-4090"},
        {"gpu": "h100", "qps": "2", "isl": "64000", "osl": "1000"},
        {"model": "llama-3.1-8b", "routing": "uniform:x"},
    ):
        refused = client.get("/api/view", params=asked | {"prices": "laws"}).json()["answers"][0]
        assert "refused" in refused
        offered = client.get("/api/fixes", params=asked | {"prices": "laws"}).json()
        assert offered
        for fix in offered:
            kinds |= set(fix["changes"])
            fields = {name: value for name, value in ({"prices": "laws"} | asked | fix["changes"]).items() if value}
            answer = client.get("/api/view", params=fields).json()["answers"][0]
            assert "plan" in answer, (fields, answer)
    assert {"gpu", "gpus", "weights", "isl", "routing"} <= kinds


def test_a_control_that_asks_for_too_much_leaves_the_answer_and_offers_what_fits(open_page: Open) -> None:
    page = answered(open_page("/?model=deepseek-v3&gpu=h200&gpus=8&prices=laws"))
    line, address = page.inner_text("#line"), page.url
    page.select_option("[name=gpus]", "2")
    page.wait_for_selector("#error:has-text('does not fit')")
    assert "4 × b300" in offers(page)
    assert (page.inner_text("#line"), page.url, page.input_value("[name=gpus]")) == (line, address, "8")
    page.click("#fixes button:has-text('4 × b300')")
    page.wait_for_selector("#subject:has-text('4 × b300')")


def test_one_bad_field_replaces_one_field_and_says_so(open_page: Open) -> None:
    address = "/?model=gpt-oss-20b&gpu=h100&batch=many&context=4096&drafter=ngram&prices=laws"
    page = answered(open_page(address, expect="Failed to load resource"))
    assert page.inner_text("#notices") == ("Ignored in this link: Batch must be a whole number, got 'many'. Using 16.")
    assert page.inner_text("#subject").startswith("gpt-oss-20b on h100, n-gram lookup, context 4,096")
    assert fields(page).keys() == {"model", "gpu", "context", "drafter", "prices"}


def test_the_text_suggests_no_number_of_gpus_that_the_page_lacks(open_page: Open) -> None:
    """64 GPUs can be chosen; none are suggested where there is no network between nodes."""
    page = open_page("/?model=kimi-k2&gpu=l40s&weights=bf16&prices=laws")
    page.wait_for_selector("#error:not([hidden])")
    assert "try 64 GPUs" in page.inner_text("#error")
    page.select_option("[name=gpus]", "64")
    page.wait_for_selector("#subject:has-text('kimi-k2 on 64 × l40s')")
    alone = open_page("/?model=deepseek-v3&gpu=rtx-4090&prices=laws")
    alone.wait_for_selector("#error:not([hidden])")
    assert "64" not in alone.inner_text("#error")


# --- back and forward ---


def test_back_and_forward_move_through_deliberate_changes(open_page: Open, server: str) -> None:
    page = answered(open_page("/?prices=laws"))
    first = page.inner_text("#subject")
    after(page, lambda: page.select_option("[name=gpu]", "b200"))
    for place in (3, 5, 6):  # one drag
        after(page, slide(page, "batch", place))
    second = page.inner_text("#subject")
    after(page, lambda: page.select_option("[name=drafter]", "eagle"))
    page.click("#keep")
    page.wait_for_selector("#sides li:nth-child(2)")
    page.go_back()
    page.wait_for_selector("#sides li", state="detached")
    page.go_back()
    page.wait_for_function("(subject) => document.querySelector('#subject').textContent === subject", arg=second)
    assert page.input_value("[name=drafter]") == "" and fields(page)["batch"] == ["12"]
    page.go_back()
    page.wait_for_selector("#batch-value:text-is('16')")
    assert page.input_value("[name=gpu]") == "b200"
    page.go_back()
    page.wait_for_function("(subject) => document.querySelector('#subject').textContent === subject", arg=first)
    assert page.url == f"{server}/?prices=laws"
    page.go_forward()
    page.wait_for_selector("#subject:has-text('b200')")
    page.reload()
    answered(page)
    assert page.input_value("[name=gpu]") == "b200"


# --- nothing is lost silently ---


def test_typed_acceptance_survives_a_change_of_drafter_and_model(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&acceptance=0.62"))
    after(page, lambda: page.select_option("[name=drafter]", "eagle"))
    assert fields(page)["acceptance"] == ["0.62"]
    after(page, lambda: page.select_option("[name=model]", "gpt-oss-20b"))
    assert fields(page)["acceptance"] == ["0.62"]
    assert "drafter eagle" in page.inner_text("#model-hint")  # dropped, and said so


def test_a_bundled_curve_is_said_to_be_dropped(open_page: Open, client: httpx.Client) -> None:
    curve = client.get("/api/catalog").json()["acceptance"][0]
    page = answered(open_page(f"/?prices=laws&acceptance={curve}"))
    after(page, lambda: page.select_option("[name=drafter]", "ngram"))
    assert "acceptance" not in fields(page)
    assert f"Back to the default: acceptance {curve}" in page.inner_text("#model-hint")


def test_long_requests_become_a_rate_that_can_be_served(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&model=gpt-oss-20b"))
    page.select_option("#preset", "long")
    page.wait_for_selector("#line:has-text('at concurrency 4')", timeout=120_000)
    page.select_option("#mode", "qps")
    page.wait_for_selector("#line:has-text('requests/s')", timeout=120_000)
    rate = float(page.input_value("[name=qps]"))
    plan = httpx.get(page.url.replace("/?", "/api/plan?"), timeout=120).json()
    assert 0.01 < rate < 2 and plan["service"]["plain"]["queue_growth_per_second"] == 0.0
    page.select_option("#mode", "concurrency")
    page.wait_for_selector("#line:has-text('at concurrency')", timeout=120_000)


# --- a pasted model ---


def paste(page: Page, text: str) -> None:
    page.eval_on_selector(
        "#paste",
        """(box, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text", text);
            box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        text,
    )


def test_a_hugging_face_id_is_pasted(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&acceptance=0.62"))
    paste(page, " https://huggingface.co/openai/gpt-oss-20b/tree/main ")
    page.wait_for_selector("#subject:has-text('gpt-oss-20b on h200')")
    assert page.input_value("[name=model]") == "gpt-oss-20b" and page.input_value("#paste") == ""
    assert "4 of 32 experts" in page.inner_text("#model-hint") and fields(page)["acceptance"] == ["0.62"]
    page.fill("#paste", "Qwen/Qwen3-30B-A3B-FP8")  # a variant: the architecture of one model, weights of its own
    page.keyboard.press("Enter")
    page.wait_for_selector("#subject:has-text('weights fp8')")
    assert fields(page)["model"] == ["Qwen/Qwen3-30B-A3B-FP8"] == [page.input_value("[name=model]")]
    plan = planned("Qwen/Qwen3-30B-A3B-FP8", "--gpu", "h200", "--prices", "laws", "--acceptance", "0.62")
    assert page.text_content("#sentence") == plan["verdict"]


def test_a_pasted_config_is_read_within_the_bounds_of_uploads(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws", expect="Failed to load resource"))
    paste(page, json.dumps(CONFIG, indent=2))
    page.wait_for_selector("#model-hint:has-text('4 of 64 experts')")
    page.wait_for_function("() => document.querySelector('[name=model]').value.startsWith('upload:')")
    line = page.inner_text("#line")
    paste(page, '{"model_type": "unheard-of"}')
    page.wait_for_selector("#paste-note:has-text('unheard-of')")
    paste(page, '{"x": "' + "x" * (3 << 20) + '"}')
    page.wait_for_selector("#paste-note:has-text('2 MB')")
    assert page.inner_text("#line") == line


def test_an_unknown_id_says_what_to_download_and_no_path_is_read(open_page: Open, client: httpx.Client) -> None:
    page = answered(open_page("/?prices=laws", expect="Failed to load resource"))
    page.focus("#paste")
    page.wait_for_selector("#tip:not([hidden])")
    paste(page, "nobody/never-heard-of-it-7b")
    page.wait_for_selector("#paste-note:has-text('hf download nobody/never-heard-of-it-7b config.json')")
    assert not page.is_visible("#tip")  # it would cover the error
    assert "h200" in page.inner_text("#subject") and "model" not in fields(page)
    for path in ("src/specmargin", "tests/explorer", "../main", "/etc/passwd", "a/../b", "upload:0123456789abcdef"):
        reply = client.get("/api/resolve", params={"model": path})
        assert reply.status_code == 400 and "error" in reply.json(), path
        assert client.get("/api/plan", params={"model": path}).status_code in (400, 422), path


# --- previews and frames ---


def meta(page: str) -> dict[str, str]:
    found = re.findall(r'<meta property="(og:[a-z:]+)" content="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        (
            "model=gpt-oss-20b&gpu=h100&gpus=2&drafter=eagle&batch=4",
            "gpt-oss-20b on 2 × h100 with eagle at batch 4, context 1,024",
        ),
        (
            "model=gpt-oss-20b&qps=0.5&isl=2000&engine=sglang",
            "gpt-oss-20b on h200 in sglang at 0.5 requests per second, 2,000 input and 300 output tokens",
        ),
        ("concurrency=32", "qwen3.6-35b-a3b on h200 at 32 concurrent requests, 1,000 input and 300 output tokens"),
    ],
)
def test_every_state_has_its_own_preview(open_page: Open, client: httpx.Client, address: str, asked: str) -> None:
    tags = meta(client.get(f"/?{address}&prices=laws").text)
    assert tags["og:title"] == f"Does speculation pay for {asked}?"
    assert urlsplit(tags["og:url"]).path == "/" and "prices=laws" in tags["og:image"]
    image = client.get(tags["og:image"])
    assert image.headers["content-type"] == "image/png" and image.content.startswith(b"\x89PNG")
    page = answered(open_page(f"/?{address}&prices=laws"))
    assert page.title() == tags["og:title"]  # the page says the same


def test_the_card_gives_the_numbers_of_the_page_at_its_batch() -> None:
    files, query = Uploads(), Query(model="gpt-oss-20b", prices="laws", batch=5)
    view = view_of(query, files)
    card, here = card_of(query, view), marked_row(view)
    files.close()
    assert card.line == view.plan["verdict"].partition("\n")[0] and "at batch 5 " in card.line
    assert card.marked == 5 and CardRow(5, here["depth"], here["speedup"]) in card.rows


def test_previews_of_refused_and_of_hostile_links(client: httpx.Client) -> None:
    refused = meta(client.get("/?model=deepseek-v3&gpu=rtx-4090").text)
    assert "deepseek-v3 on rtx-4090" in refused["og:title"]
    assert client.get(refused["og:image"]).content.startswith(b"\x89PNG")
    for bad in ('model="><script>alert(1)</script>', "batch=many", "drafter=</title><script>"):
        page = client.get("/", params=dict([bad.split("=", 1)])).text
        assert "alert(1)" not in page and "</title><script>" not in page and meta(page) == {}


def test_only_the_embedded_view_may_be_framed(client: httpx.Client) -> None:
    framed = client.get("/embed?batch=4")
    assert framed.headers["content-security-policy"] == FRAMED_POLICY and "frame-ancestors *" in FRAMED_POLICY
    assert "x-frame-options" not in framed.headers
    for path in ("/", "/story", "/embed/", "/api/plan", "/static/app.js", "/embedded", "/card.png"):
        headers = client.get(path, follow_redirects=False).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-frame-options"] == "DENY"
    refused = client.get("/embed", headers={"host": "elsewhere.example"})
    assert refused.status_code == 421 and refused.headers["x-frame-options"] == "DENY"


@contextmanager
def elsewhere(pages: dict[str, str]) -> Iterator[str]:
    """A server with these pages: its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())

        def log_message(self, *_: object) -> None:
            """Nothing: a test's output is its result."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_answer_is_framed_by_a_page_of_another_site(open_page: Open, browser: Browser, server: str) -> None:
    page = answered(open_page("/?prices=laws&model=gpt-oss-20b&batch=4"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#embed")
    page.wait_for_selector("#done:has-text('Embed copied')")
    code = page.evaluate("() => navigator.clipboard.readText()")
    # Of another origin, but of this machine: browsers let no public page reach a loopback address.
    with elsewhere({"/": code, "/whole": f"<iframe src='{server}/'></iframe>"}) as origin:
        other = browser.new_page()
        other.goto(f"{origin}/")
        framed = other.frame_locator("iframe")
        framed.locator("#numbers dd").first.wait_for()
        assert framed.locator("#question").inner_text() == page.title() == other.get_attribute("iframe", "title")
        assert framed.locator("#line").inner_text() == page.inner_text("#line")
        assert not framed.locator("#controls").is_visible() and not framed.locator("#engine").is_visible()
        target = framed.locator("#to-page").get_attribute("href") or ""
        assert "model=gpt-oss-20b" in target and "batch=4" in target
        whole = browser.new_page()
        whole.goto(f"{origin}/whole")
        whole.wait_for_timeout(1500)
        assert whole.frame_locator("iframe").locator("#line").count() == 0
        for one in (other, whole):
            one.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/?model=deepseek-v3&gpu=rtx-4090", "/embed?prices=laws&batch=4"])
def test_refused_and_embedded_views_are_accessible(open_page: Open, axe_source: str, path: str, scheme: str) -> None:
    page = open_page(path, color_scheme=scheme, width=400)
    page.wait_for_selector("#fixes button" if "deepseek" in path else "#numbers dd")
    page.evaluate(axe_source + "; 0")
    audit = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    assert [fault["id"] for fault in audit["violations"] if fault["impact"] in ("serious", "critical")] == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
