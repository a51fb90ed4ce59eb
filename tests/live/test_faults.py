"""Faults in Specmargin: the engine's output is unchanged, and each fault is counted and logged once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("raises", ("depth decision", "outcome")),
        ("nonsense", ("depth decision",)),
        ("sleeps", ("depth decision", "slow depth decision")),
    ],
)
def test_faults_in_the_policy(run_engine: Run, plain: Result, policy: Path, fault: str, kinds: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {"mode": "adaptive", "policy": str(policy)}
    if fault == "sleeps":
        settings |= {"slowest_decision_seconds": 0.02}
    result = run_engine(settings, fault=fault)
    assert result.tokens == plain.tokens
    assert result.metric("specmargin_enabled") == 0.0
    assert sum(result.fault(kind) for kind in kinds) > 0
    assert result.log.count("Specmargin is disabled after") == 1
    for kind in kinds:
        assert result.log.count(f"Specmargin fault ({kind}):") <= 1


def test_capture_folder_that_cannot_be_made(run_engine: Run, plain: Result, tmp_path: Path) -> None:
    """A file has the name of the folder, so that nothing can be written."""
    folder = tmp_path / "capture"
    folder.write_text("a file")
    settings = {"mode": "observe", "capture": {"folder": str(folder), "part_seconds": 0.2}}
    result = run_engine(settings)
    assert result.tokens == plain.tokens
    assert result.fault("capture") == 1
    assert result.metric("specmargin_enabled") == 1.0
    assert result.log.count("Specmargin fault (capture):") == 1


def test_capture_folder_removed(run_engine: Run, plain: Result, tmp_path: Path) -> None:
    settings = {"mode": "observe", "capture": {"folder": str(tmp_path / "bank"), "part_seconds": 0.2}}
    result = run_engine(settings, after_batch="remove capture", linger_seconds=0.5)
    assert result.tokens == plain.tokens
    assert result.metric("specmargin_enabled") == 1.0


def test_full_disk(run_engine: Run, plain: Result) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    settings = {"mode": "observe", "capture": {"folder": "/dev/full/bank", "part_seconds": 0.2}}
    result = run_engine(settings)
    assert result.tokens == plain.tokens
    assert result.fault("capture") == 1


@pytest.mark.parametrize(
    ("settings", "environment", "message"),
    [
        ({"mode": "fast"}, {}, "mode must be 'observe', 'schedule' or 'adaptive', got 'fast'"),
        ({"mode": "adaptive"}, {}, "mode adaptive needs 'policy'"),
        ({"mode": "adaptive", "policy": "/nowhere.json"}, {}, "policy /nowhere.json: cannot be read"),
        (None, {"SPECMARGIN_CONFIG": "/nowhere/specmargin.json"}, "/nowhere/specmargin.json: cannot be read"),
    ],
)
def test_invalid_settings(
    run_engine: Run,
    plain: Result,
    settings: dict[str, str] | None,
    environment: dict[str, str],
    message: str,
) -> None:
    result = run_engine(settings, environment=environment)
    assert result.tokens == plain.tokens
    assert result.log.count(message) == 1
    assert "Traceback" not in result.log
    assert result.metric("specmargin_enabled") == 0.0
    assert result.fault("configuration") == 1
