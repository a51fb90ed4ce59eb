"""Where the data lies that tests compare with; `lab/data/sources.md` says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).resolve().parents[1] / "lab" / "data"

PUBLISHED = _DATA / "published"
SPEEDUPS = PUBLISHED / "speedups" / "points.csv"
REFERENCE_BANK = _DATA / "reference-bank"


def read_published(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((PUBLISHED / name).read_text(encoding="utf-8"))
    return values
