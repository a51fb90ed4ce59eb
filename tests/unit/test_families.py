"""Families of models, each read by hand from a bundled configuration."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from specmargin.architecture.precision import MXFP4, precision_named
from specmargin.architecture.reader import read_architecture
from specmargin.architecture.types import (
    BlockSelection,
    CompressedAttention,
    ExpertPool,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    TokenSelection,
)
from specmargin.catalog.lookup import bundled_model
from specmargin.decisions.setting import Setting
from specmargin.errors import ArchitectureError
from tests.scenarios import scenario


def test_deepseek_v4_flash_layers() -> None:
    """Two window layers, then CSA and HCA in turn; experts are MXFP4."""
    model = bundled_model("deepseek-v4-flash")
    kinds = {0: 0, 4: 0, 128: 0}
    for group in model.groups:
        attention = group.layer.attention
        assert isinstance(attention, CompressedAttention)
        kinds[attention.ratio] += group.count
    assert kinds == {0: 2, 4: 21, 128: 20}
    assert all(block.expert[0].precision == MXFP4 for _, block in model.expert_groups)
    assert sum(group.count for group, _ in model.expert_groups) == model.layers
    assert model.draft_head is not None


def test_qwen36_is_three_delta_nets_to_one_attention() -> None:
    model = bundled_model("qwen3.6-35b-a3b")
    linear = sum(g.count for g in model.groups if isinstance(g.layer.attention, LinearAttention))
    full = sum(g.count for g in model.groups if isinstance(g.layer.attention, GroupedAttention))
    assert (linear, full) == (30, 10)
    assert {p.shared_experts for p in model.pools} == {1}


def test_gpt_oss_alternates_windows() -> None:
    model = bundled_model("gpt-oss-120b")
    windows = {
        g.layer.attention.window: g.count for g in model.groups if isinstance(g.layer.attention, GroupedAttention)
    }
    assert windows == {128: 18, None: 18}


def test_kimi_k3_has_latent_experts_and_two_kinds_of_attention() -> None:
    """Shapes of vLLM's kimi_k3: 69 KDA layers, 24 MLA layers with an output gate, experts of width 3,584."""
    model = bundled_model("kimi-k3")
    kinds = [(type(group.layer.attention).__name__, group.count) for group in model.groups]
    assert sum(count for name, count in kinds if name == "LinearAttention") == 69
    assert sum(count for name, count in kinds if name == "LatentAttention") == 24
    _, block = model.expert_groups[0]
    assert (block.pool.experts, block.pool.experts_per_token, block.expert[0].inputs) == (896, 16, 3584)
    assert block.expert[0].precision.name == "mxfp4"
    assert {matrix.precision.name for matrix in block.always_on} == {"bf16"}
    latent = [group.layer for group in model.groups if isinstance(group.layer.attention, LatentAttention)]
    assert all("self_attn.g_proj" in {matrix.name for matrix in layer.projections} for layer in latent)


def test_step_has_more_heads_in_sliding_layers_and_its_own_mtp_head() -> None:
    model = bundled_model("step-3.5-flash")
    shapes = {(g.layer.attention.heads, g.layer.attention.window) for g in model.groups if g.layer.attention}  # type: ignore[union-attr]
    assert shapes == {(64, None), (96, 512)}
    assert sum(group.count for group in model.groups if group.layer.experts) == 42
    assert model.draft_head is not None
    assert not model.draft_head.shares_lm_head
    assert model.draft_head.groups[0].layer.experts is None


def test_mimo_v2_drafts_with_a_windowed_dense_block() -> None:
    head = bundled_model("mimo-v2-flash").draft_head
    assert head is not None
    layer = head.groups[0].layer
    assert isinstance(layer.attention, GroupedAttention)
    assert (layer.attention.window, layer.experts) == (128, None)


