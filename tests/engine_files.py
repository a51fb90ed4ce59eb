"""Files of the engines' releases, as `scripts/fetch_engines.py` fetches them; tests that lack one say so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import fetch_engines
import package_index

__all__ = ["absent", "fetch_engines", "package", "package_index"]


def package(engine: str, version: str) -> Path:
    """The folder of that release's files, fetched or not."""
    return fetch_engines.package(engine, version)


def absent(what: str) -> None:
    """Where CI is set nothing may be missing; on other machines the tests say what they lack."""
    message = f"{what}: run `python scripts/fetch_engines.py`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
