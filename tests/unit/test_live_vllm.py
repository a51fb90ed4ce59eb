"""The plug-in's hooks on a stub of vLLM: outcomes without work per request, and CUDA graphs for every depth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.live.stub_engine import ModelRunnerOutput, Request, SchedulerOutput, configuration, specmargin_scheduler

from specmargin.live.policy_schema import policy_text
from specmargin.live.settings_schema import read_settings
from specmargin.live.vllm import graphs, outcomes
from tests.unit.live import DEPTH, built, policy_file, register_in


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "stub.policy.json"
    path.write_text(policy_text(policy_file(gated=False)))
    return path


@pytest.fixture
def scheduler(policy: Path) -> Iterator[Any]:
    with specmargin_scheduler() as kind:
        settings = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 60.0}
        made = kind(vllm_config=configuration(settings), depth=DEPTH)
        assert made._driver is not None
        for i in range(4):
            made.add_request(Request(f"r{i}"))
        yield made


def output(scheduled: SchedulerOutput, sampled: int = 1) -> ModelRunnerOutput:
    ids = list(scheduled.num_scheduled_tokens)
    rows = [[7] * min(sampled, tokens) for tokens in scheduled.num_scheduled_tokens.values()]
    return ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, rows)


# --- outcomes ---


def test_steps_are_decided_and_learned_from(scheduler: Any) -> None:
    driver = scheduler._driver
    for _ in range(24):
        scheduled = scheduler.schedule()
        assert scheduler.update_from_output(scheduled, output(scheduled, 2)) == ["r0", "r1", "r2", "r3"]
    driver.settle()
    assert driver.board["steps_total"] == 24
    assert driver.board["committed_tokens_total"] == 4 + 23 * 8  # the first step has no drafts
    assert driver.policy.kernel().learned.times.seen[:, 0].sum() == 24
    assert driver.guard.faults.total() == 0
    assert driver.board["decision_seconds_total"] > 0.0


def test_steps_alike_are_read_as_by_request() -> None:
    scheduled = SchedulerOutput({"a": 3, "b": 3, "c": 3}, {name: [-1, -1] for name in "abc"}, 2)
    made = ModelRunnerOutput(list("cab"), {"c": 0, "a": 1, "b": 2}, [[1], [1, 2, 3], [1, 2]])
    known = {name: SimpleNamespace(num_computed_tokens=9) for name in "abc"}
    alike, by_request = (
        outcomes._alike(scheduled, made),
        outcomes._by_request(scheduled, made, known, with_contexts=True),
    )
    assert alike is not None
    assert by_request.accepted.tolist() == [2, 1, 0]
    assert sorted(alike.accepted.tolist()) == sorted(by_request.accepted.tolist())
    assert alike.verified.tolist() == by_request.verified.tolist() == [2, 2, 2]
    assert (alike.verified_tokens, alike.accepted_tokens) == (by_request.verified_tokens, by_request.accepted_tokens)
    assert list(by_request.contexts) == [9, 9, 9]


def test_prompts_and_removed_requests_are_no_rounds() -> None:
    """A prompt of the same length as a draft, a request that is gone, one whose sampled tokens were discarded."""
    scheduled = SchedulerOutput(
        {"prompt": 3, "gone": 3, "kept": 3, "discarded": 3, "other": 40},
        {name: [-1, -1] for name in ("gone", "kept", "discarded")},
        2,
        {"kept": 1},
    )
    ids = list(scheduled.num_scheduled_tokens)
    made = ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, [[1], [1], [1, 2], [], []])
    known = {name: SimpleNamespace(num_computed_tokens=9) for name in ids if name != "gone"}
    assert outcomes._alike(scheduled, made) is None
    step = outcomes._by_request(scheduled, made, known, with_contexts=False)
    assert (list(step.request_ids), step.verified.tolist(), step.accepted.tolist()) == (["kept"], [1], [1])
    assert step.prompt_tokens == 3 + 3 + 40
    nothing = outcomes._by_request(scheduled, ModelRunnerOutput([], {}, []), known, with_contexts=False)
    assert nothing.verified.size == 0


def test_nothing_of_ours_raises_into_the_engine(scheduler: Any) -> None:
    """Whatever breaks inside, the engine's own result comes back; after five faults in a row nothing of ours runs."""
    driver = scheduler._driver
    driver.policy = SimpleNamespace(draft=lambda _: 1 / 0, observe=lambda _: 1 / 0, outlook=lambda *_: 1 / 0)
    driver._limited, scheduler._truncate_drafts = 1, lambda _: 1 / 0
    for _ in range(20):
        scheduled = scheduler.schedule()
        assert scheduled.num_spec_tokens_to_schedule == DEPTH  # vLLM's own
        assert len(scheduler.update_from_output(scheduled, output(scheduled))) == 4
    assert driver.guard.off
    assert scheduler._driver is None
    assert driver.board["enabled"] == 0.0
    scheduler.shutdown()


def test_depths_without_a_graph_are_never_chosen(policy: Path) -> None:
    """Full graphs of at most 8 positions, for depths 0, 1 and 3."""
    full = SimpleNamespace(value=2, has_full_cudagraphs=lambda: True)
    with specmargin_scheduler() as kind:
        config = configuration(
            {"mode": "adaptive", "policy": str(policy)}, cudagraph_mode=full, max_cudagraph_capture_size=8
        )

        class WithTable(kind):  # type: ignore[misc, valid-type]
            def _start(self) -> None:
                self.dynamic_sd_lookup = [3, 3, 1, 0]
                super()._start()

        made = WithTable(vllm_config=config, depth=DEPTH)
        depths = {batch: {made._driver.draft_depth(range(batch)) for _ in range(300)} for batch in (1, 2, 4, 8)}
    assert depths[1] <= {0, 1, 3}
    assert depths[2] <= {0, 1, 3}
    assert depths[4] <= {0, 1}
    assert depths[8] == {0}


