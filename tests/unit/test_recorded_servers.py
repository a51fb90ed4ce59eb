"""`doctor` on recorded servers (tests/recordings): the injected cause leads; a healthy server has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.live.replay import judged, read_recording, request_of

from tests.conftest import ROOT

RECORDINGS = sorted((ROOT / "tests" / "recordings").glob("*.json"))
#: Judged wrongly today, and why; docs/results/doctor.md counts them as wrong.
WRONG = {
    "llamacpp-long-prompts": "the share of prompts needs prices, though the server counts their seconds",
    "vllm-cpu-by-table-disabled": "depth leads though 3% of the steps draft",
    "vllm-cpu-by-table-eager": "enforce_eager in the log is not read",
    "vllm-cpu-slow-host-sleeps": "batches of moments are gauges, and differ from those of their steps",
    "vllm-h200-eager-drafting-batch-8": "drafting without graphs has the price of drafting with them",
    "vllm-h200-eager-drafting-batch-64": "drafting without graphs has the price of drafting with them",
}


def _cases() -> list[object]:
    marks = {name: pytest.mark.xfail(reason=why, strict=True) for name, why in WRONG.items()}
    return [pytest.param(path, id=path.stem, marks=marks.get(path.stem, ())) for path in RECORDINGS]


@pytest.mark.parametrize("path", _cases())
def test_the_injected_fault_leads(path: Path) -> None:
    recording = read_recording(path)
    about = recording["about"]
    answer = judged(recording, request_of(recording), with_log=bool(about.get("with_log")))
    causes = [finding.id for finding in answer.findings]
    assert (causes[0] if causes else None) == about["cause"], answer.verdict


def test_enough_is_recorded() -> None:
    """At least ten faults and five healthy runs of real servers; nothing of the machine that recorded them."""
    real = [path for path in RECORDINGS if "from-source" not in path.stem]
    causes = [read_recording(path)["about"]["cause"] for path in real]
    assert sum(cause is None for cause in causes) >= 5
    assert len([cause for cause in causes if cause]) >= 10
    assert not [path.name for path in RECORDINGS if "/tmp/" in path.read_text()]
