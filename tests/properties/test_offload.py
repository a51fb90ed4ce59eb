"""Experts in main memory: what must hold whatever the machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.processors import bundled_processors, find_processor
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.prices import memory
from specmargin.prices.cpu_kernels import dot_cycles, matrix_cycles
from specmargin.prices.processor import ProcessorPrices
from specmargin.prices.work import Component, expert_work
from specmargin.step import Step

MODEL, LAYERS = "qwen3-30b-a3b", 48
processors = st.sampled_from(sorted(bundled_processors()))


def scenario(**options: object) -> Scenario:
    asked = {"model": MODEL, "gpu": "rtx-4090", "engine": "llamacpp", "weights": "q4_k_m", "drafter": "ngram"}
    return scenario_of(ScenarioRequest.model_validate(asked | options))[1]


def seconds(of: Scenario, batch: int, depth: int) -> float:
    return float(Pricer(of).verify(Step.uniform(batch=batch, depth=depth, context=1024)).total_seconds)


@given(cpu=processors, layers=st.integers(0, LAYERS - 1), batch=st.integers(1, 4), depth=st.integers(0, 6))
def test_fewer_layers_in_main_memory_are_never_slower(cpu: str, layers: int, batch: int, depth: int) -> None:
    more = scenario(cpu=cpu, n_cpu_moe=layers + 1)
    assert seconds(scenario(n_cpu_moe=layers), batch, depth) <= seconds(more, batch, depth) * (1 + 1e-9) or layers > 0
    if layers:
        assert seconds(scenario(cpu=cpu, n_cpu_moe=layers), batch, depth) <= seconds(more, batch, depth) * (1 + 1e-9)


@given(cpu=processors, positions=st.integers(1, 31), distinct=st.integers(8, 60), more=st.integers(0, 60))
def test_more_distinct_experts_are_never_cheaper(cpu: str, positions: int, distinct: int, more: int) -> None:
    of = scenario()
    _, block = of.architecture.expert_groups[0]
    prices, step = ProcessorPrices(processor=find_processor(cpu)), Step.uniform(batch=positions)
    works = [
        expert_work(block, 1, step, np.asarray(float(number)), step.positions * 8.0, layout=of.layout)
        for number in (distinct, distinct + more)
    ]
    fewer, many = (float(price.seconds) for price in prices.price(works))
    assert fewer <= many


@given(cpu=processors, batch=st.integers(1, 40), depth=st.integers(0, 8))
def test_all_layers_are_all_experts(cpu: str, batch: int, depth: int) -> None:
    by_layer, all_of_it = scenario(cpu=cpu, n_cpu_moe=LAYERS), scenario(cpu=cpu, experts_on="cpu")
    assert seconds(by_layer, batch, depth) == seconds(all_of_it, batch, depth)


@given(layers=st.integers(1, LAYERS))
def test_memory_adds_up(layers: int) -> None:
    """What leaves the GPU is what arrives in main memory."""
    plain, hosted = scenario(), scenario(n_cpu_moe=layers)
    model, layout = plain.architecture, plain.layout
    assert hosted.offload is not None
    on_gpu = memory.weight_bytes(model, layout, hosted.offload)
    there = hosted.offload.hosted_bytes(model)
    assert on_gpu + there == pytest.approx(memory.weight_bytes(model, layout), rel=1e-9)
    assert there == pytest.approx(Pricer(hosted).memory.host_bytes)


@given(kept=st.integers(0, 120), batch=st.integers(1, 64))
def test_kept_experts_are_a_part_of_all(kept: int, batch: int) -> None:
    """The hottest `kept` of 128 hit at least that share, and a larger cache never reads more from main memory."""
    asked = {"engine": "sglang", "weights": "int4-g128", "experts_on": "cpu", "cpu": "epyc-9654"}
    smaller, larger = (scenario(**asked, gpu_experts=number) for number in (kept, kept + 7))
    step = Step.uniform(batch=batch)
    read = [
        sum(float(work.bytes * work.count) for work in Pricer(of).works(step) if work.component is there)
        for of in (smaller, larger)
        for there in (Component.HOST_EXPERTS,)
    ]
    assert read[1] <= read[0]
    load = Pricer(larger).count_experts(larger.architecture.pools, step)
    hits = float(load.kept_pairs_by_group[0] / load.pairs_by_group[0])
    assert (kept + 7) / 128 - 1e-9 <= hits <= 1.0
    assert np.all(load.kept_distinct_by_group[0] <= load.distinct_by_group[0] + 1e-9)


@given(cpu=processors, positions=st.integers(1, 64))
def test_tiles_are_never_slower_than_dot_products(cpu: str, positions: int) -> None:
    processor = find_processor(cpu)
    for group in scenario().architecture.groups:
        for matrix in group.layer.projections:
            cycles = float(matrix_cycles(matrix, np.asarray(float(positions)), processor))
            assert 0 < cycles <= positions * dot_cycles(matrix, processor) * (1 + 1e-9)


def test_more_bandwidth_is_never_slower() -> None:
    of = scenario(n_cpu_moe=LAYERS)
    assert of.offload is not None
    faster = replace(of.offload.processor, memory_transfers_per_second=8e9)
    quick = replace(of, offload=replace(of.offload, processor=faster))
    assert seconds(quick, 1, 0) <= seconds(of, 1, 0)
