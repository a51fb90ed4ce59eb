"""File types of llama.cpp: which matrix gets which block format, and the sizes of published files."""

from __future__ import annotations

import pytest

from specmargin.architecture.gguf import block_bytes, blocks_of
from specmargin.architecture.precision import precision_named
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_model


def file_bytes(model: Architecture) -> float:
    embedding = 0.0 if model.tied_embedding else model.embedding.read_bytes()
    layers = sum(
        group.count * count * matrix.read_bytes() for group in model.groups for matrix, count in group.layer.stored
    )
    return embedding + model.lm_head.read_bytes() + layers


@pytest.mark.parametrize(
    ("model", "weights", "published_gib"),
    [
        ("llama-3.1-8b", "q2_k", 2.95),  # llama.cpp, tools/quantize/README.md
        ("llama-3.1-8b", "iq2_m", 2.74),
        ("llama-3.1-8b", "iq3_xxs", 3.04),
        ("llama-3.1-8b", "iq3_xs", 3.27),
        ("llama-3.1-8b", "iq3_m", 3.52),
        ("llama-3.1-8b", "q3_k_m", 3.74),
        ("llama-3.1-8b", "q4_k_s", 4.36),
        ("llama-3.1-8b", "q4_k_m", 4.58),
        ("llama-3.1-8b", "q5_k_m", 5.33),
        ("llama-3.1-8b", "q8_0", 7.95),
        ("qwen3-30b-a3b", "q4_k_m", 17.28),  # llama-bench: qwen3moe 30B.A3B Q4_K - Medium
        ("gpt-oss-20b", "mxfp4_moe", 11.27),
        ("gpt-oss-120b", "mxfp4_moe", 59.02),
    ],
)
def test_sizes_of_published_files(model: str, weights: str, published_gib: float) -> None:
    size = file_bytes(find_model(model, weights=precision_named(weights))) / 2**30
    assert size == pytest.approx(published_gib, rel=0.025)


def test_half_of_the_down_projections_of_q4_k_m_are_q6_k() -> None:
    """src/llama-quant.cpp, use_more_bits."""
    layer = find_model("qwen3-30b-a3b", weights=precision_named("Q4_K_M")).groups[0].layer
    assert layer.experts is not None
    mixes = {matrix.name.rpartition(".")[2]: blocks_of(matrix.precision) for matrix in layer.experts.expert}
    assert mixes == {"gate_up_proj": (("q4_k", 1.0),), "down_proj": (("q4_k", 0.5), ("q6_k", 0.5))}
    by_name = {matrix.name.rpartition(".")[2]: matrix.precision for matrix in layer.projections}
    assert blocks_of(by_name["v_proj"]) == (("q4_k", 0.5), ("q6_k", 0.5))
    assert blocks_of(by_name["q_proj"]) == (("q4_k", 1.0),)


def test_lm_heads_and_pure_formats() -> None:
    heads = {"q8_0": "q8_0", "q4_k_m": "q6_k", "iq2_m": "q5_k", "mxfp4_moe": "q8_0", "q6_k": "q6_k"}
    for weights, head in heads.items():
        assert find_model("qwen3-8b", weights=precision_named(weights)).lm_head.precision.name == head
    assert blocks_of(precision_named("q6_k")) == (("q6_k", 1.0),)
    assert block_bytes("q2_k") == 84 / 256  # the file type of that name has more


@pytest.mark.parametrize(
    ("written", "meant"), [("UD-Q4_K_XL", "ud-q4_k_xl"), ("Q4_K_XL", "ud-q4_k_xl"), ("IQ4_XS", "iq4_xs")]
)
def test_names_as_files_have_them(written: str, meant: str) -> None:
    assert precision_named(written).name == meant
