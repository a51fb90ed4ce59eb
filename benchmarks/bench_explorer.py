"""The explorer in a real browser: first paint, redraws after a control moved, and first looks at another GPU or model.

    python benchmarks/bench_explorer.py [--prices laws]

`specmargin explore` runs in a process of its own; milliseconds are the browser's, from the event to the last chart in
sight. Needs a Chromium (`scripts/setup_browser.py`).
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from setup_browser import chromium  # noqa: E402 (a script beside the package)

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SLIDERS: dict[str, tuple[str, Sequence[float]]] = {
    "acceptance": ("alpha", [0.5 + 0.03 * step for step in range(8)]),
    "batch": ("batch", list(range(2, 10))),
    "context": ("context", [9.0 + 0.5 * step for step in range(8)]),
}
_FIRST_LOOKS = (("gpu", "b200"), ("gpu", "h200"), ("model", "gpt-oss-120b"), ("model", "deepseek-v3.2"))
_LAST = "() => performance.getEntriesByName('redraw').at(-1)"
_SEEN = """() => [...document.querySelectorAll("figure.figure")].filter((e) => {
    const { top, bottom } = e.getBoundingClientRect();
    return bottom > -120 && top < innerHeight + 120;
}).map((e) => e.dataset.name).join(", ")"""
_SLIDE = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }"
Redraw = tuple[float, float]  # milliseconds in all, and of the server


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--prices", default="", help="datasheet, laws or tables; default: the best there is")
    prices = asked.parse_args().prices
    browser_path = chromium()
    if browser_path is None:
        print("no Chromium: run scripts/setup_browser.py")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with _server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        measure(page, f"{address}?prices={prices}")
        browser.close()


@contextmanager
def _server() -> Iterator[str]:
    """An explorer on a port that is free, ended with the block."""
    command = [str(Path(sys.executable).with_name("specmargin")), "explore", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield next(found.group() for line in server.stdout if (found := re.search(r"http://\S+", line)))
    finally:
        server.terminate()
        server.wait(timeout=10)


def measure(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#figure-ledger svg .mark-group")
    paint, drawn = page.evaluate(
        "() => [performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]"
    )
    print(f"first paint {paint:.0f} ms; verdict and first figures {drawn:.0f} ms")
    # Another engine the second time: nothing that is moved to was priced before.
    for place, (figure, engine) in {"top": ("verdict", "vllm"), "figures": ("figure-ledger", "sglang")}.items():
        page.goto(f"{address}&engine={engine}")
        page.wait_for_selector("#figure-ledger svg .mark-group")
        page.eval_on_selector(f"#{figure}", "e => e.scrollIntoView({ block: 'center' })")
        page.wait_for_timeout(2000)
        print(f"--- {place}: {page.evaluate(_SEEN)} in sight")
        move(page)
    print("--- first looks")
    for name, value in _FIRST_LOOKS:
        show(f"first look at {value}", [after(page, partial(page.select_option, f"[name={name}]", value))])


def move(page: Page) -> None:
    """Every kind of move, some of them to where nobody was."""
    taken: list[Redraw] = []
    for name, (control, values) in _SLIDERS.items():
        found = [after(page, partial(page.eval_on_selector, f"#{control}", _SLIDE, value)) for value in values]
        taken += show(f"{name} moved", found)
    choose = partial(page.select_option, "[name=drafter]")
    taken += show("drafter chosen", [after(page, partial(choose, kind)) for kind in ("eagle", "dflash", "ngram", "")])
    show("all of these", taken)


def after(page: Page, act: Callable[[], Any]) -> Redraw:
    """Do something and wait until it is drawn."""
    before = page.evaluate(f"{_LAST}?.startTime ?? 0")
    act()
    page.wait_for_function(f"before => ({_LAST})()?.startTime > before", arg=before, timeout=60_000)
    last = page.evaluate(f"() => {{ const last = ({_LAST})(); return [last.duration, last.detail.server * 1e3]; }}")
    return float(last[0]), float(last[1])


def show(what: str, taken: list[Redraw]) -> list[Redraw]:
    whole, server = (statistics.median(values) for values in zip(*taken, strict=True))
    worst = max(value for value, _ in taken)
    print(f"{what:<34} median {whole:6.0f} ms (server {server:5.0f}), slowest {worst:6.0f}, of {len(taken)}")
    return taken


if __name__ == "__main__":
    main()
