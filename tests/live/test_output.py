"""Output is exactly what the engine would have produced, whatever we decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.live.models import Pair

from tests.live.conftest import DEPTH, Result, standard_batches

Run = Callable[..., Result]
SCHEDULE = [[1, 2, 4], [3, 8, 2], [9, 32, 1]]


@pytest.fixture(scope="session")
def plain(run_engine: Run) -> Result:
    """No speculation configured, nothing of ours."""
    return run_engine(speculative=False)


@pytest.fixture(scope="session")
def adaptive(run_engine: Run, policy: Path) -> Result:
    return run_engine({"mode": "adaptive", "policy": str(policy), "log_seconds": 0.5})


def test_fixed_speculation_without_us(run_engine: Run, plain: Result) -> None:
    """The engine's own claim, on which ours stands; and an engine without our configuration knows nothing of us."""
    fixed = run_engine(None)
    assert fixed.tokens == plain.tokens
    assert "specmargin" not in fixed.metrics
    assert "Specmargin" not in fixed.log


def test_schedule(run_engine: Run, plain: Result) -> None:
    found = run_engine({"mode": "schedule", "schedule": SCHEDULE})
    assert found.tokens == plain.tokens
    assert found.metric("specmargin_enabled") == 1.0
    drafted = {depth for request in found.requests if request for depth in request["per_step_drafted"]}
    assert max(drafted) == 4
    by_size = [found.requests[:1], found.requests[1:5], found.requests[5:]]
    deepest = [max(max(r["per_step_drafted"]) for r in requests if r) for requests in by_size]
    assert deepest[0] == 4
    assert deepest[1] <= 4  # two sequences may be left at the end
    assert deepest[1] >= 2


def test_adaptive(adaptive: Result, plain: Result) -> None:
    assert adaptive.tokens == plain.tokens
    assert "gated by the drafter's confidence" in adaptive.log
    assert "tokens a second of work" in adaptive.log  # the line in plain words
    chosen = sum(adaptive.metric(f"specmargin_{name}_total") for name in ("faults", "ignored_signals"))
    assert chosen == 0.0
    depths = [depth for request in adaptive.requests if request for depth in request["per_step_drafted"]]
    assert set(depths) != {DEPTH}  # it did decide


def test_its_counters_are_the_engines(adaptive: Result) -> None:
    assert adaptive.metric("specmargin_draft_tokens_total") == adaptive.metric(
        "vllm:spec_decode_num_draft_tokens_total"
    )
    accepted = adaptive.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert adaptive.metric("specmargin_accepted_tokens_total") == accepted


def test_observe_changes_nothing(run_engine: Run, plain: Result, policy: Path) -> None:
    found = run_engine({"mode": "observe", "policy": str(policy)})
    assert found.tokens == plain.tokens
    for request in found.requests:
        assert request is not None
        assert set(request["per_step_drafted"][:-1]) <= {DEPTH}  # the last may be cut by the request's own length
    assert found.metric("specmargin_depth_chosen_total") == found.metric("specmargin_steps_total")


def test_adaptive_in_another_process(run_engine: Run, plain: Result, policy: Path) -> None:
    found = run_engine({"mode": "adaptive", "policy": str(policy)}, multiprocess=True)
    assert found.tokens == plain.tokens
    assert found.metric("specmargin_steps_total") > 0
    assert found.metric("specmargin_ignored_signals_total") == 0


def test_requests_have_their_own_depths(run_engine: Run, pair: Pair, policy: Path) -> None:
    """Opt-out and maximum depth hold in the engine's own metrics, step by step."""
    limits = [None, 0, 1, 2]
    batch = [dict(request) for request in standard_batches(pair)[1]]
    for request, limit in zip(batch, limits, strict=True):
        request["extra_args"] = None if limit is None else {"specmargin_depth": limit}
    adaptive = _deepest(run_engine({"mode": "adaptive", "policy": str(policy)}, batches=[batch]))
    assert adaptive[0] > 0
    assert adaptive[1] == 0
    assert adaptive[2] == 1
    assert 1 <= adaptive[3] <= 2
    schedule = _deepest(run_engine({"mode": "schedule", "schedule": [[1, 32, 4]]}, batches=[batch]))
    assert schedule == [4, 0, 1, 2]  # and who asks for nothing is not held back


def _deepest(found: Result) -> list[int]:
    """Of each request, in the engine's own metrics."""
    return [max(request["per_step_drafted"], default=0) if request else 0 for request in found.requests]


def test_classes_have_their_own_schedules(run_engine: Run, pair: Pair) -> None:
    batch: list[dict[str, Any]] = [dict(request) for request in standard_batches(pair)[1]]
    for request, name in zip(batch, ("code", "code", "chat", "other"), strict=True):
        request["extra_args"] = {"specmargin_class": name}
    settings = {"mode": "schedule", "schedule": [[1, 32, 1]], "classes": {"code": [[1, 32, 5]], "chat": [[1, 32, 0]]}}
    assert _deepest(run_engine(settings, batches=[batch])) == [5, 5, 0, 1]
