"""A server that really listens, and a browser that really draws."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("fastapi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser that waited too long on a busy machine gets a second try; a wrong answer does not."""
    again = pytest.mark.flaky(reruns=1, only_rerun=["TimeoutError"])
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(again)


class running:  # noqa: N801 (reads as what it does)
    """`with running(token=...) as address:`"""

    def __init__(self, host: str = "127.0.0.1", token: str | None = None) -> None:
        import uvicorn  # noqa: PLC0415

        from specmargin.show.explorer.guard import allowed_hosts  # noqa: PLC0415
        from specmargin.show.explorer.server import make_app  # noqa: PLC0415

        self._socket = socket.socket()
        self._socket.bind((host, 0))
        self.address = f"http://{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(make_app(hosts=allowed_hosts(host), token=token), log_level="error")
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        for _ in range(200):
            if self._server.started:
                break
            time.sleep(0.05)
        return self.address

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: a test's output is its result."""


@contextmanager
def folder_served(folder: Path) -> Iterator[str]:
    """The address of a web server of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=300.0) as made:
        yield made


def _setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_browser", ROOT / "scripts" / "setup_browser.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _absent(what: str) -> None:
    """Where CI is set nothing may be missing; on other machines the tests say what they lack."""
    message = f"{what}: run `python scripts/setup_browser.py`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def axe_source() -> str:
    axe_path = _setup().axe()
    if axe_path is None:
        _absent("axe-core is not installed")
    return str(Path(axe_path).read_text(encoding="utf-8"))


@contextmanager
def launched() -> Iterator[Browser]:
    """Chromium; one per process, since Playwright allows no second."""
    chromium_path = _setup().chromium()
    if chromium_path is None:
        _absent("Chromium is not installed")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        # --no-sandbox: tests often run as root in a container, where Chromium refuses its own sandbox.
        browser = playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """Pages of one server, and what happened on them that may not: console errors, exceptions, requests to others."""

    def __init__(self, browser: Browser, server: str) -> None:
        self._browser, self._server = browser, server
        self.pages: list[Page] = []
        self.faults: list[str] = []

    def open(self, path: str = "/", *, width: int = 1280, height: int = 900, expect: str = "", **options: str) -> Page:
        """`expect`: part of a console error that the test provokes."""
        page = self._browser.new_page(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        self.pages.append(page)
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("console", lambda said: self._heard(said.type, said.text, expect))
        page.on("request", lambda asked: self._asked(asked.url))
        page.goto(f"{self._server}{path}")
        return page

    def _heard(self, kind: str, text: str, expect: str) -> None:
        if kind in ("error", "warning") and not (expect and expect in text):
            self.faults.append(f"console: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self._server, "data:", f"blob:{self._server}")):
            self.faults.append(f"external request: {url}")

    def close(self) -> None:
        for page in self.pages:
            page.close()


@pytest.fixture
def open_page(browser: Browser, server: str) -> Iterator[Callable[..., Page]]:
    """Open a path; at the end no console error, no exception and no request to anybody else may have happened."""
    watched = Watched(browser, server)
    yield watched.open
    watched.close()
    assert watched.faults == []


@pytest.fixture(scope="session")
def _kept(browser: Browser, server: str) -> Iterator[tuple[Watched, Page]]:
    watched = Watched(browser, server)
    yield watched, watched.open("/?prices=laws", expect="Failed to load resource")
    watched.close()


@pytest.fixture
def kept_page(_kept: tuple[Watched, Page]) -> Iterator[Page]:
    """The page of the default scenario, for tests that leave its state as it is: all of them share it."""
    watched, page = _kept
    page.wait_for_selector("#numbers dd")
    address = page.url
    page.evaluate("() => { scrollTo(0, 0); document.getElementById('error').hidden = true; }")
    yield page
    assert page.url == address
    assert watched.faults == []
