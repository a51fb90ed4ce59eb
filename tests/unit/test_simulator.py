"""The simulator against theory: closed forms, queues, order of rounds, preemption, workloads and traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.acceptance.survival import parse_acceptance
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ScenarioError
from specmargin.modes import POLICIES
from specmargin.simulator.engine import EngineSettings, KvBudget
from specmargin.simulator.results import Result, Slo
from specmargin.simulator.rounds import captured_rounds, drawn_rounds
from specmargin.simulator.run import prepare, simulate, tables_of
from specmargin.simulator.serving import Serving
from specmargin.simulator.traces import read_trace
from specmargin.simulator.workload import (
    Category,
    ClosedLoop,
    FixedLength,
    LognormalLength,
    Poisson,
    RateSchedule,
    Trace,
    Workload,
    draw,
)
from tests.scenarios import scenario
from tests.simulations import curve_bank, serving

LARGE = EngineSettings(max_num_seqs=128, max_num_batched_tokens=4096, kv_blocks=100_000)


# --- closed forms ---


@pytest.mark.parametrize("users", [1, 4, 24, 96])
@pytest.mark.parametrize(("policy", "depth"), [("none", 0), ("fixed:1", 1), ("fixed:4", 4)])
def test_closed_loop_decoding_is_the_closed_form(users: int, policy: str, depth: int) -> None:
    """Steps that only decode, at full batch: verify + draft seconds within 0.5%, 1 + Σ S_d tokens within chance."""
    base = serving(
        arrivals=ClosedLoop(users=users, requests=users * max(2, 240 // users)),
        prompt=FixedLength(tokens=16),
        output=FixedLength(tokens=480),
        drafter="eagle",
        engine=LARGE,
        policy=policy,
        bank=curve_bank("0.8"),  # the scenario's own acceptance
    )
    steps = simulate(base, log_steps=True).step_columns()
    full = (steps["sequences"] == users) & (steps["prefill_tokens"] == 0) & (steps["running"] == users)
    # The last round of a request is cut at the end of its output, so commits are counted by acceptance.
    tokens = ((steps["sequences"] + steps["accepted"])[full] / users).astype(np.float64)
    context = 16 + 240
    grid = base.pricer.grid([users], max(depth, 1), context)
    plain = policy == "none"
    seconds = float(grid.no_spec_seconds[0] if plain else (grid.verify_seconds + grid.draft_seconds)[0, depth])
    goodput = float(grid.no_spec_goodput[0] if plain else grid.goodput[0, depth])
    assert full.sum() > 100
    assert steps["seconds"][full].mean() == pytest.approx(seconds, rel=0.005)
    chance = 4.0 * tokens.std() / np.sqrt(tokens.size)
    assert tokens.mean() == pytest.approx(goodput * seconds / users, abs=chance + 1e-9)


def test_a_queue_in_front_of_one_server_waits_as_md1_does() -> None:
    """One sequence at a time, one token each: Poisson arrivals, deterministic service. Wait = ρ s / 2 (1 − ρ)."""
    base = serving(
        prompt=FixedLength(tokens=512),
        output=FixedLength(tokens=1),
        engine=EngineSettings(max_num_seqs=1, max_num_batched_tokens=1024),
    )
    service = float(simulate(base, log_steps=True).step_columns()["seconds"][0])
    for load in (0.3, 0.6, 0.8):
        arrivals = Poisson(requests_per_second=load / service, requests=60_000)
        result = simulate(replace(base, workload=replace(base.workload, arrivals=arrivals)))
        expected = service * (1.0 + load / (2.0 * (1.0 - load)))
        assert result.ttft_seconds.mean() == pytest.approx(expected, rel=0.05)
        assert result.busy_seconds / result.span_seconds == pytest.approx(load, rel=0.02)


def test_a_step_that_is_scheduled_ahead_sees_requests_one_step_later() -> None:
    """vLLM's async scheduling decides a step when the one before begins (v1/engine/core.py, step_with_batch_queue)."""

    def played(*, ahead: bool) -> Result:
        one = serving(arrivals=Poisson(requests_per_second=20.0, requests=200))
        time = replace(one.scenario.engine_time, plain_ahead=ahead)
        return simulate(replace(one, pricer=Pricer(replace(one.scenario, engine_time=time))), log_steps=True)

    at_once, ahead = played(ahead=False), played(ahead=True)
    later = ahead.ttft_by_request - at_once.ttft_by_request
    step = float(np.median(ahead.steps["seconds"]))
    assert ahead.ttft_by_request[0] == at_once.ttft_by_request[0]  # an idle engine begins with it
    assert np.mean(later) == pytest.approx(step, rel=0.25)
    assert ahead.committed == at_once.committed


