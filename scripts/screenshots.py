"""Every figure in light and dark, and the pages as a browser shows them, into a folder: to look at them all.

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

from specmargin.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.explorer.schema import Query
from specmargin.explorer.server import make_app
from specmargin.explorer.uploads import Uploads
from specmargin.explorer.view import View, view_of
from specmargin.figures.files import save
from specmargin.figures.theme import DARK, LIGHT

_PAGES = {"explore": "/", "compare": "/?vs=gpu%3Db200", "story": "/story"}
_WIDTHS = (1280, 400)
_DRAWN = """card => card.hidden || card.querySelector('.chart svg, .nothing button')
    || card.querySelector('.nothing')?.textContent.startsWith('Nothing')"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--model", default="qwen3.6-35b-a3b")
    asked.add_argument("--gpu", default="h200")
    asked.add_argument("--bank", type=Path)
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    uploads = Uploads()
    acceptance = None if given.bank is None else f"upload:{_bank(uploads, given.bank)}"
    view = view_of(Query(model=given.model, gpu=given.gpu, acceptance=acceptance), uploads)
    draw(view, given.folder)
    uploads.close()
    pages(given.folder)


def _bank(uploads: Uploads, folder: Path) -> str:
    first = uploads.add("acceptance", "acceptance.parquet", (folder / "acceptance.parquet").read_bytes())
    return uploads.add("speculator", "speculator.parquet", (folder / "speculator.parquet").read_bytes(), first.id).id


def draw(view: View, folder: Path) -> None:
    for name in GALLERY:
        try:
            found = figure(name, view)
        except DoesNotApplyError as error:
            print(f"{name}: {error}")
            continue
        for theme in (LIGHT, DARK):
            save(found.chart(theme), folder / f"{name}-{theme.name}.png")
        print(name)


def pages(folder: Path) -> None:
    """The pages themselves, whole, in both looks and two widths."""
    browser_path = chromium()
    if browser_path is None:
        print("no Chromium: run scripts/setup_browser.py for pictures of the pages")
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
                    for card in page.locator("figure.figure").all():
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
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(), log_level="error"))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)


if __name__ == "__main__":
    main()
