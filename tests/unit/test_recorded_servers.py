"""`doctor` on recorded servers (tests/recordings): the injected cause leads; a healthy server has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.live.replay import faster, judged, read_recording, request_of, without_server_info

from tests.conftest import ROOT

RECORDINGS = sorted((ROOT / "tests" / "recordings").glob("*.json"))
ON_GPU = [path for path in RECORDINGS if path.stem.startswith("vllm-h200")]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_injected_fault_leads(path: Path) -> None:
    recording = read_recording(path)
    assert _leading(recording, with_log=bool(recording["about"].get("with_log"))) in _right(recording)


@pytest.mark.parametrize("path", ON_GPU, ids=lambda path: path.stem)
def test_a_log_shows_what_the_settings_page_shows(path: Path) -> None:
    """Servers have that page only in vLLM's developer mode."""
    recording = read_recording(path)
    assert _leading(without_server_info(recording), with_log=True) in _right(recording)


@pytest.mark.parametrize("path", ON_GPU, ids=lambda path: path.stem)
def test_metrics_alone_name_no_other_cause(path: Path) -> None:
    """What they do not show (graphs, eager) is not named."""
    recording = read_recording(path)
    assert _leading(without_server_info(recording)) in (None, *_right(recording))


@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0])
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_machine_faster_than_its_prices_has_no_other_cause(path: Path, factor: float) -> None:
    """Prompts that such a machine reads cost it less than their price, as decoding does."""
    recording = faster(read_recording(path), factor)
    with_log = bool(recording["about"].get("with_log"))
    leading = _leading(recording, with_log=with_log)
    assert leading in (None, *_right(recording))
    if recording["about"]["cause"] in ("prompts", "depth-too-deep", "drafter-broken", "memory"):
        assert leading is not None  # these do not show in the time of a round


def _right(recording: dict[str, Any]) -> tuple[str | None, ...]:
    """What was injected, and what else is wrong with that server without having been meant."""
    return (recording["about"]["cause"], *recording["about"].get("also", ()))


def _leading(recording: dict[str, Any], *, with_log: bool = False) -> str | None:
    answer = judged(recording, request_of(recording), with_log=with_log)
    print(answer.verdict)
    return answer.findings[0].id if answer.findings else None


def test_enough_is_recorded() -> None:
    """At least ten faults and five healthy runs of real servers; nothing of the machine that recorded them."""
    real = [path for path in RECORDINGS if "from-source" not in path.stem]
    causes = [read_recording(path)["about"]["cause"] for path in real]
    assert sum(cause is None for cause in causes) >= 5
    assert len([cause for cause in causes if cause]) >= 10
    assert not [path.name for path in RECORDINGS if "/tmp/" in path.read_text()]