def test_laguna_has_a_head_count_per_layer_and_a_gate_per_head() -> None:
    model = bundled_model("laguna-xs-2.1")
    shapes = {(g.layer.attention.heads, g.layer.attention.window) for g in model.groups if g.layer.attention}  # type: ignore[union-attr]
    assert shapes == {(48, None), (64, 512)}
    assert sum(group.count for group in model.groups if group.layer.experts) == 39
    gates = {m.outputs for g in model.groups for m in g.layer.projections if m.name.endswith("g_proj")}
    assert gates == {48, 64}


def test_flash_next_selects_blocks_and_mixes_streams() -> None:
    model = bundled_model("qwen3.8-flash-next")
    kinds = {type(g.layer.attention).__name__: 0 for g in model.groups}
    for group in model.groups:
        kinds[type(group.layer.attention).__name__] += group.count
    assert kinds == {"LinearAttention": 36, "GroupedAttention": 12}
    selections = {g.layer.attention.selection for g in model.groups if isinstance(g.layer.attention, GroupedAttention)}
    assert selections == {BlockSelection(index_heads=4, index_dim=128, block_tokens=4, top_blocks=512, key_tokens=4)}
    mixing = [m for m in model.groups[0].layer.matrices if "hyper_connection" in m.name]
    assert [(m.inputs, m.outputs) for m in mixing] == [(10240, 324), (320, 10240)] * 2
    quantized = bundled_model("qwen3.8-flash-next", weights=precision_named("fp8"))
    assert {m.precision.name for m in quantized.groups[0].layer.matrices if "hyper_connection" in m.name} == {"bf16"}
    assert sum(m.name == "ple.kv_proj" for g in model.groups for m in g.layer.projections) == 1
    assert model.draft_head is not None and model.draft_head.groups[0].layer.experts is not None


@pytest.mark.parametrize(("engine", "deepest"), [("sglang", 3), ("vllm", 4), ("trtllm", 8)])
def test_flash_next_drafts_no_deeper_than_the_engine_verifies(engine: str, deepest: int) -> None:
    """SGLang 0.5.23 refuses more draft tokens (the last verified one included) than the four of an indexer's block."""
    setting = Setting.of(scenario("qwen3.8-flash-next", engine=engine), max_depth=8)
    assert setting.max_depth == deepest
    assert Setting.of(scenario("minimax-m3", engine=engine), max_depth=8).max_depth == 8  # a key per token


def test_glm_ocr_drafts_with_the_layer_after_the_last() -> None:
    model = bundled_model("glm-ocr")
    assert model.draft_head is not None
    (head,), (body,) = model.draft_head.groups, model.groups
    assert (head.count, body.count) == (1, 16)
    assert head.layer == body.layer
    assert model.draft_head.shares_lm_head


def test_deepseek_v4_1_shares_histories_and_selections() -> None:
    """Tensors of the released checkpoint: compressors in layers 2, 8, 14 and 20, indexers in eight, tables in two."""
    model = bundled_model("deepseek-v4.1-flash")
    layers = [(g.layer, g.count, g.layer.attention) for g in model.groups]
    compressed = [(count, a) for _, count, a in layers if isinstance(a, CompressedAttention) and a.ratio]
    assert sum(count for count, _ in compressed) == 38
    assert sum(count for count, a in compressed if a.owns_history) == 4
    assert sum(count for count, a in compressed if a.selection and a.selection.owns_indexer) == 8

    def having(name: str) -> int:
        return sum(count for layer, count, _ in layers if any(m.name == name for m in layer.matrices))

    assert (having("attn.compressor.wkv"), having("attn.compressor.wgate")) == (4, 3)  # no gate without pooling
    assert (having("attn.indexer.wq_b"), having("attn.indexer.wk"), having("engram.wkv")) == (8, 4, 2)
    assert {block.expert[0].precision for _, block in model.expert_groups} == {MXFP4}


