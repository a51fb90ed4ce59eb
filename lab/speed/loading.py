"""How the page loads, by the browser's own performance API: layout shift, time to the answer, bytes and requests.

    python -m lab.speed.loading [--base COMMIT]
    python -m lab.speed.loading --shifts 20   # CLS alone, of 20 loads of every page with the processor slowed down

The static site (gzip, 400 kbit/s, round trips of 400 ms, cold cache) and the local page (not throttled), on a phone
(400 px) and a desktop (1280 px). CLS is the largest session window, with the whole page scrolled through. `--base`
measures the site and page of another commit in the same run. `--shifts` also loads every page once with each kind of
response held back until nothing else happens (`HELD`), figures until what follows them is in sight, so that its figure
does not depend on this machine's speed. Needs a Chromium (`scripts/setup_browser.py`).
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import time
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
    from playwright.sync_api import Browser, Page, Route

KILOBITS, ROUND_TRIP_MS = 400, 400
PHONE, DESKTOP = (400, 800), (1280, 900)
_SCREENS = {"phone": PHONE, "desktop": DESKTOP}
MODEL = "qwen3.6-35b-a3b"
#: Of the site: its page without a model, a page at its defaults, and a link to a state between the grid's contexts.
SITE_PATHS = {
    "no model": "explore/",
    "defaults": f"{MODEL}/",
    "a link": f"{MODEL}/?batch=40&context=3000&acceptance=0.7",
}
#: Kinds of responses by what comes last. On the site, whose catalog is in its pages, headers and tables of grids.
HELD = {
    "scripts": r"static/app\.js",
    "library": r"vega",
    "catalog": r"api/catalog|\.json",
    "answers": r"api/view|\.bin",
}
_SLOWER = 6  # a phone of some years ago beside a desktop
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


class Held:
    """Responses whose address matches are held back until they are let go."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._routes: list[Route] = []
        page.route(re.compile(pattern), self._keep)

    def _keep(self, route: Route) -> None:
        self._routes.append(route)

    def __len__(self) -> int:
        return len(self._routes)

    def let_go(self, count: int) -> None:
        """Of those that were asked for first."""
        for route in self._routes[:count]:
            route.continue_()
        del self._routes[:count]


def loaded(
    browser: Browser,
    address: str,
    size: tuple[int, int],
    *,
    slow: bool = False,
    scroll: bool = True,
    held: str | None = None,
    slower: int = 1,
) -> Load:
    """`slow`: the connection. `held`: a pattern of `HELD`. `slower`: the factor by which the processor is."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    page.add_init_script(WATCH)
    if slow:
        throttle(page)
    if slower > 1:
        context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slower})
    responses = Held(page, held) if held else None
    page.goto(address, wait_until="commit")
    _until_answered(page, responses)
    if scroll:
        _scroll(page, responses)
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


def _until_answered(page: Page, responses: Held | None) -> None:
    deadline = time.monotonic() + 60.0
    while responses is not None and not page.evaluate("() => window.answeredAt") and time.monotonic() < deadline:
        page.wait_for_timeout(500)
        responses.let_go(len(responses))
    page.wait_for_function("() => window.answeredAt", timeout=60_000)
    page.wait_for_timeout(1500)


def _scroll(page: Page, responses: Held | None) -> None:
    """Down the page as a reader does: what comes into sight is drawn; what is held back, one step later."""
    for _ in range(60):
        waiting = len(responses) if responses else 0
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(150)
        if responses and waiting:
            responses.let_go(waiting)
            page.wait_for_timeout(600)
        if page.evaluate("() => scrollY + innerHeight >= document.documentElement.scrollHeight - 2"):
            break
    while responses:
        responses.let_go(len(responses))
        page.wait_for_timeout(1000)
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


@contextmanager
def site_of(folder: Path) -> Iterator[str]:
    """A small static site of a checkout."""
    with TemporaryDirectory() as name:
        options = ["--models", MODEL, "--gpus", "h200", "--engines", "vllm", "--jobs", "1"]
        python(folder, ["-m", "specmargin.cli.main", "site", name, *options])
        with served(Path(name)) as address:
            yield address


def measured(browser: Browser, folder: Path) -> Iterator[tuple[str, Load]]:
    with site_of(folder) as address:
        for what, path in SITE_PATHS.items():
            for screen, size in _SCREENS.items():
                yield f"site, {what}, {screen}", loaded(browser, address + path, size, slow=True)
    with explored(folder) as address:
        loaded(browser, address, DESKTOP, scroll=False)  # the server's first answer also imports
        for screen, size in _SCREENS.items():
            yield f"local page, {screen}", loaded(browser, address, size)


def shifts(browser: Browser, folder: Path, loads: int) -> Iterator[tuple[str, Load]]:
    """Of every page and screen: loads with the processor slowed down, and one with each kind of response held back."""
    with site_of(folder) as site, explored(folder) as server:
        for where, address in {"site": f"{site}{MODEL}/", "local page": server}.items():
            for screen, size in _SCREENS.items():
                for index in range(loads):
                    yield f"{where}, {screen}, load {index + 1}", loaded(browser, address, size, slower=_SLOWER)
                for kind, pattern in HELD.items():
                    yield f"{where}, {screen}, {kind} held back", loaded(browser, address, size, held=pattern)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--base", metavar="COMMIT", help="another commit to measure too")
    options.add_argument("--moved", action="store_true", help="also what shifted most")
    options.add_argument("--shifts", type=int, metavar="LOADS", help="CLS alone, of so many loads of every page")
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
        if chosen.shifts:
            _print_shifts(shifts(browser, ROOT, chosen.shifts))
            return
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


def _print_shifts(found: Iterator[tuple[str, Load]]) -> None:
    shifted = []
    for what, load in found:
        shifted.append(load.layout_shift)
        print(f"{what}: {load.layout_shift:.3f}", *(load.moved if load.layout_shift > 0.05 else ()), flush=True)
    print(f"{len(shifted)} loads, the largest CLS {max(shifted):.3f}")


if __name__ == "__main__":
    run(main)