# --- graphs ---


def arguments(**given: Any) -> Any:
    speculative = {"method": "eagle3", "model": "head", "num_speculative_tokens": DEPTH}
    return SimpleNamespace(
        **{"speculative_config": speculative, "max_num_seqs": None, "data_parallel_size": 1, "additional_config": {}}
        | given
    )


def adaptive(policy: Path, **given: Any) -> Any:
    return read_settings({"mode": "adaptive", "policy": str(policy)} | given, "test")


def wide(policy: Path) -> Path:
    """The same policy for 64 sequences: a schedule of depths 3 and 1, others worth a graph."""
    file = json.loads(policy.read_text())
    file["table"]["graph_depth_by_batch"] = [4] * 13 + [2] * 52
    policy.write_text(json.dumps(file | {"schedule": [[1, 8, 3], [9, 64, 1]], "graph_depths": [0, 1, 2, 3, 4]}))
    return policy


def test_the_table_is_the_schedule_with_other_depths_at_single_batch_sizes(policy: Path) -> None:
    log: list[str] = []
    args = arguments()
    before = dict(args.speculative_config)
    made = graphs.add_depth_table(args.speculative_config, args, adaptive(wide(policy)), log.append)
    table = made[graphs.TABLE]
    by_batch = {batch: depth for first, last, depth in table for batch in range(first, last + 1)}
    assert sorted(by_batch) == list(range(1, 257))
    assert set(by_batch.values()) == {0, 1, 2, 3, 4}
    other = {batch: depth for batch, depth in by_batch.items() if depth != (3 if batch <= 8 else 1)}
    assert other == {5: 4, 61: 2, 53: 0}  # one batch size each, where the depth has a graph
    assert {name: value for name, value in made.items() if name != graphs.TABLE} == before == args.speculative_config
    assert "0, 1, 2, 3, 4" in log[0]


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"speculative_config": None}, {}),
        ({"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, graphs.TABLE: [[1, 8, 2]]}}, {}),
        ({"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}}, {}),
        ({"speculative_config": {"method": "eagle3"}}, {}),
        ({"data_parallel_size": 2}, {}),
        ({}, {"mode": "observe"}),
        ({}, {"graphs": False}),
    ],
)
def test_where_no_table_is_added(policy: Path, given: dict[str, Any], settings: dict[str, Any]) -> None:
    args = arguments(**given)
    given = args.speculative_config
    assert graphs.add_depth_table(given, args, adaptive(policy, **settings), lambda _: None) is given


def test_few_sequences_leave_no_room_for_other_depths(policy: Path) -> None:
    assert {depth for _, _, depth in graphs.depth_table(adaptive(wide(policy)), DEPTH, 4)} == {3}
    assert graphs.depth_table(adaptive(policy, mode="schedule"), 2, 64) == [(1, 8, 2), (9, 64, 1)]


def test_a_schedule_of_the_settings_is_the_table_in_mode_schedule(policy: Path) -> None:
    own = [[1, 4, 2], [5, 64, 0]]
    alone = read_settings({"mode": "schedule", "schedule": own}, "test")
    for settings in (alone, adaptive(policy, mode="schedule", schedule=own)):
        args = arguments(max_num_seqs=64)
        made = graphs.add_depth_table(args.speculative_config, args, settings, lambda _: None)
        assert made[graphs.TABLE] == own


def test_drafters_that_ignore_the_depth_are_named() -> None:
    def speculative(method: str, *, several: bool) -> Any:
        return SimpleNamespace(method=method, num_speculative_tokens=3, use_multi_module_mtp=lambda: several)

    assert "a draft model" in (graphs.depth_note(speculative("draft_model", several=False)) or "")
    assert "several MTP modules" in (graphs.depth_note(speculative("mtp", several=True)) or "")
    assert graphs.depth_note(speculative("mtp", several=False)) is None
    assert graphs.depth_note(speculative("eagle3", several=False)) is None


@pytest.mark.parametrize("fails", [False, True])
def test_the_table_reaches_vllm_and_is_taken_back_if_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, policy: Path, fails: bool
) -> None:
    seen: list[bool] = []

    class EngineArgs:
        def __init__(self) -> None:
            vars(self).update(vars(arguments(additional_config={"specmargin": {}})))

        def create_engine_config(self) -> Any:
            seen.append(graphs.TABLE in self.speculative_config)  # type: ignore[attr-defined]
            if fails and seen[-1]:
                raise ValueError("no such table")
            return SimpleNamespace(additional_config={"specmargin": {}})

    def wishes(args: Any) -> Iterator[tuple[Any, Any]]:
        yield graphs.add_depth_table(args.speculative_config, args, adaptive(policy), lambda _: None), lambda _: False

    register_in(monkeypatch, EngineArgs, wishes=wishes)
    args: Any = EngineArgs()
    assert args.create_engine_config() is not None
    assert fails != (graphs.TABLE in args.speculative_config)
    assert seen == ([True, False] if fails else [True])


def test_captured_depths_bound_those_of_the_settings(tmp_path: Path) -> None:
    driver = built(tmp_path, {"mode": "adaptive", "candidates": [1, 2]}, gated=False)
    assert driver.policy is not None
    kernel = driver.policy.kernel()
    assert kernel is not None
    assert np.flatnonzero(kernel.rules.allowed).tolist() == [0, 1, 2]
