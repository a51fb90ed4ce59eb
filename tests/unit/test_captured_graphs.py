"""Sizes of CUDA graphs: what vLLM pads a step to, and which full graphs a table of depths misses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specmargin.simulator.graphs import captured_graphs, vllm_sizes

# Of the servers in docs/results/served.md.
SIZES = [1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384]
SIZES += [448, 512]


def test_a_table_misses_full_graphs_where_rounds_were_recorded_as_slow() -> None:
    """GLM-4.7-Flash with depths 1 to 5 on an H200: rounds of 5, 9, 12 and 13 sequences had medians of 29.7, 23.4, 20.5
    and 21.6 ms or 90th percentiles above 33, those of 4, 6, 10 and 14 took 15.2, 16.2, 17.5 and 19.7 throughout."""
    graphs = captured_graphs(SIZES, [1, 2, 3, 4, 5], 256, 5)
    assert np.flatnonzero(~graphs.full[:17, 5]).tolist() == [5, 9, 12, 13]
    assert graphs.positions[[4, 5, 6], 5].tolist() == [24, 32, 36]


def test_one_depth_has_full_graphs_up_to_the_largest_size_that_can_be_rounded() -> None:
    graphs = captured_graphs(SIZES, [5], 256, 5)
    assert graphs.full[:76, 5].all()
    assert not graphs.full[76:86, 5].any()  # 512 would be 516
    assert graphs.positions[5, 5] == 36
    assert graphs.positions[200, 5] == 1200  # beyond the largest graph


def test_default_sizes_are_vllms() -> None:
    """vLLM 0.32 logs 51 sizes up to 512."""
    sizes = vllm_sizes(512)
    assert (len(sizes), sizes[:5], sizes[-2:]) == (51, [1, 2, 4, 8, 16], [496, 512])


@given(st.sets(st.integers(0, 6), min_size=1), st.integers(16, 512))
def test_steps_are_padded_up_and_never_beyond_the_largest_graph(depths: set[int], largest: int) -> None:
    graphs = captured_graphs(vllm_sizes(largest), depths, 64, 6)
    positions = np.outer(np.arange(65), np.arange(1, 8))
    assert (graphs.positions >= positions).all()
    largest = vllm_sizes(largest)[-1]
    assert (graphs.positions[positions > largest] == positions[positions > largest]).all()
    assert (graphs.positions[positions <= largest] <= largest).all()