def _launched(arrivals: list[float], *, microseconds: float = 60.0) -> Result:
    return simulate(_launching(arrivals, microseconds=microseconds), log_steps=True)


def _launching(arrivals: list[float], *, microseconds: float = 60.0, tokens: int = 2000) -> Serving:
    """Prompts at these moments, on a host whose launches take longer than their kernels."""
    prompts, outputs = np.full(len(arrivals), tokens), np.full(len(arrivals), 40)
    requests = Trace(arrival_seconds=np.array(arrivals), prompt_tokens=prompts, output_tokens=outputs, source="test")
    one = serving(arrivals=requests, engine=LARGE)
    launch = 1e-6 * microseconds
    time = replace(one.scenario.engine_time, plain_ahead=True, kernel_launch_seconds=launch, graph_limit=512)
    return replace(one, pricer=Pricer(replace(one.scenario, engine_time=time)))


def test_a_first_token_waits_for_the_launches_of_the_next_prompt() -> None:
    """Of a prompt on an idle H200 in vLLM 0.32: 69 ms if no other followed, 123 to 144 ms if one did."""
    alone, followed = _launched([0.0]), _launched([0.0, 0.02])
    launch = float(alone.steps["seconds"][0])
    assert followed.ttft_by_request[0] - alone.ttft_by_request[0] == pytest.approx(launch, rel=0.1)


def test_launches_overlap_with_the_step_before() -> None:
    """A prompt that joins decoding sequences delays them by its launches less the step that runs meanwhile."""
    steps = _launched([0.0, 0.09]).step_columns()
    first, second = np.flatnonzero(steps["prefill_tokens"] > 0)
    before = steps["seconds"][second - 1]
    assert steps["sequences"][second] == 1
    assert steps["seconds"][first] - steps["seconds"][second] == pytest.approx(before, rel=0.05)


def test_launches_keep_the_pace_of_a_recorded_host() -> None:
    """Two prompts on idle engines, 12 s apart, on a host that is half as fast every other 10 s."""
    run = prepare(_launching([0.0, 12.0]), log_steps=True)
    tables = run.simulation.tables._replace(launch_slowdown=np.array([1.0, 2.0]), slowdown_seconds=10.0)
    run.simulation = run.simulation._replace(tables=tables)
    run.play(lambda _: None)
    steps = run.logged_steps()
    first, second = steps["seconds"][steps["prefill_tokens"] > 0]
    assert second == pytest.approx(2.0 * first, rel=0.02)


def test_prompts_take_longer_where_positions_are_no_multiple_of_four() -> None:
    """If that was measured. Decode steps, and steps in a graph, do not."""

    def seconds(tokens: int, unaligned_position_seconds: float) -> tuple[float, float]:
        one = _launching([0.0], microseconds=1.0, tokens=tokens)
        time = replace(one.scenario.engine_time, unaligned_position_seconds=unaligned_position_seconds)
        steps = simulate(replace(one, pricer=Pricer(replace(one.scenario, engine_time=time))), log_steps=True).steps
        return steps["seconds"][0], steps["seconds"][1:].sum()

    for tokens, more in ((2000, 0.0), (2001, 2001e-5), (2002, 2002e-5), (2004, 0.0), (301, 0.0)):
        (even, decoding), (odd, still) = seconds(tokens, 0.0), seconds(tokens, 1e-5)
        assert odd - even == pytest.approx(more, abs=1e-9) and still == pytest.approx(decoding)


