"""Families without a reader: read by their fields, or refused by the name of the field; never silently wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from specmargin.architecture.reader import read_architecture
from specmargin.architecture.types import Architecture, Attention, GroupedAttention, LatentAttention, LinearAttention
from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.lookup import find_model, model_names
from specmargin.errors import ArchitectureError, UnknownFamilyError
from specmargin.sources import SourceKind
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest

# A family that nobody has published: MLA, a dense first layer, fine-grained experts with shared ones, an MTP layer.
LATENT: dict[str, Any] = {
    "model_type": "aurora_moe",
    "architectures": ["AuroraForCausalLM"],
    "attention_dropout": 0.0,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 768,
    "n_routed_experts": 96,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 24,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 100000,
}
# Its tensors, written out: down- and up-projections of queries and of the latent, output; MLP; experts and router.
_ATTENTION = 2048 * 1024 + 1024 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * 256 + 16 * 128 * 2048 + 1024 + 512
_DENSE = 3 * 2048 * 8192
_SPARSE = 3 * 2048 * 768 * (96 + 2) + 96 * 2048
LATENT_COUNT = 2 * 100000 * 2048 + 24 * (_ATTENTION + 2 * 2048) + _DENSE + 23 * _SPARSE + 2048

# Another: grouped-query attention, three windows to each full layer, experts under other names, tied embeddings.
WINDOWED: dict[str, Any] = {
    "model_type": "borealis",
    "head_dim": 128,
    "hidden_size": 3072,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "moe_intermediate_size": 1024,
    "moe_num_experts": 64,
    "moe_top_k": 4,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "shared_expert_intermediate_size": 2048,
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "vocab_size": 64000,
}
_GROUPED = 3072 * 128 * (32 + 4 + 4) + 32 * 128 * 3072
WINDOWED_COUNT = 64000 * 3072 + 32 * (_GROUPED + 3 * 3072 * (64 * 1024 + 2048) + 64 * 3072)


def _read(values: dict[str, Any], name: str = "invented") -> Architecture:
    return read_architecture(values, name=name, origin=name)


def _public() -> dict[str, dict[str, Any]]:
    pytest.importorskip("aiconfigurator_core")
    entries = list((files("aiconfigurator_core") / "model_configs").iterdir())
    chosen = [e for e in entries if e.name.endswith("_config.json") and "hf_quant" not in e.name]
    return {entry.name: json.loads(entry.read_text()) for entry in chosen}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    unknown = {**values, "model_type": "unknown-x"}
    if values.get("text_config"):
        unknown["text_config"] = {**values["text_config"], "model_type": "unknown-x"}
    return unknown


def _attentions(model: Architecture) -> Counter[Attention | None]:
    """By layer, without attention sinks, which no common field states."""
    counts: Counter[Attention | None] = Counter()
    for group in model.groups:
        attention = group.layer.attention
        plain = replace(attention, sinks=False) if isinstance(attention, GroupedAttention) else attention
        counts[plain] += group.count
    return counts


def _close(read: float, true: float) -> bool:
    return abs(read / true - 1) < 0.01


def _silently_wrong(own: Architecture, read: Architecture) -> bool:
    if not (_close(read.parameters, own.parameters) and _attentions(read) == _attentions(own)):
        return True
    if own.draft_head and read.draft_head and not _close(read.draft_head.parameters, own.draft_head.parameters):
        return True
    return not _close(*(model.active_parameters(count_embedding=True) for model in (read, own)))


def test_no_configuration_under_another_name_is_silently_wrong() -> None:
    """Every bundled and public configuration as an unknown family: its own reader's counts, or a refusal."""
    catalog = {name: read_bundled(f"models/{name}.json")["config"] for name in model_names()}
    wrong, loaded, refused = [], 0, 0
    for name, values in (catalog | _public()).items():
        try:
            own = _read(values, name)
        except UnknownFamilyError:
            continue
        try:
            read = _read(_renamed(values), name)
        except ArchitectureError as error:
            assert isinstance(error, UnknownFamilyError), error
            assert str(error).startswith(f"{name}: the family 'unknown-x' is not known to Specmargin, and ")
            refused += 1
            continue
        loaded += 1
        wrong += [name] if _silently_wrong(own, read) else []
    assert wrong == []
    assert loaded >= 110  # most are read; the rest have shapes of their own
    assert refused >= 30


