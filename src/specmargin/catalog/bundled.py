"""Files that the catalog bundles, read once."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

FOLDER = files("specmargin.catalog")


def bundled_text(path: str) -> str:
    return (FOLDER / path).read_text(encoding="utf-8")


@cache
def read_bundled(path: str) -> Any:
    """The content of a JSON or TOML file."""
    return tomllib.loads(bundled_text(path)) if path.endswith(".toml") else json.loads(bundled_text(path))
