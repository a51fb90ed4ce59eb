"""Random states of the page contradict neither themselves nor the command line; `make test-matrix` tries 200."""

from __future__ import annotations

from tests.explorer.agreement import State, faults, shown, states
from tests.explorer.command_agreement import answered, differences
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


def test_the_page_says_what_its_command_prints(open_page: Open, server: str) -> None:
    """Verdict with its limits and unknowns, bottleneck, break-even, memory, warnings and sources."""
    page, checked, wrong = open_page("/?prices=laws", height=500, expect="Failed to load resource"), 0, []
    for state in states(15, seed=36):
        if answered(page, f"{server}{state.address}"):
            checked += 1
            wrong += [f"{state.address}: {text}" for text in differences(page)]
    assert wrong == [] and checked >= 10


def test_differences_from_the_command_are_seen(open_page: Open, server: str) -> None:
    page = open_page("/?prices=laws", height=500)
    assert answered(page, f"{server}/?prices=laws") and list(differences(page)) == []
    cell = "#rows tbody tr:last-child td:last-child"
    for part in ("#sentence", "[data-tile=bottleneck] dd", "[data-tile=break-even] dd", cell, "#sources li"):
        before = page.inner_html(part)
        page.eval_on_selector(part, "e => { e.textContent = 'other'; }")
        assert list(differences(page)), part
        page.eval_on_selector(part, "(e, html) => { e.innerHTML = html; }", before)
    assert list(differences(page)) == []
