"""`doctor` on recorded servers (tests/recordings): the injected cause leads; a healthy server has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.live.replay import judged, read_recording, request_of

from tests.conftest import ROOT

RECORDINGS = sorted((ROOT / "tests" / "recordings").glob("*.json"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_injected_fault_leads(path: Path) -> None:
    recording = read_recording(path)
    about = recording["about"]
    answer = judged(recording, request_of(recording), with_log=bool(about.get("with_log")))
    causes = [finding.id for finding in answer.findings]
    assert (causes[0] if causes else None) == about["cause"], answer.verdict


def test_enough_is_recorded() -> None:
    """At least ten faults and five healthy runs of real servers."""
    causes = [read_recording(path)["about"]["cause"] for path in RECORDINGS]
    assert sum(cause is None for cause in causes) >= 5
    assert len([cause for cause in causes if cause]) >= 10
