"""Fixtures shared by all tests, and where public data lies when it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session")
def published() -> Path:
    """The folder of published measurements; tests that need it are skipped, and say so, where it is absent."""
    folder = Path(os.environ.get("SPECMARGIN_PUBLISHED", ROOT.parent / "shared" / "published"))
    if not folder.is_dir():
        pytest.skip(f"published data not found at {folder} (set SPECMARGIN_PUBLISHED)")
    return folder
