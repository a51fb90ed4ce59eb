"""The output is that of the plain engine, whatever Specmargin decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.live.models import Pair

from tests.live.conftest import DEPTH, Result, standard_batches

Run = Callable[..., Result]
SCHEDULE = [[1, 2, 4], [3, 8, 2], [9, 32, 1]]


@pytest.fixture(scope="session")
def adaptive(run_engine: Run, policy: Path) -> Result:
    return run_engine({"mode": "adaptive", "policy": str(policy), "log_seconds": 0.5})


def test_fixed_speculation_without_specmargin(run_engine: Run, plain: Result) -> None:
    """vLLM's own speculation does not change the output; without configuration the plug-in does nothing."""
    fixed = run_engine(None)
    assert fixed.tokens == plain.tokens
    assert "specmargin" not in fixed.metrics
    assert "Specmargin" not in fixed.log


def test_schedule(run_engine: Run, plain: Result) -> None:
    result = run_engine({"mode": "schedule", "schedule": SCHEDULE})
    assert result.tokens == plain.tokens
    assert result.metric("specmargin_enabled") == 1.0
    drafted = {depth for request in result.requests if request for depth in request["per_step_drafted"]}
    assert max(drafted) == 4
    by_size = [result.requests[:1], result.requests[1:5], result.requests[5:]]
    deepest = [max(max(r["per_step_drafted"]) for r in requests if r) for requests in by_size]
    assert deepest[0] == 4
    assert deepest[1] <= 4  # two sequences may be left at the end
    assert deepest[1] >= 2


def test_adaptive(adaptive: Result, plain: Result) -> None:
    assert adaptive.tokens == plain.tokens
    assert "depth by learned acceptance; drafts are verified in full" in adaptive.log
    assert "tokens per second of step time" in adaptive.log  # the periodic log line
    assert adaptive.metric("specmargin_faults_total") == 0.0
    depths = [depth for request in adaptive.requests if request for depth in request["per_step_drafted"]]
    assert set(depths) != {DEPTH}  # some decision differed from the fixed depth


def test_its_counters_are_the_engines(adaptive: Result) -> None:
    assert adaptive.metric("specmargin_draft_tokens_total") == adaptive.metric(
        "vllm:spec_decode_num_draft_tokens_total"
    )
    accepted = adaptive.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert adaptive.metric("specmargin_accepted_tokens_total") == accepted


def test_observe_changes_nothing(run_engine: Run, plain: Result, policy: Path) -> None:
    result = run_engine({"mode": "observe", "policy": str(policy)})
    assert result.tokens == plain.tokens
    for request in result.requests:
        assert request is not None
        assert set(request["per_step_drafted"][:-1]) <= {DEPTH}  # the last may be cut by the request's own length
    assert result.metric("specmargin_depth_chosen_total") == result.metric("specmargin_steps_total")


def test_adaptive_in_another_process(run_engine: Run, plain: Result, policy: Path) -> None:
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, multiprocess=True)
    assert result.tokens == plain.tokens
    assert result.metric("specmargin_steps_total") > 0
    assert result.metric("specmargin_faults_total") == 0


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
    assert schedule == [4, 0, 1, 2]  # a request without a limit is not restricted


def _deepest(result: Result) -> list[int]:
    """The deepest draft of each request, in the engine's own metrics."""
    return [max(request["per_step_drafted"], default=0) if request else 0 for request in result.requests]


def test_classes_have_their_own_schedules(run_engine: Run, pair: Pair) -> None:
    batch: list[dict[str, Any]] = [dict(request) for request in standard_batches(pair)[1]]
    for request, name in zip(batch, ("code", "code", "chat", "other"), strict=True):
        request["extra_args"] = {"specmargin_class": name}
    settings = {"mode": "schedule", "schedule": [[1, 32, 1]], "classes": {"code": [[1, 32, 5]], "chat": [[1, 32, 0]]}}
    assert _deepest(run_engine(settings, batches=[batch])) == [5, 5, 0, 1]
