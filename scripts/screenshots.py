"""Save every figure in light and dark, and screenshots of the pages, to a folder for visual review.

    python scripts/screenshots.py OUTDIR [--model NAME] [--gpu NAME] [--bank FOLDER]

A bank adds the figures that need one (reliability, joint, ladder).
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import uvicorn
from setup_browser import chromium

from specmargin.show.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.server import make_app
from specmargin.show.explorer.uploads import Uploads
from specmargin.show.explorer.view import View, view_of
from specmargin.show.figures.files import save
from specmargin.show.figures.theme import DARK, LIGHT

_PAGES = {"explore": "/", "compare": "/?vs=gpu%3Db200", "story": "/story"}
_WIDTHS = (1280, 400)
_DRAWN = """card => card.hidden || card.querySelector('.chart svg, .nothing button')
    || card.querySelector('.nothing')?.textContent.startsWith('Nothing')"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3.6-35b-a3b")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--bank", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    uploads = Uploads()
    acceptance = None if options.bank is None else f"upload:{_bank(uploads, options.bank)}"
    view = view_of(Query(model=options.model, gpu=options.gpu, acceptance=acceptance), uploads)
    draw(view, options.folder)
    uploads.close()
    pages(options.folder)


def _bank(uploads: Uploads, folder: Path) -> str:
    first = uploads.add("acceptance", "acceptance.parquet", (folder / "acceptance.parquet").read_bytes())
    return uploads.add("speculator", "speculator.parquet", (folder / "speculator.parquet").read_bytes(), first.id).id


def draw(view: View, folder: Path) -> None:
    for name in GALLERY:
        try:
            drawn = figure(name, view)
        except DoesNotApplyError as error:
            print(f"{name}: {error}")
            continue
        for theme in (LIGHT, DARK):
            save(drawn.chart(theme), folder / f"{name}-{theme.name}.png")
        print(name)


def pages(folder: Path) -> None:
    """Full-page screenshots, in both themes and two widths."""
    browser_path = chromium()
    if browser_path is None:
        print("no Chromium found; run scripts/setup_browser.py to get screenshots of the pages")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with _served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, path in _PAGES.items():
            for theme in (LIGHT, DARK):
                for width in _WIDTHS:
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme.name)  # type: ignore[arg-type]
                    page.goto(f"{address}{path}")
                    page.wait_for_selector("#numbers dd, #paragraphs section", timeout=60_000)
                    for card in page.locator("figure.figure:visible").all():
                        card.scroll_into_view_if_needed()
                        page.wait_for_function(_DRAWN, arg=card.element_handle(), timeout=60_000)
                    page.evaluate("window.scrollTo(0, 0)")
                    page.wait_for_timeout(300)
                    page.screenshot(path=folder / f"page-{name}-{width}-{theme.name}.png", full_page=True)
                    page.close()
            print(f"page {name}")
        browser.close()


@contextmanager
def _served() -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(), log_level="error"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)


if __name__ == "__main__":
    main()
