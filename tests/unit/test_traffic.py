"""Clients of the simulated service: traces with block hashes, sessions, cancelled requests, priorities."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specmargin.acceptance.survival import parse_acceptance
from specmargin.errors import ScenarioError
from specmargin.modes import Scheduling
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.rounds import drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.traces import read_trace
from specmargin.simulator.traffic import traffic_of
from specmargin.simulator.workload import (
    Cancels,
    Category,
    ClosedLoop,
    FixedLength,
    Poisson,
    Sessions,
    Trace,
    UniformLength,
    Workload,
)
from tests.simulations import curve_bank, serving

SMALL = EngineSettings(max_num_seqs=8, max_num_batched_tokens=512, kv_blocks=400)


def mooncake(folder: Path, rows: list[dict[str, object]]) -> Path:
    """Synthetic, in the format of Mooncake's published traces."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(timestamp: float, prompt: object, output: object, ids: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": ids}


# --- traces ---


def test_mooncakes_traces_are_read_as_published(tmp_path: Path) -> None:
    """Milliseconds, and one hash per 512 tokens of the prompt; the last block may be partial."""
    rows = [row(0, 1100, 4, [0, 1, 2]), row(500, 1030, 9, [0, 1, 7]), row(700, 40, 0, [9]), row(2500, 40, 3, [9])]
    trace = read_trace(mooncake(tmp_path, rows))
    assert trace.arrival_seconds.tolist() == [0.0, 0.5, 2.5]  # a request without output is left out
    result = simulate(serving(arrivals=trace, engine=SMALL))
    # 1,024 tokens are shared; the first 32 of [9] have been left out with their request.
    assert result.clients["cached_tokens"].tolist() == [0, 1024, 0]
    summary = result.summary()
    assert summary["prefix_hits"] == 1024 and summary["prefix_queries"] == 2170
    assert result.request_columns()["cached_tokens"].tolist() == [0, 1024, 0]