def test_littles_law() -> None:
    """Mean requests in the system, measured by steps, equal rate × time in the system, measured by requests."""
    workload = Workload(
        arrivals=Poisson(requests_per_second=30.0, requests=3000),
        prompt=LognormalLength(ln_mean=5.0, ln_sd=0.6, most=4000),
        output=LognormalLength(ln_mean=4.5, ln_sd=0.6, most=2000),
    )
    result = simulate(replace(serving(engine=LARGE), workload=workload), log_steps=True)
    steps = result.step_columns()
    seen = ((steps["running"] + steps["waiting"]) * steps["seconds"]).sum()
    # A request that arrives during a step is counted from the next one: half a step late on average.
    unseen = result.requests.size * (steps["seconds"] ** 2).sum() / (2.0 * steps["seconds"].sum())
    assert seen + unseen == pytest.approx(result.e2e_seconds.sum(), rel=0.02)


# --- the engine ---


def test_rounds_are_replayed_in_order_and_start_again() -> None:
    """One sequence of rounds that accept 0, 1, 2, 3: the steps of a single request cycle through it."""
    accepted = np.array([0, 1, 2, 3])
    bank = captured_rounds(["all"] * 4, np.zeros(4, dtype=np.int64), accepted, np.full((4, 4), 0.5), "test")
    base = serving(arrivals=ClosedLoop(users=1, requests=1), output=FixedLength(tokens=61), bank=bank, policy="fixed:4")
    steps = simulate(base, log_steps=True).step_columns()
    seen = steps["accepted"][steps["sequences"] == 1].astype(int).tolist()
    start = seen[0]
    assert seen[:12] == [(start + i) % 4 for i in range(12)]


def test_the_most_recent_request_is_preempted_and_recomputed() -> None:
    """Two requests that fit alone but not together: the second one loses its blocks, and both finish."""
    base = serving(
        arrivals=ClosedLoop(users=2, requests=2),
        prompt=FixedLength(tokens=100),
        output=FixedLength(tokens=100),
        engine=EngineSettings(max_num_seqs=4, max_num_batched_tokens=1024, kv_blocks=20),
    )
    result = simulate(base)
    assert result.requests["preemptions"][0] == 0
    assert result.requests["preemptions"][1] >= 1
    assert result.requests["finish_seconds"][0] < result.requests["finish_seconds"][1]
    # It had its first token before; its prompt and output so far are recomputed.
    assert result.summary()["prefilled"] > 300
    assert result.requests["first_token_seconds"][1] == result.requests["first_token_seconds"][0]


def test_requests_that_never_fit_are_refused_and_the_rest_served() -> None:
    trace = Trace(
        arrival_seconds=np.arange(3.0),
        prompt_tokens=np.array([100, 5000, 100]),
        output_tokens=np.array([10, 10, 10]),
        source="test",
    )
    base = serving(arrivals=trace, engine=EngineSettings(max_num_seqs=4, max_num_batched_tokens=512, kv_blocks=40))
    result = simulate(base)
    assert result.finished.tolist() == [True, False, True]
    assert result.summary()["refused"] == 1
    assert result.attainment(Slo(ttft_seconds=10.0)) == pytest.approx(2 / 3)


def test_overlapped_drafting_takes_the_longer_of_the_two() -> None:
    common: dict[str, Any] = {"arrivals": ClosedLoop(users=8, requests=16), "engine": LARGE, "model": "qwen3.6-35b-a3b"}
    serial = simulate(serving(drafter="mtp", policy="fixed:3", **common))
    overlapped = simulate(serving(drafter="ssd:mtp@1.0", policy="fixed:3", **common))
    assert overlapped.busy_seconds < serial.busy_seconds
    assert "drafting" not in overlapped.seconds_by_component()  # hidden behind verification, every time


def test_a_bank_keeps_the_named_categories_in_their_order() -> None:
    categories, sequence = ["a", "b", "c", "a", "c", "a"], np.array([0, 1, 2, 0, 3, 4])
    bank = captured_rounds(categories, sequence, np.arange(6), np.full((6, 2), 0.5), "test", names=("c", "a"))
    assert bank.categories == ("c", "a")
    assert bank.accepted.tolist() == [2, 4, 0, 3, 5]
    assert bank.next_by_round.tolist() == [0, 1, 3, 2, 4]
    assert bank.first_by_category.tolist() == [0, 2, 5]


