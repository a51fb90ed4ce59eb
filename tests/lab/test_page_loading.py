"""Page loads as the benchmark measures them: nothing moves, and the answer needs little of a connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from lab.speed.loading import DESKTOP, HELD, MODEL, PHONE, SITE_PATHS, loaded, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("vl_convert")
from specmargin.show.site.build import Selection, build_cells
from specmargin.show.site.pages import write_pages


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    selection = Selection(models=(MODEL,), gpus=("h200",), engines=("vllm",), drafters=("own", "ngram"))
    write_pages(folder, selection, build_cells(selection, folder, 1)[0], None)
    with served(folder) as address:
        yield address


@pytest.mark.parametrize("path", SITE_PATHS.values())
def test_the_sites_answer_needs_few_bytes_and_requests(browser: Browser, small_site: str, path: str) -> None:
    """At 400 kbit/s, 110 kB take 2.2 s; `python -m lab.speed.loading` measures the time to the answer."""
    load = loaded(browser, small_site + path, PHONE, slow=True, scroll=False)
    assert load.transferred_bytes <= 110_000 and load.requests <= 8


@pytest.mark.parametrize(("size", "held"), [(PHONE, None), *((DESKTOP, held) for held in (None, *HELD))])
def test_nothing_moves_while_the_page_loads(
    browser: Browser, small_site: str, server: str, size: tuple[int, int], held: str | None
) -> None:
    """Whatever comes last: each kind of response is held back until nothing else happens, and those of figures until
    what follows them is in sight, as on a machine that draws slowly."""
    for address in (f"{small_site}{MODEL}/", f"{server}/?prices=laws"):
        scroll = held not in ("scripts", "catalog")  # both come before the answer, figures after it
        load = loaded(browser, address, size, held=HELD[held] if held else None, scroll=scroll)
        assert load.layout_shift <= 0.1, load.moved
