"""`make lab`: its parts, its table, and that errors are one sentence."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from lab.validation.__main__ import PARTS
from lab.validation.accuracy import SOURCES, Accuracy, show_accuracy
from rich.console import Console

from tests.conftest import ROOT


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_reports_and_has_a_command(part: str) -> None:
    assert callable(import_module(PARTS[part]).report)
    folder = ROOT / "lab" / "validation"
    assert (folder / f"{part}.py").is_file() or (folder / part / "__main__.py").is_file()
    assert f"python -m lab.validation.{part}" in (ROOT / "lab" / "README.md").read_text()


def test_the_table_has_a_column_per_source_and_fits_100_columns() -> None:
    errors = dict.fromkeys(SOURCES, "12.3% (+45.6%)")
    out = Console(record=True, width=100)
    lines = [Accuracy(what="a long name of something that was measured (p90)", count=541_889, errors=errors)]
    show_accuracy(out, [*lines, Accuracy(what="by tables alone", count=1, errors={"tables": "1.0%"})])
    text = out.export_text()
    assert all(source in text for source in SOURCES)
    assert text.count("12.3% (+45.6%)") == 3
    assert "541,889" in text


def test_a_part_that_does_not_exist_is_one_sentence() -> None:
    command = [sys.executable, "-m", "lab.validation", "everything"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("error: 'everything' is not a part; choose from served")
    assert "Traceback" not in done.stderr
