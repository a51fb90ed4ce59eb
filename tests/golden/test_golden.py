"""Prices, plans, decisions and public names equal the recorded ones. See README.md in this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.golden import cells, files, predictions
from tests.golden.comparison import Change, summary
from tests.golden.parts import Part, compute, in_parallel, left_over, parts

MOST_BYTES = 5_000_000
ADVICE = "if this is intended, run `python -m tests.golden` and commit what it writes and prints"


@pytest.fixture(scope="session")
def part_named(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Part]]:
    """Parts of the tests that run. On all cores, unless pytest itself does that already."""
    named = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [call.params["part"] for call in named if call is not None and "part" in call.params]
    if len(wanted) < 2 or "PYTEST_XDIST_WORKER" in os.environ:
        yield compute
        return
    with in_parallel(wanted) as running:
        yield running


@pytest.mark.parametrize("part", list(parts()))
def test_nothing_moved(part: str, part_named: Callable[[str], Part]) -> None:
    """Numbers to 0.1%, all else exactly, but for ties, which are printed."""
    changes = part_named(part).changes()
    ties = [change for change in changes if change.tie]
    if ties:
        print(f"accepted, because rounding decides:\n{summary(ties)}")
    moved = [change for change in changes if not change.tie]
    assert not moved, _report(moved)


def test_every_recorded_row_is_still_asked_for() -> None:
    left = left_over()
    assert not left, _report(left)


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in files.DATA.iterdir()) < MOST_BYTES


def test_enough_is_recorded() -> None:
    frame = files.read_frame("cells", predictions.CELLS)
    assert (frame["outcome"] == "priced").sum() > 1300
    assert frame["model"].n_unique() >= 20
    assert frame["gpu"].n_unique() >= 6
    assert set(frame["engine"]) == set(cells.ENGINES)
    assert set(frame["prices"]) >= set(cells.PRICES)


def _report(changes: list[Change]) -> str:
    return f"{summary(changes)}\n{ADVICE}"
