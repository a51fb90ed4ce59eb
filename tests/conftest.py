"""Fixtures shared by all tests, and where public data lies when it is there."""

from __future__ import annotations

import hashlib
import os
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Once per run: compiled functions are cached by their own file, and would outlive a change of what they call."""
    if not hasattr(config, "workerinput"):
        _drop_stale_compiled()


def _drop_stale_compiled() -> None:
    places = [ROOT / "src", ROOT / "tests"]
    texts = [path.read_bytes() for place in places for path in sorted(place.rglob("*.py"))]
    compiled = [text for text in texts if b"compiling import" in text or b"import numba" in text]
    digest, kept = hashlib.sha256(b"".join(compiled)).hexdigest(), ROOT / ".cache" / "compiled.sha256"
    if kept.is_file() and kept.read_text() == digest:
        return
    for place, ending in product(places, ("*.nbi", "*.nbc")):
        for path in place.rglob(ending):
            path.unlink(missing_ok=True)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(digest)


@pytest.fixture(scope="session")
def published() -> Path:
    """The folder of published measurements; tests that need it are skipped, and say so, where it is absent."""
    folder = Path(os.environ.get("SPECMARGIN_PUBLISHED", ROOT.parent / "shared" / "published"))
    if not folder.is_dir():
        pytest.skip(f"published data not found at {folder} (set SPECMARGIN_PUBLISHED)")
    return folder
