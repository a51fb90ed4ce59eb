"""The explorer in a real browser: first paint, redraws after a control changes, and the first view of a GPU or model.

    python -m lab.speed.explorer [--prices laws]

`specmargin explore` runs in a separate process; times are measured by the browser, from the event to the last visible
chart. Needs a Chromium (`scripts/setup_browser.py`).
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import ROOT
from lab.terminal import parser, run

sys.path.insert(0, str(ROOT / "scripts"))

from setup_browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SLIDERS: dict[str, tuple[str, Sequence[float]]] = {
    "acceptance": ("alpha", [0.5 + 0.03 * step for step in range(8)]),
    "batch": ("batch", list(range(2, 10))),
    "context": ("context", [9.0 + 0.5 * step for step in range(8)]),
}
_FIRST_VIEWS = (("gpu", "b200"), ("gpu", "h200"), ("model", "gpt-oss-120b"), ("model", "deepseek-v3.2"))
_LAST = "() => performance.getEntriesByName('redraw').at(-1)"
_VISIBLE = """() => [...document.querySelectorAll("figure.figure")].filter((e) => {
    const { top, bottom } = e.getBoundingClientRect();
    return bottom > -120 && top < innerHeight + 120;
}).map((e) => e.dataset.name).join(", ")"""
_SLIDE = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }"
Redraw = tuple[float, float]  # milliseconds in total, and of the server


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prices", default="", help="datasheet, laws or tables; default: the best available")
    prices = options.parse_args().prices
    browser_path = chromium()
    if browser_path is None:
        print("no Chromium found; run scripts/setup_browser.py")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with _server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        measure(page, f"{address}?prices={prices}")
        browser.close()


@contextmanager
def _server() -> Iterator[str]:
    """An explorer on a free port, stopped at the end of the block."""
    command = [str(Path(sys.executable).with_name("specmargin")), "explore", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield next(match.group() for line in server.stdout if (match := re.search(r"http://\S+", line)))
    finally:
        server.terminate()
        server.wait(timeout=10)


def measure(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#numbers dd")
    paint, drawn = page.evaluate(
        "() => [performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]"
    )
    print(f"first paint {paint:.0f} ms; answer {drawn:.0f} ms")
    # Another engine the second time, so that no result is cached.
    for view, (figure, engine) in {"top": ("verdict", "vllm"), "figures": ("figure-ledger", "sglang")}.items():
        page.goto(f"{address}&engine={engine}")
        page.wait_for_selector("#numbers dd")
        page.eval_on_selector(f"#{figure}", "e => e.scrollIntoView({ block: 'center' })")
        page.wait_for_timeout(2000)
        print(f"--- {view}: {page.evaluate(_VISIBLE)} visible")
        move(page)
    print("--- first views")
    for name, value in _FIRST_VIEWS:
        show(f"first view of {value}", [after(page, partial(page.select_option, f"[name={name}]", value))])


def move(page: Page) -> None:
    """Change every kind of control, some of them to values without cached results."""
    all_redraws: list[Redraw] = []
    for name, (control, values) in _SLIDERS.items():
        redraws = [after(page, partial(page.eval_on_selector, f"#{control}", _SLIDE, value)) for value in values]
        all_redraws += show(f"{name} moved", redraws)
    choose = partial(page.select_option, "[name=drafter]")
    all_redraws += show(
        "drafter chosen", [after(page, partial(choose, kind)) for kind in ("eagle", "dflash", "ngram", "")]
    )
    show("all of these", all_redraws)


def after(page: Page, act: Callable[[], Any]) -> Redraw:
    """Redraw time of an action."""
    before = page.evaluate(f"{_LAST}?.startTime ?? 0")
    act()
    page.wait_for_function(f"before => ({_LAST})()?.startTime > before", arg=before, timeout=60_000)
    last = page.evaluate(f"() => {{ const last = ({_LAST})(); return [last.duration, last.detail.server * 1e3]; }}")
    return float(last[0]), float(last[1])


def show(what: str, redraws: list[Redraw]) -> list[Redraw]:
    whole, server = (statistics.median(values) for values in zip(*redraws, strict=True))
    worst = max(value for value, _ in redraws)
    print(f"{what:<34} median {whole:6.0f} ms (server {server:5.0f}), slowest {worst:6.0f}, of {len(redraws)}")
    return redraws


if __name__ == "__main__":
    run(main)