def test_a_prompt_in_the_cache_is_computed_again_from_its_last_block_on(tmp_path: Path) -> None:
    """At least one token is computed; a head needs the hidden states of one block more."""
    trace = read_trace(mooncake(tmp_path, [row(0, 512, 1, [3]), row(1000, 512, 1, [3]), row(2000, 500, 1, [3])]))
    plain = simulate(serving(arrivals=trace, engine=SMALL))
    assert plain.clients["cached_tokens"].tolist() == [0, 512 - 16, 31 * 16]
    head = simulate(serving(arrivals=trace, engine=SMALL, drafter="eagle", policy="fixed:2"))
    assert head.clients["cached_tokens"].tolist() == [0, 512 - 32, 30 * 16]
    without = simulate(serving(arrivals=trace, engine=replace(SMALL, prefix_cache=False)))
    assert without.totals.prefix_hits == 0 and "prefix_hits" not in without.summary()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1, 600, 2, [1, 2, 3]), "line 2: hash_ids has more blocks than the prompt has of 512 tokens; give"),
        (row(1, 600, 2, [1, 2.5]), r"line 2: hash_ids must hold lists of whole numbers, got \[1, 2.5\]"),
        (row(1, 600, 2, "1,2"), 'line 2: hash_ids must hold lists of whole numbers, got "1,2"'),
        (row(1.5, 600, 2, [1]), "line 2: timestamp is in milliseconds beside input_length, and has a fraction"),
        (row(1, "many", 2, [1]), 'line 2: input_length must hold numbers, got "many"'),
        ({"timestamp": 1, "input_length": 5, "hash_ids": [1]}, "line 2: output_length is missing"),
    ],
)
def test_errors_of_traces_name_line_and_field(tmp_path: Path, bad: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_trace(mooncake(tmp_path, [row(0, 600, 2, [1, 2]), bad]))


def test_blocks_of_another_size_are_given_as_hash_tokens(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [row(0, 600, 2, list(range(10))), row(90, 600, 2, [0, 1, 2])])
    trace = read_trace(path, hash_tokens=64)
    assert simulate(serving(arrivals=trace, engine=SMALL)).totals.prefix_hits == 192
    with pytest.raises(ScenarioError, match="a multiple of 16 tokens, got hash_tokens = 60"):
        read_trace(path, hash_tokens=60)


def test_traces_may_have_priorities_and_cancelled_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    header = "arrival_seconds,prompt_tokens,output_tokens,priority,cancel_tokens,cancel_seconds\n"
    path.write_text(header + "0,50,40,1,,\n0.001,50,40,,7,\n0.002,50,40,2,,0.004\n")
    result = simulate(serving(arrivals=read_trace(path), engine=SMALL))
    assert result.finished.tolist() == [True, False, False]
    assert result.clients["priority"].tolist() == [1, 0, 2]
    assert result.requests["emitted"][1] == 7
    assert result.clients["cancelled_seconds"][2] == pytest.approx(0.006)
    path.write_text(header + "0,50,40,1.5,,\n")
    with pytest.raises(ScenarioError, match=r"line 2: priority must be a whole number"):
        read_trace(path)


# --- sessions ---


def test_a_turn_repeats_what_was_said_and_finds_it_in_the_cache() -> None:
    """Turns of 100 new and 20 generated tokens after a system prompt of 64: prompts of 164, 284, 404."""
    sessions = Sessions(turns=FixedLength(tokens=3), think_seconds=0.5, shared_tokens=64)
    base = serving(
        arrivals=ClosedLoop(users=1, requests=6),
        prompt=FixedLength(tokens=100),
        output=FixedLength(tokens=20),
        engine=SMALL,
    )
    result = simulate(replace(base, workload=replace(base.workload, sessions=sessions)))
    assert result.requests["prompt_tokens"].tolist() == [164, 284, 404, 164, 284, 404]
    # What a turn computed is found in whole blocks: 183 tokens of the first (the last token was not computed).
    assert result.clients["cached_tokens"].tolist() == [0, 176, 288, 64, 176, 288]
    gaps = result.requests["arrival_seconds"][[1, 2]] - result.requests["finish_seconds"][[0, 1]]
    np.testing.assert_allclose(gaps, result.clients["think_seconds"][[0, 1]], atol=1e-12)
    assert result.requests["arrival_seconds"][3] == result.requests["finish_seconds"][2]  # the user's next session


def test_sessions_count_turns_as_requests_and_think_for_the_given_mean() -> None:
    workload = Workload(
        arrivals=Poisson(requests_per_second=2.0, requests=3000),
        prompt=UniformLength(least=1, most=9),
        output=FixedLength(tokens=4),
        sessions=Sessions(turns=UniformLength(least=1, most=5), think_seconds=7.0),
    )
    traffic = traffic_of(workload, 1)
    starts = np.isfinite(traffic.requests["arrival_seconds"])
    assert traffic.requests.size == 3000
    assert 3000 / starts.sum() == pytest.approx(3.0, rel=0.05)
    assert np.diff(traffic.requests["arrival_seconds"][starts]).mean() == pytest.approx(0.5, rel=0.1)
    assert traffic.clients["think_seconds"].mean() == pytest.approx(7.0, rel=0.1)


def test_sessions_of_one_category_share_its_system_prompt_alone() -> None:
    categories = (Category(name="a"), Category(name="b"))
    bank = drawn_rounds({"a": parse_acceptance("0.7"), "b": parse_acceptance("0.7")}, 4)
    base = serving(arrivals=Poisson(requests_per_second=1.0, requests=40), engine=SMALL)
    sessions = Sessions(turns=FixedLength(tokens=1), shared_tokens=160)
    workload = replace(base.workload, sessions=sessions, categories=categories)
    result = simulate(replace(base, workload=workload, bank=bank))
    assert sorted(set(result.clients["cached_tokens"].tolist())) == [0, 160]
    assert (result.clients["cached_tokens"] == 0).sum() == 2  # the first of each category


# --- cancelled requests ---


def test_a_cancelled_request_frees_its_blocks_and_its_tokens_are_wasted() -> None:
    base = serving(arrivals=ClosedLoop(users=4, requests=40), engine=SMALL, policy="fixed:4")
    cancels = Cancels(share=0.5, tokens=FixedLength(tokens=10))
    result = simulate(replace(base, workload=replace(base.workload, cancels=cancels)))
    summary = result.summary()
    assert 0 < summary["cancelled"] < 40 and summary["finished"] == 40 - summary["cancelled"]
    emitted = result.requests["emitted"][~result.finished]
    assert (emitted >= 10).all() and (emitted < 15).all()  # a step commits up to five tokens
    assert summary["cancelled_tokens"] == emitted.sum()
    assert summary["cancelled_drafts"] == 4 * summary["cancelled"]  # the drafts of the step that it did not see
    useful = 40 * summary["finished"]
    assert summary["goodput_tokens_per_second"] == pytest.approx(useful / result.span_seconds)
    assert result.engine.free_blocks == result.kv.blocks


def test_a_client_that_waits_too_long_is_gone_before_it_is_served() -> None:
    one = replace(SMALL, max_num_seqs=1)
    base = serving(arrivals=ClosedLoop(users=4, requests=4), engine=one)
    cancels = Cancels(share=1.0, seconds=0.01)
    result = simulate(replace(base, workload=replace(base.workload, cancels=cancels)))
    assert result.totals.cancelled == 4
    assert np.isnan(result.requests["first_token_seconds"][1:]).all()
    assert result.summary()["tpot_seconds"]["p50"] is None


# --- priorities ---


def test_the_lowest_value_is_admitted_first_and_preempted_last() -> None:
    """Four requests at once and room for two: the urgent ones go first, though they came last."""
    trace = Trace(
        arrival_seconds=np.zeros(4),
        prompt_tokens=np.full(4, 100),
        output_tokens=np.full(4, 60),
        source="test",
        priority=np.array([5, 5, 0, 0]),
    )
    engine = EngineSettings(max_num_seqs=2, max_num_batched_tokens=512, kv_blocks=200)
    base = serving(arrivals=trace, engine=engine)
    first = simulate(base).requests["first_token_seconds"]
    assert first[0] < first[2]
    ranked = simulate(replace(base, engine=replace(engine, scheduling=Scheduling.PRIORITY)))
    first = ranked.requests["first_token_seconds"]
    assert first[2] < first[0] and first[3] < first[1]
    by_priority = ranked.summary()["by_priority"]
    assert [each["priority"] for each in by_priority] == [0, 5]
    assert by_priority[0]["ttft_seconds"]["p50"] < by_priority[1]["ttft_seconds"]["p50"]


def test_of_running_requests_the_least_urgent_is_preempted_though_it_came_first() -> None:
    trace = Trace(
        arrival_seconds=np.array([0.0, 1e-4]),
        prompt_tokens=np.full(2, 100),
        output_tokens=np.full(2, 100),
        source="test",
        priority=np.array([1, 0]),
    )
    engine = EngineSettings(max_num_seqs=4, max_num_batched_tokens=1024, kv_blocks=20, scheduling=Scheduling.PRIORITY)
    result = simulate(serving(arrivals=trace, engine=engine))
    assert result.requests["preemptions"].tolist()[1] == 0 and result.requests["preemptions"][0] >= 1
    assert result.requests["finish_seconds"][1] < result.requests["finish_seconds"][0]
    assert result.summary()["prefilled"] > 300  # recomputed


def test_a_load_without_clients_has_no_table_of_them() -> None:
    assert traffic_of(serving().workload, 0).clients.size == 0
    assert not {"prefix_hits", "cancelled", "by_priority"} & simulate(serving(bank=curve_bank())).summary().keys()
