"""Pages of docs/results whose tables a command writes, between two marks."""

from __future__ import annotations

from pathlib import Path

from specmargin.errors import InputError

END = "<!-- end -->"


def replace_between(page: Path, begin: str, text: str, end: str = END) -> Path:
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise InputError(f"{page}: no place for the tables: {begin} … {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")
    return page