def test_categories_have_their_own_acceptance_lengths_and_routing() -> None:
    curves = {"easy": parse_acceptance("0.95"), "hard": parse_acceptance("0.05")}
    workload = Workload(
        arrivals=ClosedLoop(users=16, requests=160),
        prompt=FixedLength(tokens=64),
        output=FixedLength(tokens=50),
        categories=(Category(name="easy"), Category(name="hard", weight=3.0, output=FixedLength(tokens=30))),
    )
    base = replace(
        serving(model="qwen3.6-35b-a3b", policy="fixed:4", engine=LARGE),
        workload=Workload(arrivals=workload.arrivals, prompt=workload.prompt, output=workload.output),
    )
    routing = tuple(find_routing(f"qwen3.6-35b-a3b:{name}", base.scenario.architecture) for name in ("all", "coding"))
    pricer = Pricer(replace(base.scenario, routing=routing[0]))
    mixed = replace(base, pricer=pricer, workload=workload, bank=drawn_rounds(curves, 4), category_routing=routing)
    result = simulate(mixed)
    easy = result.requests["category"] == 0
    assert set(result.requests["output_tokens"][easy]) == {50}
    assert set(result.requests["output_tokens"][~easy]) == {30}
    assert 0.15 < easy.mean() < 0.35
    tpot = result.tpot_by_request
    assert np.median(tpot[easy]) < 0.4 * np.median(tpot[~easy])
    assert not np.array_equal(*tables_of(mixed).effective_by_category)


def test_more_gpu_hours_cost_more() -> None:
    summary = simulate(serving()).summary(Slo(tpot_seconds=1.0), gpu_hour_price=3.0)
    assert summary["cost"] == pytest.approx(3.0 * summary["span_seconds"] / 3600.0)
    assert summary["slo_attainment"] == 1.0
    assert summary["cost_per_million_tokens"] == pytest.approx(summary["cost"] / summary["committed"] * 1e6)


def test_a_block_count_is_what_tokens_need() -> None:
    kv = KvBudget(blocks=100, blocks_per_sequence=3, block_tokens=16, lookahead_tokens=4)
    assert [kv.needed(tokens) for tokens in (1, 12, 13)] == [4, 4, 5]


def test_step_logs_and_timelines_agree() -> None:
    result = simulate(serving(policy="fixed:2"), log_steps=True)
    steps = result.step_columns()
    assert result.bins["busy_seconds"].sum() == pytest.approx(steps["seconds"].sum())
    assert result.bins["committed"].sum() == steps["committed"].sum()
    timeline = result.timeline()
    assert all(
        0.0 <= row["busy_share"] <= 1.0 and row["depth"] == pytest.approx(2.0) for row in timeline if row["batch"]
    )
    hourly = result.hourly()
    assert [row["hour"] for row in hourly] == [0]
    assert hourly[0]["tpot_p50"] == pytest.approx(float(np.median(result.tpot_seconds)))


def _request_bytes(result: Result) -> bytes:
    return b"".join(
        np.asarray(column).tobytes() for name, column in result.request_columns().items() if name != "category"
    )


def test_the_seed_decides_the_result() -> None:
    base = serving()
    assert _request_bytes(simulate(base)) == _request_bytes(simulate(base))
    assert _request_bytes(simulate(base)) != _request_bytes(simulate(replace(base, seed=1)))


# --- workloads ---


def test_arrivals_come_at_their_rates() -> None:
    lengths: dict[str, Any] = {"prompt": FixedLength(tokens=1), "output": FixedLength(tokens=1)}
    steady = draw(Workload(arrivals=Poisson(requests_per_second=7.0, requests=20_000), **lengths), 0)
    assert steady.size / steady["arrival_seconds"][-1] == pytest.approx(7.0, rel=0.03)
    gaps = np.diff(steady["arrival_seconds"])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    bursts = draw(Workload(arrivals=Poisson(requests_per_second=7.0, requests=20_000, burst=10), **lengths), 0)
    assert bursts.size / bursts["arrival_seconds"][-1] == pytest.approx(7.0, rel=0.07)
    assert np.unique(bursts["arrival_seconds"]).size == 2000
    schedule = RateSchedule(hours=(0.0, 1.0, 2.0, 4.0), requests_per_second=(0.0, 2.0, 2.0, 0.0))
    day = draw(Workload(arrivals=schedule, **lengths), 0)
    by_hour = np.histogram(day["arrival_seconds"] / 3600.0, bins=[0, 1, 2, 3, 4])[0]
    np.testing.assert_allclose(by_hour, [3600, 7200, 5400, 1800], rtol=0.06)
    assert (np.diff(day["arrival_seconds"]) >= 0).all()


