"""How the page loads, by the browser's own performance API: layout shift, time to the answer, bytes and requests.

    python -m lab.speed.loading [--base COMMIT]

The static site (gzip, 400 kbit/s, round trips of 400 ms, cold cache) and the local page (not throttled), on a phone
(400 px) and a desktop (1280 px). CLS is the largest session window, with the whole page scrolled through. `--base`
measures the site and page of another commit in the same run. Needs a Chromium (`scripts/setup_browser.py`).
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING

from lab import ROOT
from lab.checkouts import checkout, python
from lab.terminal import console, note, parser, run, table

sys.path.insert(0, str(ROOT / "scripts"))

from setup_browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KILOBITS, ROUND_TRIP_MS = 400, 400
PHONE, DESKTOP = (400, 800), (1280, 900)
MODEL = "qwen3.6-35b-a3b"
#: Of the site: its page without a model, a page at its defaults, and a link to a state between the grid's contexts.
SITE_PATHS = {
    "no model": "explore/",
    "defaults": f"{MODEL}/",
    "a link": f"{MODEL}/?batch=40&context=3000&acceptance=0.7",
}
#: When the answer was there, and shifts of the layout that no click or key caused.
WATCH = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (!entry.hadRecentInput) window.shifts.push({ value: entry.value, at: entry.startTime, by: entry.sources.map(
      ({ node }) => `${node?.nodeName} ${node?.id ?? ""} ${node?.className ?? ""}`.trim()).join(", ") });
  }
}).observe({ type: "layout-shift", buffered: true });
const answered = () => document.querySelector("#numbers dd, table#front tbody td");
new MutationObserver(() => { if (!window.answeredAt && answered()) window.answeredAt = performance.now(); })
  .observe(document, { childList: true, subtree: true });
"""
_READ = """() => {
  const windows = [];
  for (const { value, at } of window.shifts) {
    const last = windows.at(-1);
    const same = last && at - last.last < 1000 && at - last.first < 5000;
    if (same) Object.assign(last, { last: at, sum: last.sum + value });
    else windows.push({ first: at, last: at, sum: value });
  }
  const loaded = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .filter((entry) => entry.responseEnd > 0 && entry.startTime < window.answeredAt);
  return {
    shift: Math.max(0, ...windows.map(({ sum }) => sum)), answer: window.answeredAt,
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    bytes: loaded.filter((entry) => entry.responseEnd <= window.answeredAt).reduce((sum, e) => sum + e.transferSize, 0),
    requests: loaded.length, moved: window.shifts.sort((a, b) => b.value - a.value).slice(0, 4),
  };
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One page load, as the browser saw it."""

    layout_shift: float
    paint_seconds: float
    answer_seconds: float
    transferred_bytes: int  # before the answer
    requests: int
    moved: tuple[str, ...]  # what shifted most


class Zipped(SimpleHTTPRequestHandler):
    """Files of a folder, compressed as a web host does."""

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def send_head(self) -> io.BytesIO | None:
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return None
        body, small = path.read_bytes(), path.suffix in (".html", ".js", ".css", ".json", ".svg")
        body = gzip.compress(body, 6) if small else body
        self.send_response(200)
        self.send_header("content-type", self.guess_type(path))
        self.send_header("content-length", str(len(body)))
        if small:
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        return io.BytesIO(body)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Zipped, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def throttle(page: Page) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    bytes_per_second = KILOBITS * 1000 / 8
    limits = {"downloadThroughput": bytes_per_second, "uploadThroughput": bytes_per_second, "latency": ROUND_TRIP_MS}
    session.send("Network.emulateNetworkConditions", {"offline": False, **limits})


def loaded(browser: Browser, address: str, size: tuple[int, int], *, slow: bool, scroll: bool = True) -> Load:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    page.add_init_script(WATCH)
    if slow:
        throttle(page)
    page.goto(address, wait_until="commit")
    page.wait_for_function("() => window.answeredAt", timeout=60_000)
    page.wait_for_timeout(1500)
    if scroll:
        _scroll(page)
    read = page.evaluate(_READ)
    context.close()
    return Load(
        layout_shift=read["shift"],
        paint_seconds=read["paint"] / 1e3,
        answer_seconds=read["answer"] / 1e3,
        transferred_bytes=read["bytes"],
        requests=read["requests"],
        moved=tuple(f"{entry['value']:.3f} {entry['by']}" for entry in read["moved"]),
    )


def _scroll(page: Page) -> None:
    """Down the page as a reader does: what comes into sight is drawn."""
    for _ in range(30):
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(150)
        if page.evaluate("() => scrollY + innerHeight >= document.documentElement.scrollHeight - 2"):
            break
    page.wait_for_timeout(500)


@contextmanager
def explored(folder: Path) -> Iterator[str]:
    """The local page of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "specmargin.cli.main", "explore", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    assert server.stdout is not None
    try:
        yield next(match.group() for line in server.stdout if (match := re.search(r"http://\S+", line)))
    finally:
        server.kill()  # asked to stop, it would wait for figures that it still draws
        server.wait()


def measured(browser: Browser, folder: Path) -> Iterator[tuple[str, Load]]:
    with TemporaryDirectory() as name:
        options = ["--models", MODEL, "--gpus", "h200", "--engines", "vllm", "--jobs", "1"]
        python(folder, ["-m", "specmargin.cli.main", "site", name, *options])
        with served(Path(name)) as address:
            for what, path in SITE_PATHS.items():
                for screen, size in (("phone", PHONE), ("desktop", DESKTOP)):
                    yield f"site, {what}, {screen}", loaded(browser, address + path, size, slow=True)
    with explored(folder) as address:
        loaded(browser, address, DESKTOP, slow=False, scroll=False)  # the server's first answer also imports
        for screen, size in (("phone", PHONE), ("desktop", DESKTOP)):
            yield f"local page, {screen}", loaded(browser, address, size, slow=False)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--base", metavar="COMMIT", help="another commit to measure too")
    options.add_argument("--moved", action="store_true", help="also what shifted most")
    chosen = options.parse_args()
    browser_path = chromium()
    if browser_path is None:
        print("no Chromium found; run scripts/setup_browser.py")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    out = console()
    sides = ([(chosen.base, checkout(chosen.base))] if chosen.base else []) + [("", ROOT)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for title, folder in sides:
            shown = table(f"Page load {title}".rstrip(), ("",), ("CLS", "paint s", "answer s", "kB", "requests"))
            moved = []
            for what, load in measured(browser, folder):
                sizes = (f"{load.transferred_bytes / 1e3:.0f}", str(load.requests))
                times = (f"{load.layout_shift:.3f}", f"{load.paint_seconds:.2f}", f"{load.answer_seconds:.2f}")
                shown.add_row(what, *times, *sizes)
                moved += [f"{what}: {text}" for text in load.moved]
            out.print(shown)
            for text in moved if chosen.moved else ():
                note(out, text)
        browser.close()
    note(out, f"site: {KILOBITS} kbit/s, round trips of {ROUND_TRIP_MS} ms, gzip; kB and requests before the answer")


if __name__ == "__main__":
    run(main)
