"""The repository stands alone: all data has a source, and no code reads a folder beside the checkout."""

from __future__ import annotations

import re

import pytest

from specmargin.validation.points_schema import read_points
from tests.conftest import ROOT
from tests.data import PUBLISHED

SOURCES = (PUBLISHED.parent / "sources.md").read_text(encoding="utf-8")
CODE = [path for folder in ("src", "tests", "lab", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")]
CLIMB = re.compile(r"Path\(__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]")


@pytest.mark.parametrize(("folder", "rows", "sources"), [("speedups", 237, 8), ("speedups-2", 131, 11)])
def test_every_published_speedup_has_a_source(folder: str, rows: int, sources: int) -> None:
    points = read_points(PUBLISHED / folder / "points.csv")
    assert len(points) == rows
    ids = {point.source for point in points}
    assert len(ids) == sources
    for name in ids:
        assert f"\n| {name} | " in SOURCES, f"{name}: no row in lab/data/sources.md"


def test_every_file_of_data_is_described() -> None:
    for path in PUBLISHED.iterdir():
        assert f"`published/{path.name}{'/' if path.is_dir() else ''}`" in SOURCES, path
    assert (PUBLISHED.parent / "reference-bank" / "README.md").is_file()


def test_no_code_leaves_the_repository() -> None:
    assert len(CODE) > 400
    for path in CODE:
        text, depth = path.read_text(encoding="utf-8"), len(path.relative_to(ROOT).parts)
        assert all(int(steps) < depth for steps in CLIMB.findall(text)), path
        assert re.search(r"\bROOT\.parent\b", text) is None or path.name == "test_data.py", path