def test_lengths_are_lognormal() -> None:
    lengths = LognormalLength(ln_mean=5.3, ln_sd=0.8, most=100_000)
    requests = draw(
        Workload(arrivals=ClosedLoop(users=1, requests=50_000), prompt=FixedLength(tokens=1), output=lengths), 0
    )
    logs = np.log(requests["output_tokens"])
    assert logs.mean() == pytest.approx(5.3, abs=0.02)
    assert logs.std() == pytest.approx(0.8, abs=0.02)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST_GPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n118,GPT-4,417,0,417,API log\n"
)
SPECMARGIN = (
    '{"arrival_seconds": 2.5, "prompt_tokens": 10, "output_tokens": 3}\n'
    '{"arrival_seconds": 0, "prompt_tokens": 7, "output_tokens": 1}\n'
)


def test_traces_are_taken_in_the_columns_they_were_published_with(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    (tmp_path / "burst.csv").write_text(BURST_GPT)
    (tmp_path / "own.jsonl").write_text(SPECMARGIN)
    azure, burst, own = (read_trace(tmp_path / name) for name in ("azure.csv", "burst.csv", "own.jsonl"))
    np.testing.assert_allclose(azure.arrival_seconds, [0.0, 4.314579], atol=1e-6)
    assert azure.prompt_tokens.tolist() == [374, 396]
    assert azure.output_tokens.tolist() == [44, 109]
    assert burst.arrival_seconds.tolist() == [0.0, 40.0]  # the request that failed is left out
    assert burst.output_tokens.tolist() == [18, 230]
    requests = draw(Workload(arrivals=own, prompt=FixedLength(tokens=1), output=FixedLength(tokens=1)), 0)
    assert requests["arrival_seconds"].tolist() == [0.0, 2.5]
    assert requests["prompt_tokens"].tolist() == [7, 10]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "time,prompt_tokens\n1,2\n", "missing column 'output_tokens'"),
        ("a.csv", "arrival_seconds,prompt_tokens,output_tokens\nsoon,2,3\n", "must hold numbers"),
        ("a.jsonl", "not json", "line 1 is not a JSON object"),
        ("a.csv", "arrival_seconds,prompt_tokens,output_tokens\n", "no requests"),
    ],
)
def test_invalid_traces_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ScenarioError, match=message):
        read_trace(tmp_path / name)


def test_drawn_rounds_have_the_means_of_the_curve() -> None:
    curve = parse_acceptance("0.8,0.6,0.5")
    bank = drawn_rounds({"all": curve}, 6)
    for depth in range(1, 7):
        mean_accepted = np.minimum(bank.accepted, depth).mean()
        assert mean_accepted == pytest.approx(float(curve.up_to(depth).sum()), abs=1e-3)


def test_every_policy_runs_in_the_simulator() -> None:
    base = serving(arrivals=ClosedLoop(users=8, requests=24), drafter="eagle")
    for name in POLICIES:
        summary = simulate(replace(base, policy=name.replace(":K", ":2"))).summary()
        assert summary["finished"] == 24
        assert (summary["accepted"] > 0) is (name not in ("none", "off"))
    oracle, fixed = (simulate(replace(base, policy=name)).busy_goodput for name in ("oracle", "fixed:4"))
    assert oracle > fixed


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ScenarioError, match="not enough for one sequence"):
        simulate(serving(model="qwen3.6-35b-a3b", engine=EngineSettings(kv_blocks=1)))
    with pytest.raises(ScenarioError, match="drafts deeper than 4 tokens; raise --depth"):
        simulate(serving(policy="fixed:9"))
    with pytest.raises(ScenarioError, match="drafts at most"):
        serving(model="qwen3.6-35b-a3b", drafter="dflash", max_depth=40)
    with pytest.raises(ScenarioError, match="the rounds have categories"):
        replace(serving(), bank=drawn_rounds({"other": parse_acceptance("0.5")}, 4))
    assert scenario().context == 1024
