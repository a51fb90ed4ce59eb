"""Whatever breaks in our code: the engine answers, its output is unchanged, the fault is counted and logged once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Result
from tests.live.test_output import plain  # noqa: F401  # a fixture

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("fault", "kinds", "stays_on"),
    [
        ("raises", ("verify decision", "depth decision", "outcome"), False),
        ("nonsense", ("depth decision",), False),
        ("sleeps", ("depth decision", "slow depth decision"), False),
        ("NaN confidence", (), True),
        ("missing confidence", (), True),
        ("misshapen confidence", (), True),
    ],
)
def test_faults_in_the_policy(
    run_engine: Run,
    plain: Result,  # noqa: F811
    policy: Path,
    fault: str,
    kinds: tuple[str, ...],
    stays_on: bool,
) -> None:
    settings: dict[str, Any] = {"mode": "adaptive", "policy": str(policy)}
    if fault == "sleeps":
        settings |= {"slowest_decision_seconds": 0.02}
    found = run_engine(settings, fault=fault)
    assert found.tokens == plain.tokens
    assert found.metric("specmargin_enabled") == float(stays_on)
    counted = sum(found.fault(kind) for kind in kinds)
    assert (counted > 0) == bool(kinds)
    assert found.log.count("Specmargin is off after") == int(not stays_on)
    for kind in kinds:
        assert found.log.count(f"Specmargin has a fault, {kind}:") <= 1
    if fault in ("NaN confidence", "misshapen confidence"):
        assert found.metric("specmargin_ignored_signals_total") > 0


def test_capture_folder_that_goes_away(run_engine: Run, plain: Result, tmp_path: Path) -> None:  # noqa: F811
    """A file stands where its folder should be: nothing can be written there."""
    folder = tmp_path / "capture"
    folder.write_text("in the way")
    settings = {"mode": "observe", "capture": {"folder": str(folder), "part_seconds": 0.2}}
    found = run_engine(settings)
    assert found.tokens == plain.tokens
    assert found.fault("capture") == 1
    assert found.metric("specmargin_enabled") == 1.0
    assert found.log.count("Specmargin has a fault, capture:") == 1


def test_capture_folder_removed(run_engine: Run, plain: Result, tmp_path: Path) -> None:  # noqa: F811
    settings = {"mode": "observe", "capture": {"folder": str(tmp_path / "bank"), "part_seconds": 0.2}}
    found = run_engine(settings, after_batch="remove capture", linger_seconds=0.5)
    assert found.tokens == plain.tokens
    assert found.metric("specmargin_enabled") == 1.0


def test_full_disk(run_engine: Run, plain: Result) -> None:  # noqa: F811
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    settings = {"mode": "observe", "capture": {"folder": "/dev/full/bank", "part_seconds": 0.2}}
    found = run_engine(settings)
    assert found.tokens == plain.tokens
    assert found.fault("capture") == 1


@pytest.mark.parametrize(
    ("settings", "environment", "sentence"),
    [
        ({"mode": "fast"}, {}, "mode must be 'observe', 'schedule' or 'adaptive', got 'fast'"),
        ({"mode": "adaptive"}, {}, "mode adaptive needs 'policy'"),
        ({"mode": "adaptive", "policy": "/nowhere.json"}, {}, "policy /nowhere.json: cannot be read"),
        (None, {"SPECMARGIN_CONFIG": "/nowhere/specmargin.json"}, "/nowhere/specmargin.json: cannot be read"),
    ],
)
def test_settings_that_cannot_be_taken(
    run_engine: Run,
    plain: Result,  # noqa: F811
    settings: dict[str, str] | None,
    environment: dict[str, str],
    sentence: str,
) -> None:
    found = run_engine(settings, environment=environment)
    assert found.tokens == plain.tokens
    assert found.log.count(sentence) == 1
    assert "Traceback" not in found.log
    assert found.metric("specmargin_enabled") == 0.0
    assert found.fault("configuration") == 1


def test_another_version_is_left_alone(run_engine: Run, plain: Result, tmp_path: Path) -> None:  # noqa: F811
    """vLLM says that it is of a version that nobody tested: one sentence, and nothing is patched."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, importlib.abc\n"
        "class Late(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'specmargin.live.vllm.configuring':\n"
        "            import vllm\n"
        "            vllm.__version__ = '9.99.0'\n"
        "sys.meta_path.insert(0, Late())\n"
    )
    found = run_engine({"mode": "observe"}, environment={"PYTHONPATH": str(tmp_path)})
    assert found.tokens == plain.tokens
    assert found.log.count("vLLM 9.99.0 is not supported") == 1
    assert "SpecmarginScheduler" not in found.log