@pytest.mark.parametrize(("values", "true"), [(LATENT, LATENT_COUNT), (WINDOWED, WINDOWED_COUNT)])
def test_an_invented_family_has_its_true_count(values: dict[str, Any], true: int) -> None:
    assert _close(_read(values).parameters, true)


def test_an_invented_family_has_the_layers_that_its_fields_name() -> None:
    model = _read(LATENT)
    assert {type(group.layer.attention) for group in model.groups} == {LatentAttention}
    assert sum(group.count for group, _ in model.expert_groups) == 23
    (pool,) = model.pools
    assert (pool.experts, pool.experts_per_token, pool.shared_experts) == (96, 6, 2)
    assert model.draft_head is not None and model.draft_head.groups[0].layer.experts is not None
    windows = _attentions(_read(WINDOWED))
    assert {a.window: count for a, count in windows.items() if isinstance(a, GroupedAttention)} == {1024: 24, None: 8}


def test_recurrent_layers_are_read_by_their_fields() -> None:
    linear = {
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
    }
    model = _read({**WINDOWED, **linear})
    assert sum(g.count for g in model.groups if isinstance(g.layer.attention, LinearAttention)) == 24
    assert "full attention has an output gate" in model.assumptions


def test_what_was_assumed_is_a_warning_of_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "borealis" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(WINDOWED))
    model = find_model(str(file))
    assert model.source.kind is SourceKind.ASSUMED
    assert "MLPs are gated, of three matrices" in model.assumptions
    (result,) = drafter_plans(PlanRequest(model=str(file), gpu="h200", batch=(1, 8)))
    assert result.warnings[0].startswith("family 'borealis' is unknown, read by its fields: MLPs are gated")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hyper_streams": 4}, "are not understood: hyper_streams;"),
        ({"ffn_gated": False}, "are not understood: ffn_gated;"),
        ({"ffn_multiplier": 1.5, "depth_scale": 2}, "are not understood: ffn_multiplier, depth_scale;"),
        ({"attn_type_list": [1, 0]}, "are not understood: attn_type_list;"),
        ({"hidden_act": "gelu"}, "whether an MLP with 'gelu' as 'hidden_act' is gated"),
        ({"num_experts": 32}, "'num_experts' and 'n_routed_experts' are one field and have different values"),
        ({"moe_layer_freq": 2}, "'moe_layer_freq' must be 1 or list"),
        ({"first_k_dense_replace": None}, "must say which layers are dense"),
        ({"moe_intermediate_size": None}, "must say whether 'intermediate_size' is that of an expert"),
        ({"shared_expert_intermediate_size": 1536}, "is of one shared expert or all"),
        ({"kv_lora_rank": None}, "are not understood: q_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;"),
        ({"index_topk": 2048}, "the key 'index_n_heads' is missing"),
        ({"index_topk_freq": 4}, "'indexer_types' must say which layers"),
        ({"sliding_window": 4096}, "are not understood: sliding_window;"),
        ({"use_sliding_window": True}, "'layer_types' must say which layers the sliding window covers"),
        ({"layer_types": ["sliding_attention"] * 24}, "a sliding window over MLA"),
        ({"layer_types": ["retention"] * 24}, "'layer_types' has unknown kinds"),
        ({"linear_num_value_heads": 32}, "'layer_types' must say which layers have linear attention"),
        ({"hybrid_override_pattern": "M*E"}, "'hidden_act' must be relu2"),
        ({"hidden_size": None}, "the key 'hidden_size' is missing"),
        ({"num_experts_per_tok": 97}, "experts_per_token=97"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnknownFamilyError, match="the family 'aurora_moe' is not known to Specmargin") as caught:
        _read({**LATENT, **changed})
    assert named in str(caught.value)


@pytest.mark.parametrize("off", [{"ngram_layers": 0}, {"extra_blocks": []}, {"adapter": None}, {"z_loss_weight": 0.1}])
def test_fields_that_are_off_or_harmless_change_nothing(off: dict[str, Any]) -> None:
    assert _read({**LATENT, **off}).parameters == _read(LATENT).parameters
