"""Layouts by their sizes (--tp, --dp, --ep): prices, memory, the engines' flags, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specmargin
from specmargin.answers.layouts import layout_of
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.catalog.lookup import bundled_model, find_device
from specmargin.catalog.machines import over_nodes
from specmargin.errors import InputError, ParallelismError
from specmargin.formats import ENGINES
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel
from specmargin.prices import memory
from specmargin.prices.roofline import collective_seconds
from specmargin.prices.work import Collective, CollectiveKind, Component, shards_touched, target_work
from specmargin.routing.profile import UNIFORM, expert_counter
from specmargin.step import Step
from specmargin.verbs.plan.commands import capacity_command
from tests.scenarios import pricer

DEEPSEEK = bundled_model("deepseek-v3")
EXPERT = 3 * 7168 * 2048  # bytes: fp8
EP16 = Layout.of(tp=2, dp=8, ep=True)


def asked(engine: str = "vllm", model: str = "deepseek-v3", **options: Any) -> Layout:
    request = ScenarioRequest(model=model, gpu="h200", **options)
    return layout_of(request, ENGINES[engine], bundled_model(model))


def test_sizes_count_the_gpus() -> None:
    assert asked(tp=2, dp=8, ep=True) == asked(gpus=16, tp=2, dp=8, ep=True) == asked(gpus=16, dp=8, ep=True) == EP16
    assert ScenarioRequest(model="deepseek-v3", gpu="h200", tp=2, dp=8).gpus == 16


def test_old_spellings_are_layouts_of_the_new_ones() -> None:
    assert Layout.of(tp=8) == Layout(gpus=8)
    assert Layout.of(tp=8, ep=True) == Layout(gpus=8, parallel=Parallel.EP)
    assert Layout.of(dp=8, ep=True) == Layout(gpus=8, parallel=Parallel.DP_EP)
    assert [Layout.of(tp=8).name, Layout.of(tp=8, ep=True).name, Layout.of(dp=8, ep=True).name] == ["tp", "ep", "dp-ep"]
    assert [EP16.name, Layout.of(dp=8).name, Layout.of(tp=2, dp=4).name] == ["tp2-dp8-ep", "dp8", "tp2-dp4"]


def test_ranks_of_tensor_parallel_groups() -> None:
    assert (EP16.sequence_ranks, EP16.attention_ranks, EP16.expert_ranks, EP16.expert_tensor_ranks) == (8, 2, 16, 1)
    split = Layout.of(tp=2, dp=8)
    assert (split.sequence_ranks, split.attention_ranks, split.expert_ranks, split.expert_tensor_ranks) == (8, 2, 1, 16)


def test_collectives_by_hand() -> None:
    """64 sequences of 2 positions over 8 groups: 16 positions per group, 8 of which each of its two GPUs dispatches."""
    step = Step.uniform(batch=64, depth=1, context=100)
    load = expert_counter(UNIFORM, EP16.expert_ranks)(DEEPSEEK.pools, step)
    works = target_work(DEEPSEEK, step, load, layout=EP16, kv=DEEPSEEK.kv_precision)
    lines = {work.subject: work for work in works if work.component is Component.COLLECTIVES}
    exchange = lines[Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=16, choices=8)]
    assert exchange.count == 2 * 58
    assert float(exchange.bytes) == pytest.approx(8 * 16 * (1 - (15 / 16) ** 8) * 7168 * 2)
    reduce = lines[Collective(kind=CollectiveKind.ALL_REDUCE, ranks=2)]
    assert reduce.count == 61 + 3  # after each attention, and after the three dense layers
    assert float(reduce.bytes) == 16 * 7168 * 2


def test_memory_of_a_rank_by_hand() -> None:
    """One MoE layer: 256/16 whole experts, and half of every matrix that tensor parallelism splits."""
    layer = next(group.layer for group in DEEPSEEK.groups if group.layer.experts is not None)
    experts = (
        memory.layer_weight_bytes(layer, EP16) - memory.layer_weight_bytes(layer, Layout.of(tp=2)) + 256 * EXPERT / 2
    )
    assert experts == pytest.approx(16 * EXPERT)


@pytest.mark.parametrize(
    ("ranks", "megabytes", "microseconds"),
    [(16, 7.57, 173), (16, 14.68, 329), (32, 7.57, 182), (32, 14.68, 350), (64, 7.57, 186), (64, 14.68, 353)],
)
def test_infiniband_against_deepep(ranks: int, megabytes: float, microseconds: float) -> None:
    """DeepEP, README of February 2025, low-latency kernels: 128 tokens × 8 experts, fp8 out and bf16 back."""
    fabric = over_nodes(find_device("h200"), ranks, None, "infiniband-ndr").fabric
    exchange = Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=ranks)
    seconds = collective_seconds(fabric, exchange, np.asarray(megabytes * 1e6))
    assert float(seconds) == pytest.approx(microseconds * 1e-6, rel=0.05)


@pytest.mark.parametrize(
    ("nodes", "bytes_per_number", "gigabytes_per_second"), [(2, 1, 90), (2, 2, 81), (4, 1, 61), (4, 2, 61)]
)
def test_many_positions_cross_the_network_once_per_node(
    nodes: int, bytes_per_number: int, gigabytes_per_second: int
) -> None:
    """DeepEP, README of version 2: 8,192 tokens of 7,168 numbers, 8 experts, fp8 out and bf16 back, ConnectX-7.

    Its rates count every node that a token goes to, its own included. The price's rate is that of the kernels above.
    """
    fabric = over_nodes(find_device("h200"), 8 * nodes, None, "infiniband-ndr").fabric
    exchange = Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=8 * nodes, choices=8)
    token = 7168 * bytes_per_number
    message = np.asarray(8192 * shards_touched(8, 8 * nodes) * token)
    published = 8192 * shards_touched(8, nodes) * token / (gigabytes_per_second * 1e9)
    assert float(collective_seconds(fabric, exchange, message)) == pytest.approx(published, rel=0.2)


@given(nodes=st.integers(2, 8), choices=st.integers(1, 8), positions=st.integers(1, 20_000))
def test_the_faster_way_is_taken_and_more_never_costs_less(nodes: int, choices: int, positions: int) -> None:
    fabric = over_nodes(find_device("h200"), 8 * nodes, None, "infiniband-ndr").fabric
    message = np.array([positions, positions + 1]) * shards_touched(choices, 8 * nodes) * 14_336
    known, direct = (
        collective_seconds(fabric, Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=8 * nodes, choices=each), message)
        for each in (choices, 0)
    )
    assert (known <= direct).all()
    assert known[0] < known[1]


def test_few_positions_are_sent_directly_and_many_by_node() -> None:
    fabric = over_nodes(find_device("h200"), 16, None, "infiniband-ndr").fabric
    positions = np.array([16.0, 64.0, 256.0, 4096.0])
    message = positions * shards_touched(8, 16) * 14_336
    known, direct = (
        collective_seconds(fabric, Collective(kind=CollectiveKind.ALL_TO_ALL, ranks=16, choices=each), message)
        for each in (8, 0)
    )
    assert (known[:2] == direct[:2]).all()
    assert (known[2:] < 0.6 * direct[2:]).all()


def test_groups_inside_a_node_keep_its_link() -> None:
    fabric = over_nodes(find_device("h200"), 16, 4, "infiniband-ndr").fabric
    assert (fabric.gpus_per_node, fabric.bytes_per_second(4), fabric.bytes_per_second(8)) == (4, 450e9, 43.5e9)
    assert (fabric.latency_seconds(4), fabric.latency_seconds(8)) == (5e-6, 10e-6)


@pytest.mark.parametrize(
    ("gpus", "nodes", "fabric", "complaint"),
    [
        (16, 3, None, "--nodes 3: 16 GPUs do not divide over nodes of up to 8; use --nodes 2"),
        (16, 1, None, "--nodes 1: 16 GPUs do not divide over nodes of up to 8; use --nodes 2"),
        (8, None, "infiniband-ndr", "--fabric infiniband-ndr: 8 GPUs are one node of NVIDIA H200 SXM; add --nodes N"),
        (16, None, "infiniband", "--fabric infiniband: not a network between nodes.*infiniband-ndr, roce-400, efa-400"),
        (16, None, "instinct", "--fabric instinct: not a network between nodes"),
    ],
)
def test_nodes_and_fabrics_that_are_refused(gpus: int, nodes: int | None, fabric: str | None, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        over_nodes(find_device("h200"), gpus, nodes, fabric)


def test_a_slower_network_slows_the_step() -> None:
    options: dict[str, Any] = {"gpu": "h200", "dp": 16, "ep": True, "batch": 64, "prices": "laws"}
    inside, ndr, efa = (
        specmargin.price("deepseek-v3", **options, fabric=name).to_dict()
        for name in (None, "infiniband-ndr", "efa-400")
    )
    assert inside["total_seconds"] < ndr["total_seconds"] < efa["total_seconds"]
    assert "InfiniBand NDR" in ndr["sources"]["collectives"]


FLAGS = {
    "vllm": "--tensor-parallel-size 2 --data-parallel-size 8 --enable-expert-parallel",
    "sglang": "--tp-size 16 --ep-size 16 --dp-size 8 --enable-dp-attention",
}


@pytest.mark.parametrize("engine", FLAGS)
def test_flags(engine: str) -> None:
    plan = specmargin.plan("deepseek-v3", gpu="h200", tp=2, dp=8, ep=True, engine=engine, batch="64", prices="laws")
    values = plan.to_dict()
    assert FLAGS[engine] in values["serve"]["command"]
    assert (values["gpus"], values["parallel"]) == (16, "tp2-dp8-ep")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"gpus": 8, "tp": 2, "dp": 8}, "--tp 2 × --dp 8 is 16 GPUs, not --gpus 8; leave out --gpus"),
        ({"gpus": 12, "dp": 8}, "--dp 8 does not divide --gpus 12; give sizes whose product is 12"),
        ({"tp": 2, "dp": 2, "pp": 2, "gpus": 4}, "--tp 2 × --dp 2 × --pp 2 is 8 GPUs, not --gpus 4"),
        ({"gpus": 8, "pp": 3}, "--pp 3 does not divide 8 GPUs"),
        ({"parallel": "ep", "dp": 8}, "--parallel ep and --dp 8 both describe the layout; leave out --parallel"),
        ({"ep": True}, "--ep: one GPU has nothing to spread experts over"),
        ({"tp": 2, "dp": 4, "engine": "trtllm"}, "attention DP of TensorRT-LLM gives every GPU its own sequences"),
        ({"tp": 2, "dp": 4, "engine": "llamacpp"}, "--tp 2 --dp 4: llama.cpp only splits a model"),
        ({"dp": 4, "model": "llama-3.1-8b"}, "--dp 4: .* independent servers; plan one of them, without --dp"),
    ],
)
def test_layouts_that_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ParallelismError, match=complaint):
        asked(**options)


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (Layout.of(pp=64), "--pp 64: a stage would have no layers, since deepseek-v3 has 61; use at most --pp 61"),
        (Layout.of(dp=12, ep=True), "256 experts do not divide over 12 GPUs"),
        (Layout.of(dp=12, ep=True, redundant_experts=4), "256 experts and 4 redundant ones .* --redundant-experts 8"),
        (Layout.of(tp=8, redundant_experts=8), "--redundant-experts: no experts are spread over GPUs; add --ep"),
    ],
)
def test_layouts_that_do_not_fit_the_model(layout: Layout, complaint: str) -> None:
    with pytest.raises(ParallelismError, match=complaint):
        layout.check(DEEPSEEK)


def test_redundant_experts_fill_ranks_that_experts_do_not_divide_over() -> None:
    layout = Layout.of(dp=12, ep=True, redundant_experts=8)
    layout.check(DEEPSEEK)
    layer = next(group.layer for group in DEEPSEEK.groups if group.layer.experts is not None)
    plain = memory.layer_weight_bytes(layer, Layout.of(dp=1)) - 256 * EXPERT
    assert memory.layer_weight_bytes(layer, layout) == pytest.approx(plain + 264 / 12 * EXPERT)


STAGE_FLAGS = {
    "vllm": "--tensor-parallel-size 4 --pipeline-parallel-size 2 --enable-expert-parallel --enable-eplb "
    """--eplb-config '{"num_redundant_experts": 16}'""",
    "sglang": "--tp-size 4 --pp-size 2 --ep-size 4 --enable-eplb --ep-num-redundant-experts 16",
    "trtllm": "--tp_size 4 --pp_size 2 --ep_size 4",
}


@pytest.mark.parametrize("engine", STAGE_FLAGS)
def test_flags_of_stages_and_redundant_experts(engine: str) -> None:
    options: dict[str, Any] = {"tp": 4, "pp": 2, "ep": True, "redundant_experts": 16, "engine": engine}
    values = specmargin.plan("deepseek-v3", gpu="b200", batch="16", prices="laws", **options).to_dict()
    assert STAGE_FLAGS[engine] in values["serve"]["command"]
    assert (values["gpus"], values["parallel"]) == (8, "pp2-tp4-ep")


@pytest.mark.parametrize(("engine", "drafter"), [("vllm", "ngram"), ("sglang", "eagle"), ("trtllm", "ngram")])
def test_drafters_that_an_engine_does_not_run_in_stages(engine: str, drafter: str) -> None:
    plan = specmargin.plan("deepseek-v3", gpu="b200", tp=4, pp=2, engine=engine, drafter=drafter, batch="4")
    config = plan.ranked[0].config
    assert config.text == ""
    assert "under pipeline parallelism" in config.unsupported or config.schedule.max_depth == 0


def test_stages_by_hand() -> None:
    """Two stages of 31 and 30 layers: a batch takes twice the longer one; drafting of both batches is waited for."""
    one = pricer("deepseek-v3", "b200", "mtp", layout=Layout.of(tp=4))
    two = pricer("deepseek-v3", "b200", "mtp", layout=Layout.of(tp=4, pp=2))
    half, whole = Step.uniform(batch=32, depth=1, context=1024), Step.uniform(batch=64, depth=1, context=1024)
    for component in (Component.ATTENTION, Component.ROUTED_EXPERTS):
        prices = (one.verify(half), two.verify(whole))
        seconds, longest = (float(price.share(component) * price.total_seconds) for price in prices)
        assert longest == pytest.approx(seconds * 62 / 61)
    assert two.draft_seconds(64, 2, 1024) == pytest.approx(2 * one.draft_seconds(32, 2, 1024))
    assert two.draft_seconds(1, 2, 1024) == pytest.approx(one.draft_seconds(1, 2, 1024))


@pytest.mark.parametrize("size", ["x", "0", "2.5"])
def test_sizes_that_are_no_numbers(size: str) -> None:
    with pytest.raises(InputError, match=r"^tp must be"):
        specmargin.plan("deepseek-v3", gpu="h200", tp=size)  # type: ignore[arg-type]


def test_a_rate_names_the_layout_in_its_command() -> None:
    plan = specmargin.plan("deepseek-v3", gpu="h200", dp=8, ep=True, qps=1, isl=200, osl=20, prices="laws")
    assert "--dp 8 --ep " in capacity_command(plan.ranked[0])
