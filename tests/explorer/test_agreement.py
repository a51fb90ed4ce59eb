"""Random states of the page contradict neither themselves nor the command line; `make test-matrix` tries 200, and 60
of the static site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.explorer.agreement import State, faults, shown, states
from tests.explorer.command_agreement import answered, differences, site_addresses, write_site
from tests.explorer.conftest import folder_served
from tests.explorer.test_browser import Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_parts_of_the_page_agree(open_page: Open, server: str) -> None:
    page = open_page("/?prices=laws", height=500, expect="Failed to load resource")
    wrong = [f"{state.address}: {fault}" for state in states(20) for fault in faults(shown(page, server, state))]
    assert wrong == []


def test_contradictions_are_seen(open_page: Open, server: str) -> None:
    """The check itself: each part changed alone is a fault."""
    seen = shown(open_page("/?prices=laws", height=500), server, State((("prices", "laws"),)))
    assert list(faults(seen)) == []
    strip = [part | {"depth": part["depth"] + 1} for part in seen["strip"]]
    for change in ({"copies": not seen["copies"]}, {"strip": strip}, {"line": "Yes: 9.99× at batch 1"}):
        assert list(faults(seen | change))


def test_the_page_says_what_its_command_prints(open_page: Open, server: str) -> None:
    """Verdict with its limits and unknowns, bottleneck, break-even, memory, warnings and sources."""
    page, checked, wrong = open_page("/?prices=laws", height=500, expect="Failed to load resource"), 0, []
    for state in states(15, seed=36):
        if answered(page, f"{server}{state.address}"):
            checked += 1
            wrong += [f"{state.address}: {text}" for text in differences(page)]
    assert wrong == [] and checked >= 10


@pytest.fixture(scope="module")
def several_cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    write_site(folder)
    with folder_served(folder) as address:
        yield address


def test_the_static_site_says_what_its_command_prints(browser: Browser, several_cells: str) -> None:
    page = browser.new_page()
    paths = list(site_addresses(20))
    seen = [
        (path, text)
        for path in paths
        if answered(page, several_cells + path)
        for text in differences(page, exact=False)
    ]
    page.close()
    assert seen == []