def test_deepseek_v4_1_drafts_with_experts_of_the_heads_own() -> None:
    model = bundled_model("deepseek-v4.1-flash")
    head = model.block_head
    assert model.draft_head is None and head is not None
    assert (head.name, head.block_depth, sum(group.count for group in head.groups)) == ("dspark", 5, 3)
    pools = {group.layer.experts.pool for group in head.groups if group.layer.experts is not None}
    assert pools == {ExpertPool(experts=128, experts_per_token=3, shared_experts=1)}
    assert head.fusion[0].inputs == 3 * model.hidden
    windows = {group.layer.attention for group in head.groups}
    assert {(a.window, a.ratio) for a in windows if isinstance(a, CompressedAttention)} == {(128, 0)}


def test_glm_5_3_flash_is_three_delta_layers_to_one_that_selects_pools() -> None:
    model = bundled_model("glm-5.3-flash")
    linear = sum(g.count for g in model.groups if isinstance(g.layer.attention, LinearAttention))
    latent = [(g.count, g.layer.attention) for g in model.groups if isinstance(g.layer.attention, LatentAttention)]
    assert (linear, sum(count for count, _ in latent)) == (34, 11)
    selections = {attention.selection for _, attention in latent}
    assert selections == {TokenSelection(index_heads=32, index_dim=128, top_k=2048, key_tokens=4)}
    assert {attention.rope_dim for _, attention in latent} == {0}
    head = model.draft_head
    assert head is not None
    assert not any(m.name.startswith("hc_") for m in head.groups[0].layer.matrices)  # one residual stream
    assert all(any(m.name == "hc_ffn" for m in group.layer.matrices) for group in model.groups)


def test_pruned_llama_has_layers_without_attention() -> None:
    parts = {"no_op": False, "replace_with_linear": False}
    block = {"attention": {**parts, "n_heads_in_group": 8}, "ffn": {**parts, "ffn_mult": 5.25}}
    without = {"attention": {"no_op": True}, "ffn": {**parts, "ffn_mult": 0.5}}
    values = {"model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "vocab_size": 128256}
    config = {**values, "num_hidden_layers": 2, "block_configs": [block, without]}
    first, second = (group.layer for group in read_architecture(config, name="x", origin="x").groups)
    assert isinstance(first.attention, GroupedAttention) and first.attention.kv_heads == 8
    assert second.attention is None and second.dense[1].inputs == 2816  # 2 · 0.5 · 8192 / 3, up to a multiple of 256
    replaced = {**block, "ffn": {"replace_with_linear": True}}
    with pytest.raises(ArchitectureError, match="replaced by a linear layer"):
        read_architecture({**config, "block_configs": [block, replaced]}, name="x", origin="x")


def test_ling_of_the_first_generation_is_refused() -> None:
    values = {"model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"]}
    with pytest.raises(ArchitectureError, match="first generation of Ling"):
        read_architecture(values, name="x", origin="x")


@pytest.mark.parametrize(
    ("model", "key", "value", "complaint"),
    [
        ("step-3.5-flash", "moe_layers_enum", "3,x", "'moe_layers_enum' must list layer numbers"),
        ("step-3.5-flash", "attention_other_setting", None, "'attention_other_setting' is missing"),
        ("kimi-k3", "routed_expert_hidden_size", None, "only Kimi-K3 is read"),
        ("kimi-k3", "num_nextn_predict_layers", 1, "MTP layers of this family"),
        ("hy3", "mlp_layer_types", ["odd"] * 80, "unknown kinds"),
        ("laguna-xs-2.1", "gating", "per-layer", "'gating' must be per-head or per-element"),
    ],
)
def test_new_families_refuse_what_they_do_not_know(model: str, key: str, value: object, complaint: str) -> None:
    config = json.loads((files("specmargin.catalog") / "models" / f"{model}.json").read_text())["config"]
    with pytest.raises(ArchitectureError, match=complaint):
        read_architecture({**config, key: value}, name=model, origin=model)
