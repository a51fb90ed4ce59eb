"""Twenty random states of the page contradict themselves nowhere; `make test-matrix` tries 200."""

from __future__ import annotations

from tests.explorer.agreement import State, faults, shown, states
from tests.explorer.test_browser import Open


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
