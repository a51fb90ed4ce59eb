"""Prefill and decode on instances of their own: what each does, what moves between them, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import specmargin
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.cli.main import run
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.errors import InputError
from specmargin.show.terminal import show
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.policies import scheduled
from specmargin.simulator.pools import simulate_pools
from specmargin.simulator.results import Result
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Pools
from specmargin.simulator.workload import FixedLength, LognormalLength, Poisson, Trace, UniformLength
from tests.simulations import serving

FAST = 1e15  # bytes per second
RARE = Poisson(requests_per_second=1e-3, requests=12)  # no request meets another
VARIED = LognormalLength(ln_mean=5.0, ln_sd=0.7, most=900)


def pools(prefill: int = 1, decode: int = 1, rate: float = FAST) -> Pools:
    return Pools(prefill=prefill, decode=decode, bytes_per_second=rate, latency_seconds=1e-5, network="a wire")


def apart(of: Pools, **changes: Any) -> Result:
    return simulate_pools(serving(**({"drafter": "eagle"} | changes | {"pools": of})), simulate)


# --- times ---


@pytest.mark.parametrize("policy", ["none", "fixed:2"])
def test_a_request_alone_is_read_moved_and_decoded_one_after_another(policy: str) -> None:
    """Each part as an engine of its own takes it; the drafter reads prompts where prompts are read."""
    settings: dict[str, Any] = {"arrivals": RARE, "drafter": "eagle", "prompt": FixedLength(tokens=900)}
    result = apart(pools(rate=1e9), policy=policy, **settings)
    reading = simulate(
        serving(policy="none" if policy == "none" else "off", output=FixedLength(tokens=1), **settings)
    ).e2e_seconds.mean()
    engine = EngineSettings(max_num_seqs=32, max_num_batched_tokens=1024, kv_arrives=True)
    decoding = simulate(serving(policy=policy, engine=engine, **settings)).ttft_seconds.mean()
    assert result.pools is not None
    moving = result.pools.kv_bytes_per_gpu / 1e9 + 1e-5
    assert result.pools.prefill_seconds == pytest.approx(reading)
    assert result.pools.transfer_seconds == pytest.approx(moving)
    assert result.ttft_seconds == pytest.approx(reading + moving + decoding, rel=1e-6)


def test_kv_of_a_prompt_by_hand() -> None:
    """No room for drafts: a recurrent state of each layer, and the prompt's tokens; of a stage, those of its layers."""
    hybrid = Pricer(scenario_of(ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws"))[1])
    lengths = hybrid.prompt_bytes(2000, speculating=False), hybrid.prompt_bytes(1000, speculating=False)
    tokens = 10 * 2 * 2 * 256 * 2 * 1000  # ten layers with attention: keys and values of two heads of 256, in bf16
    assert lengths[0] - lengths[1] == pytest.approx(tokens)
    states = lengths[1] - tokens
    assert states == pytest.approx(hybrid.sequence_bytes(None, 999.0) - tokens)
    assert hybrid.sequence_bytes(7, 1000.0) > lengths[1] + 6 * states  # what a sequence with drafts holds
    stages = Pricer(scenario_of(ScenarioRequest(model="qwen3-30b-a3b", gpu="h200", pp=2, gpus=2, prices="laws"))[1])
    assert stages.prompt_bytes(4000, speculating=False) == pytest.approx(24 * 2 * 4 * 128 * 2 * 4000)


def test_kv_is_what_the_plan_says() -> None:
    load: dict[str, Any] = {"qps": 2.0, "isl": 2000, "osl": 100, "range_ratio": 0.0, "prices": "laws"}
    planned = specmargin.plan("qwen3-30b-a3b", gpu="h200", decode_only=True, **load).to_dict()["decode_only"]
    simulated = specmargin.simulate(
        "qwen3-30b-a3b", gpu="h200", gpus=4, prefill_instances=2, policy="schedule", requests=100, **load
    ).to_dict()
    assert simulated["kv_bytes_per_gpu"] * 4 == pytest.approx(planned["kv_bytes_per_gpu"], rel=0.01)
    alone = simulated["kv_bytes_per_gpu"] / 50e9  # over the network: 12 GPUs are more than one machine
    assert simulated["transfer_seconds"]["p50"] == pytest.approx(alone, rel=0.05)


def test_decode_instances_are_those_of_plan_decode_only() -> None:
    load: dict[str, Any] = {"qps": 20.0, "isl": 1000, "osl": 200, "prices": "laws", "depth": 4}
    planned = specmargin.plan("qwen3-30b-a3b", gpu="h200", decode_only=True, **load).to_dict()["service"]
    rows = specmargin.simulate(
        "qwen3-30b-a3b", gpu="h200", prefill_instances=7, policy="schedule,none", **load
    ).to_dict()["policies"]
    for row, side in zip(rows, ("speculating", "plain"), strict=True):
        assert row["goodput_tokens_per_second"] == pytest.approx(planned[side]["tokens_per_second"], rel=0.02)
        assert row["tpot_seconds"]["mean"] == pytest.approx(planned[side]["tpot_seconds"], rel=0.05)
        assert row["mean_batch"] == pytest.approx(planned[side]["sequences"], rel=0.1)


def test_a_schedule_is_planned_for_a_decode_instance() -> None:
    """With its share of the load. Where it drafts nothing, no drafter reads prompts and none of its KV moves."""
    load: dict[str, Any] = {"qps": 40.0, "isl": 1000, "osl": 200, "prices": "laws", "depth": 4, "range_ratio": 0.0}
    both = specmargin.simulate(
        "qwen3-30b-a3b", gpu="h200", prefill_instances=9, decode_instances=2, policy="schedule", **load
    )
    planned = specmargin.plan("qwen3-30b-a3b", gpu="h200", decode_only=True, **load | {"qps": 20.0})
    (row,), side = both.rows, planned.to_dict()["service"]["speculating"]
    assert row["tpot_seconds"]["mean"] == pytest.approx(side["tpot_seconds"], rel=0.05)
    load |= {"qps": 20.0, "fabric": "infiniband-ndr"}
    far = specmargin.simulate("qwen3-30b-a3b", gpu="h200", prefill_instances=9, policy="schedule", **load)
    assert far.rows[0]["tpot_seconds"]["mean"] == pytest.approx(side["tpot_seconds"], rel=0.05)
    idle = scheduled(Schedule.fixed(0, last=1), 32)
    parts: dict[str, Any] = {"drafter": "eagle", "arrivals": RARE, "pools": pools(), "prompt": FixedLength(tokens=900)}
    plain = simulate_pools(serving(**parts), simulate)
    drafts_nothing = simulate_pools(serving(policy="schedule", **parts), simulate, choice=idle)
    assert drafts_nothing.pools is not None and plain.pools is not None
    assert drafts_nothing.pools.kv_bytes_per_gpu == plain.pools.kv_bytes_per_gpu
    assert drafts_nothing.ttft_seconds == pytest.approx(plain.ttft_seconds)


def test_beyond_its_capacity_a_decode_instance_is_as_slow_as_planned() -> None:
    load: dict[str, Any] = {"qps": 200.0, "isl": 500, "osl": 400, "prices": "laws", "range_ratio": 0.0}
    planned = specmargin.plan("qwen3-30b-a3b", gpu="h200", decode_only=True, **load).to_dict()["service"]["plain"]
    (row,) = specmargin.simulate("qwen3-30b-a3b", gpu="h200", prefill_instances=40, policy="none", **load).rows
    assert planned["queue_growth_per_second"] > 0
    assert row["goodput_tokens_per_second"] == pytest.approx(planned["tokens_per_second"], rel=0.05)


def test_requests_that_fit_nowhere_are_refused_and_others_served() -> None:
    """All of one instance's requests are too long: the other's are served."""
    trace = Trace(
        arrival_seconds=np.arange(4.0),
        prompt_tokens=np.array([100, 9000, 100, 9000]),
        output_tokens=np.full(4, 20),
        source="by hand",
    )
    engine = EngineSettings(max_num_seqs=32, max_num_batched_tokens=1024, kv_blocks=100)
    result = apart(pools(prefill=2), arrivals=trace, engine=engine, policy="none")
    assert (result.totals.finished, result.totals.refused) == (2, 2)
    assert np.isfinite(result.ttft_by_request).tolist() == [True, False, True, False]


def test_the_timeline_is_of_all_decode_instances() -> None:
    load: dict[str, Any] = {"arrivals": Poisson(requests_per_second=40.0, requests=400), "policy": "none"}
    result = apart(pools(decode=2), **load)
    rows = result.timeline()
    assert 0 < max(row["busy_share"] for row in rows) <= 1
    busy = sum(row["busy_share"] for row in rows) * result.bin_seconds
    # A step that ends after its bin is cut.
    assert busy == pytest.approx(result.busy_seconds / 2, rel=0.05)


def test_decoding_does_not_wait_for_prompts() -> None:
    load: dict[str, Any] = {
        "arrivals": Poisson(requests_per_second=60.0, requests=400),
        "prompt": FixedLength(tokens=800),
        "policy": "fixed:2",
    }
    together, divided = simulate(serving(drafter="eagle", **load)), apart(pools(prefill=2), **load)
    assert np.percentile(divided.tpot_seconds, 99) < 0.9 * np.percentile(together.tpot_seconds, 99)


def test_twice_the_instances_serve_twice_the_load() -> None:
    def one(count: int) -> Result:
        arrivals = Poisson(requests_per_second=15.0 * count, requests=400 * count)
        return apart(pools(count, count), arrivals=arrivals, prompt=VARIED, output=VARIED, policy="fixed:2")

    single, double = one(1), one(2)
    assert double.goodput == pytest.approx(2 * single.goodput, rel=0.1)
    assert double.mean_batch == pytest.approx(single.mean_batch, rel=0.15)
    assert double.busy_share == pytest.approx(single.busy_share, rel=0.1)
    assert double.tpot_seconds.mean() == pytest.approx(single.tpot_seconds.mean(), rel=0.05)
    assert double.gpu_hours_per_million_tokens == pytest.approx(single.gpu_hours_per_million_tokens, rel=0.1)
    parts = double.seconds_by_component()
    assert sum(parts.values()) == pytest.approx(double.busy_seconds)


def test_a_link_carries_one_prompt_at_a_time() -> None:
    """Between two instances: those that are read while another one moves wait for it."""
    slow = apart(pools(rate=2e8), arrivals=Poisson(requests_per_second=50.0, requests=50), policy="none")
    assert slow.pools is not None
    moving = slow.pools.kv_bytes_per_gpu / 2e8 + 1e-5
    ready = slow.requests["arrival_seconds"] + slow.pools.prefill_seconds
    arrived = np.sort(ready + slow.pools.transfer_seconds)
    assert np.diff(arrived).min() == pytest.approx(moving)
    assert slow.pools.transfer_seconds.max() > 3 * moving


def test_prompts_cost_the_drafter_where_they_are_read() -> None:
    load: dict[str, Any] = {"arrivals": RARE, "prompt": FixedLength(tokens=900)}
    drafting, plain = (apart(pools(), policy=policy, **load) for policy in ("fixed:2", "none"))
    assert drafting.pools is not None
    assert plain.pools is not None
    assert (drafting.pools.prefill_seconds > plain.pools.prefill_seconds).all()
    assert drafting.pools.kv_bytes_per_gpu > plain.pools.kv_bytes_per_gpu


def test_a_preempted_sequence_is_read_again_where_it_decodes() -> None:
    engine = EngineSettings(max_num_seqs=32, max_num_batched_tokens=1024, kv_blocks=40)
    load: dict[str, Any] = {"arrivals": Poisson(requests_per_second=200.0, requests=40), "engine": engine}
    tight = apart(pools(prefill=4), prompt=FixedLength(tokens=160), output=FixedLength(tokens=160), **load)
    assert tight.totals.preemptions > 0
    assert tight.totals.prefilled > 40 + 160 * tight.totals.preemptions / 2  # more than the last token of each prompt


# --- what is kept ---


@settings(max_examples=25, deadline=None)
@given(
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    rate=st.sampled_from([1e8, 1e10, FAST]),
    requests=st.integers(1, 60),
    per_second=st.sampled_from([1.0, 40.0, 1e4]),
    policy=st.sampled_from(["none", "off", "fixed:2", "controller"]),
    seed=st.integers(0, 3),
)
def test_nothing_is_lost(
    prefill: int, decode: int, rate: float, requests: int, per_second: float, policy: str, seed: int
) -> None:
    load: dict[str, Any] = {"arrivals": Poisson(requests_per_second=per_second, requests=requests), "seed": seed}
    load |= {"prompt": UniformLength(least=1, most=600), "output": UniformLength(least=1, most=80), "policy": policy}
    result = apart(pools(prefill, decode, rate), **load)
    seen, rows = result.pools, result.requests
    assert seen is not None
    assert result.totals.finished == requests
    assert result.committed == int(rows["output_tokens"].sum())
    assert (np.diff(rows["arrival_seconds"]) >= 0).all()
    assert (seen.prefill_seconds > 0).all()
    assert (seen.transfer_seconds > 0).all()
    assert (result.ttft_by_request > seen.prefill_seconds + seen.transfer_seconds).all()
    assert (rows["finish_seconds"] >= rows["first_token_seconds"]).all()
    assert 0 < seen.prefill_busy_share <= 1
    assert float(result.bins["committed"].sum()) == result.committed
    again = apart(pools(prefill, decode, rate), **load)
    assert (np.asarray(again.requests) == np.asarray(rows)).all()


# --- as it is asked ---

ASKED: dict[str, Any] = {"qps": 5, "isl": 500, "osl": 50, "prices": "laws", "requests": 60}


def asked(**options: Any) -> Any:
    given = {name: value for name, value in (ASKED | options).items() if value is not None}
    return specmargin.simulate("qwen3-30b-a3b", gpu="h200", **given)


def said(**options: Any) -> str:
    shown = Console(record=True, width=200, file=io.StringIO())
    show(asked(**options).blocks(), shown)
    return shown.export_text()


def test_the_text_says_what_prompts_take() -> None:
    text = said(prefill_instances=2, policy="fixed:2,none")
    assert "instances for prefill: 2, for decoding: 1" in text
    assert "prompts arrive as KV" in text
    assert "450 GB/s per GPU (links of one machine)" in text
    assert "50 GB/s per GPU (network, as its datasheet says)" in said(prefill_instances=8)
    assert "44 GB/s per GPU (infiniband-ndr)" in said(prefill_instances=8, fabric="infiniband-ndr")


def test_ranks_behind_a_router() -> None:
    ranks: dict[str, Any] = {"dp": 4, "ep": True, "router": "least-requests", "prefill_instances": 1, "depth": 2}
    rows = asked(**ranks, policy="best-fixed,fixed:2,none").to_dict()["policies"]
    assert [row["finished"] for row in rows] == [60, 60, 60]
    assert rows[0]["goodput_tokens_per_second"] >= rows[1]["goodput_tokens_per_second"] * 0.999
    assert rows[0]["goodput_per_gpu"] == pytest.approx(rows[0]["goodput_tokens_per_second"] / 8)


def test_a_rate_within_targets() -> None:
    options: dict[str, Any] = {"find": "qps", "tpot_slo": 20.0, "ttft_slo": 300.0, "seeds": 1, "policy": "none"}
    one, two = (asked(qps=None, requests=None, prefill_instances=count, isl=2000, **options) for count in (1, 2))
    assert one.rows[0]["limited_by"] == ["TTFT"]
    assert two.rows[0]["load"] > 1.2 * one.rows[0]["load"]


def test_requests_are_saved_with_what_came_before() -> None:
    answer = asked(prefill_instances=1, policy="none")
    columns = answer.results[0].request_columns()
    assert (columns["first_token_seconds"] > columns["arrival_seconds"] + columns["prefill_seconds"]).all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"decode_instances": 2}, "--decode-instances goes with --prefill-instances"),
        ({"qps": None, "concurrency": 4}, "users who wait for their answers are not simulated there; give --qps"),
        ({"qps": None, "sessions_per_second": 1.0, "turns": 3}, "sessions, cancelled requests and priorities"),
        ({"qps": None, "trace": "cancels.csv", "requests": None}, "sessions, cancelled requests and priorities"),
        ({"cancel_share": 0.5, "cancel_tokens": 5}, "sessions, cancelled requests and priorities"),
        ({"engine": "llamacpp", "weights": "Q4_K_M"}, "llama.cpp has no disaggregated serving; leave it out"),
        ({"fabric": "infiniband-ndr"}, "--fabric infiniband-ndr: 2 GPUs are one machine of up to 8; leave it out"),
        (
            {"gpu": "rtx-4090", "prefill_instances": 20, "prices": "datasheet"},
            "the device has none; name one with --fabric",
        ),
        ({"dp": 2, "ep": True, "router": "least-requests", "decode_instances": 2}, "leave out one of them"),
    ],
)
def test_refusals(options: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cancels.csv").write_text(
        "arrival_seconds,prompt_tokens,output_tokens,cancel_tokens\n0,100,20,5\n1,100,20,0\n"
    )
    asked_for: dict[str, Any] = {} if options == {"decode_instances": 2} else {"prefill_instances": 1}
    with pytest.raises(InputError, match=complaint):
        given = ASKED | {"gpu": "h200"} | asked_for | options
        specmargin.simulate("qwen3-30b-a3b", **{name: value for name, value in given.items() if value is not None})


def test_a_plan_of_a_decode_instance_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    load = "--qps 20 --isl 2000 --osl 300 --decode-only --prices laws --explain"
    assert run("plan", ["qwen3-30b-a3b", "--gpu", "h200", *load.split()]) == 0
    assert "--qps 20 --prefill-instances 1" in " ".join(capsys.readouterr().out.split())
