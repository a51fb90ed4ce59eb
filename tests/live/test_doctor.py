"""`specmargin doctor` on stock vLLM servers, healthy and with faults: the cause that it names is the one injected.

`python -m lab.live.doctor` injects the same faults, repeats them, and writes docs/results/doctor.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.live import servers
from lab.live.doctor import ENGINE, SETTLE_SECONDS, SUBJECTS, Subject, arguments, doctor_options
from lab.live.measuring import specmargin
from lab.live.models import Pair
from lab.live.pages import loaded

_READINGS = 4  # on a busy machine clients or the API server are held back: a reading without the load is taken again
_HERE = [subject for subject in SUBJECTS if subject.tested]


@pytest.mark.parametrize("subject", _HERE, ids=lambda subject: subject.name)
def test_the_injected_fault_is_named(served: Callable[..., Any], subject: Subject, pair: Pair, tmp_path: Path) -> None:
    """A load without fault has no cause; that this machine is slower than the one of the prices is no cause either."""
    environment = ENGINE | subject.environment
    with served(arguments(subject, pair), folder=tmp_path / "server", environment=environment) as server:
        named = {name: _named(server, subject, name) for name in subject.loads}
    assert named == {name: cause for name, (_, cause) in subject.loads.items()}


def _named(server: servers.Running, subject: Subject, name: str) -> str | None:
    options = [*doctor_options(), "--seconds", str(subject.observed_seconds), "--json"]
    if name in subject.with_log:
        options += ["--log", str(server.log)]
    answer: dict[str, Any] = {}
    with loaded(server.url, subject.loads[name][0], settle_seconds=SETTLE_SECONDS) as clients:
        for _ in range(_READINGS):
            answer = json.loads(specmargin("doctor", server.url, *options))
            batch = next(figure["seen"] for figure in answer["figures"] if figure["name"] == "batch")
            print(f"batch {batch}: {answer['verdict']}")
            if (batch or 0.0) >= subject.least_batch.get(name, 0.0):
                break
    assert not clients.failures, clients.failures[:3]
    cause = answer["cause"]
    return None if cause is None else str(cause)
