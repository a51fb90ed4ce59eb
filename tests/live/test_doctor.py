"""`specmargin doctor` on stock vLLM servers, healthy and with faults: the cause that it names is the one injected.

`python -m lab.live.doctor` injects the same faults, repeats them, and writes docs/results/doctor.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.live import servers
from lab.live.doctor import ENGINE, SETTLE_SECONDS, SUBJECTS, Subject, arguments, doctor_options
from lab.live.measuring import specmargin
from lab.live.models import Pair
from lab.live.pages import loaded

# A neighbour on this machine may spoil a reading. One without the load does not count; after a wrong one, two more are
# taken, and the answer that most of them give is the one that must be right.
_READINGS, _MOST_READINGS = 3, 6
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
    load, right = subject.loads[name]
    causes = list[str | None]()
    with loaded(server.url, load, settle_seconds=SETTLE_SECONDS) as clients:
        for _ in range(_MOST_READINGS):
            answer = json.loads(specmargin("doctor", server.url, *options))
            batch = next(figure["seen"] for figure in answer["figures"] if figure["name"] == "batch")
            print(f"{name}, batch {batch}: {answer['verdict']}")
            if (batch or 0.0) >= subject.least_batch.get(name, 0.0):
                causes.append(answer["cause"])
            if causes == [right] or len(causes) == _READINGS:
                break
    assert not clients.failures, clients.failures[:3]
    assert causes, f"{name}: no reading with {subject.least_batch[name]:g} sequences"
    return Counter(causes).most_common(1)[0][0]
