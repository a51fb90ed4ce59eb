"""Loads whose steps are larger than the largest CUDA graph, or drafted less because of it: one sentence with a flag."""

from __future__ import annotations

from typing import Any

import pytest

import specmargin
from specmargin.answers.blocks import Line
from specmargin.answers.graphs import LEAST_SHARE, beyond_graphs, held_by_graphs
from specmargin.decisions.pricer import Pricer
from specmargin.formats import find_engine
from specmargin.prices.model import EngineTime
from tests import scenarios


def pricer(graph_limit: int | None = 512) -> Pricer:
    return scenarios.pricer(engine="vllm", engine_time=EngineTime(graph_limit=graph_limit))


def test_a_small_share_of_the_decode_time_is_not_worth_a_restart() -> None:
    assert beyond_graphs(pricer(), share=LEAST_SHARE, positions=600) is None
    assert beyond_graphs(pricer(), share=0.31, positions=600) == (
        "steps are larger than the largest CUDA graph (512 positions) in 31% of the decode time: "
        "--max-cudagraph-capture-size 640"
    )


def test_an_engine_with_a_graph_for_every_step_has_nothing_to_warn_of() -> None:
    assert beyond_graphs(pricer(None), share=1.0, positions=600) is None
    assert held_by_graphs(pricer(None), batch=143, depth=1, max_depth=7) is None


def test_a_depth_is_held_only_where_the_next_one_has_no_graph() -> None:
    """171 sequences at depth 2 are 513 positions, 128 at depth 3 are 512."""
    held = held_by_graphs(pricer(), batch=171, depth=1, max_depth=7)
    assert held is not None
    assert held.startswith("the largest CUDA graph (512 positions) holds drafts at depth 1 at batch 171; depth ")
    assert held_by_graphs(pricer(), batch=128, depth=2, max_depth=7) is None
    assert held_by_graphs(pricer(), batch=171, depth=1, max_depth=1) is None
    nothing = held_by_graphs(pricer(), batch=300, depth=0, max_depth=7)
    assert nothing is not None
    assert "has no room for drafts at batch 300" in nothing


@pytest.mark.parametrize(("users", "warns"), [(150, True), (60, False)])
def test_simulate_names_the_policy_and_the_flag(users: int, warns: bool) -> None:
    """At depth 4, 150 sequences decode 750 positions per step, 60 decode 300."""
    load: dict[str, Any] = {"concurrency": users, "isl": 100, "osl": 60, "requests": 400}
    answer = specmargin.simulate("qwen3-30b-a3b", gpu="h200", **load, policy="fixed:4,none")
    assert len(answer.warnings) == warns
    for text in answer.warnings:
        assert text.startswith("fixed:4: steps are larger than the largest CUDA graph (512 positions) in ")
        assert text.endswith(": --max-cudagraph-capture-size 768")
    assert answer.to_dict()["warnings"] == answer.warnings
    shown = [block.text for block in answer.blocks() if isinstance(block, Line)]
    assert [f"warning: {text}" in shown for text in answer.warnings] == [True] * warns


@pytest.mark.parametrize(("qps", "warns"), [(20.0, False), (30.0, True)])
def test_plan_warns_where_its_schedule_drafts_less_than_would_pay(qps: float, warns: bool) -> None:
    """At 30 requests per second about 140 sequences decode at once: drafts of 3 would leave the graph of 512."""
    answer = specmargin.plan("qwen3-30b-a3b", gpu="h200", qps=qps, isl=1000, osl=300)
    found = [text for text in answer.to_dict()["warnings"] if "CUDA graph" in text]
    assert len(found) == warns
    assert all("--max-cudagraph-capture-size" in text for text in found)


def test_sizes_are_rounded_up_to_what_engines_capture() -> None:
    assert find_engine("vllm").larger_graphs(positions=512.0, batch=1.0) == "--max-cudagraph-capture-size 512"
    assert find_engine("sglang").larger_graphs(positions=800.0, batch=129.0) == "--cuda-graph-max-bs-decode 192"
    assert find_engine("trtllm").larger_graphs(positions=1.0, batch=64.0) == "cuda_graph_config: {max_batch_size: 64}"
    assert find_engine("llamacpp").larger_graphs(positions=513.0, batch=1.0) == "capture graphs of 576 positions"
