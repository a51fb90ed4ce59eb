"""Reading configurations: what is understood, and how the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import FP8, PRECISIONS, precision_named
from specmargin.architecture.quantization import read_scheme
from specmargin.architecture.reader import FAMILIES, REFUSED, load_architecture, read_architecture
from specmargin.architecture.types import (
    Matrix,
)
from specmargin.catalog.lookup import bundled_model, find_model, hub_id, model_names
from specmargin.errors import ArchitectureError, CatalogError, InputError, UnknownFamilyError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def _read(values: dict[str, Any], **more: Any) -> Any:
    return read_architecture(values, name="test", origin="test", **more)


def test_a_small_llama_by_hand() -> None:
    model = _read(LLAMA)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
    assert model.parameters == 2 * layer + 2 * 100 * 64 + 64
    assert not model.is_moe
    assert model.layers == 2
    assert len(model.groups) == 1


def test_a_small_mixture_by_hand() -> None:
    model = _read({**MOE, "head_dim": 16})
    expert = 3 * 64 * 32
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 2 * 16
    assert model.parameters == 2 * (attention + 8 * expert + 64 * 8 + 2 * 64) + 2 * 100 * 64 + 64
    assert model.active_parameters(count_embedding=False) == 2 * (attention + 2 * expert + 64 * 8 + 128) + 6400 + 64


def test_a_mixture_that_transformers_5_saved() -> None:
    """It writes `num_local_experts` where the hub's configurations have `num_experts`."""
    saved = {("num_local_experts" if key == "num_experts" else key): value for key, value in MOE.items()}
    assert _read(saved) == _read(MOE)
    missing = {key: value for key, value in MOE.items() if key != "num_experts"}
    with pytest.raises(ArchitectureError, match="'num_experts' is missing"):
        _read(missing)


@pytest.mark.parametrize("name", model_names())
def test_every_bundled_model_loads_and_has_a_source(name: str) -> None:
    model = bundled_model(name)
    assert model.parameters > (9e5 if name.startswith("reference-") else 1e8)  # reference models are small
    assert model.source.detail
    assert "/" in hub_id(name)
    assert model.max_context is not None


# --- quantization ---


def test_fp8_leaves_router_embedding_and_head_alone() -> None:
    model = _read({**MOE, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}})
    layer = model.groups[0].layer
    assert {m.precision.name for m in layer.projections} == {"fp8"}
    assert layer.experts.expert[0].precision == FP8
    assert layer.experts.router[0].precision.name == "bf16"
    assert model.lm_head.precision.name == model.embedding.precision.name == "bf16"


def test_modelopt_excludes_by_name_glob_and_expression() -> None:
    def model(patterns: list[str]) -> Any:
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": patterns, "kv_cache_quant_algo": "FP8"}
        return _read({**MOE, "quantization_config": config})

    def projections(patterns: list[str]) -> list[set[str]]:
        return [{m.precision.name for m in group.layer.projections} for group in model(patterns).groups]

    assert projections([]) == [{"nvfp4"}]
    assert projections(["model.layers.0.self_attn*"]) == [{"bf16"}, {"nvfp4"}]
    assert projections(["language_model.model.layers.1.self_attn.q_proj"]) == [{"nvfp4"}, {"bf16", "nvfp4"}]
    assert projections(["re:.*self_attn.*"]) == [{"bf16"}]
    assert model([]).kv_precision == FP8


def test_mixed_precision_names_modules_one_by_one() -> None:
    named = {f"model.layers.0.mlp.experts.{i}.down_proj": {"quant_algo": "NVFP4"} for i in range(8)}
    named["model.layers.1.self_attn.q_proj"] = {"quant_algo": "FP8"}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    first, second = _read({**MOE, "quantization_config": config}).groups
    assert first.layer.experts.expert[0].precision.name == "nvfp4"
    assert second.layer.experts.expert[0].precision.name == "bf16"
    assert second.layer.projections[0].precision.name == "fp8"


def test_int4_and_mxfp4_by_their_groups() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 32}
    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": weights}},
        "ignore": ["re:.*self_attn.*"],
    }
    layer = _read({**MOE, "quantization_config": config}).groups[0].layer
    assert layer.experts.expert[0].precision.name == "int4-g32"
    assert layer.projections[0].precision.name == "bf16"
    awq = _read({**MOE, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    assert awq.groups[0].layer.projections[0].precision.name == "int4-g128"


def test_weights_option_overrides_the_checkpoint() -> None:
    model = find_model("deepseek-v3", weights=precision_named("nvfp4"))
    layer = model.groups[-1].layer
    assert layer.experts is not None
    assert layer.experts.expert[0].precision == PRECISIONS["nvfp4"]
    assert layer.experts.router[0].precision.name == "bf16"


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"quant_method": "magic"}, "quant_method 'magic' is not known"),
        ({"quant_method": "modelopt", "quant_algo": "FP2"}, "quant_algo 'FP2' is not known"),
        ({"quant_method": "awq", "bits": 3, "group_size": 128}, "3 bits in groups of 128"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "0 groups"),
    ],
)
def test_unknown_quantization_is_refused(section: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArchitectureError, match=complaint):
        read_scheme(section, base=PRECISIONS["bf16"], origin="test")


# --- refusals ---


def test_unknown_family_with_unknown_fields_is_refused_by_name() -> None:
    with pytest.raises(UnknownFamilyError, match=r"the family 'mamba_3' is not known .* understood: state_groups"):
        _read({**LLAMA, "model_type": "mamba_3", "state_groups": 8})


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_known_but_unread_families_say_why(family: str) -> None:
    with pytest.raises(UnknownFamilyError, match="is not read"):
        _read({**LLAMA, "model_type": family})


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "model_type"])
def test_a_missing_key_is_named(key: str) -> None:
    values = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(ArchitectureError, match=key):
        _read(values)


@pytest.mark.parametrize("value", ["64", -1, 0, 1.5, True, [64]])
def test_a_wrong_value_is_named(value: object) -> None:
    with pytest.raises(ArchitectureError, match="hidden_size"):
        _read({**LLAMA, "hidden_size": value})


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("gpt-oss-20b", {"layer_types": ["banana"] * 24}),
        ("glm-5", {"mlp_layer_types": ["banana"] * 78}),
        ("qwen3.6-35b-a3b", {"layer_types": ["banana"] * 40}),
        ("deepseek-v4-flash", {"compress_ratios": [2.5] * 43}),
        ("deepseek-v3", {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": "lm_head"}}),
        (
            "deepseek-v3",
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["re:(("]}},
        ),
    ],
)
def test_what_is_not_understood_is_refused_and_not_approximated(family: str, change: dict[str, Any]) -> None:
    folder = Path(__file__).resolve().parents[2] / "src" / "specmargin" / "catalog" / "models"
    values = json.loads((folder / f"{family}.json").read_text())["config"]
    with pytest.raises(ArchitectureError, match=r"^test: "):
        _read({**values, **change})


def test_llamacpp_formats_quantise_the_head_too() -> None:
    assert find_model("qwen3-8b", weights=precision_named("q4_k")).lm_head.precision.name == "q6_k"
    assert find_model("qwen3-8b", weights=precision_named("fp8")).lm_head.precision.name == "bf16"


def test_more_experts_a_token_than_experts() -> None:
    with pytest.raises(ArchitectureError, match=r"^test: experts_per_token=9 is not in 1\.\.8"):
        _read({**MOE, "num_experts_per_tok": 9})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
quantizations = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["fp8", "modelopt", "mxfp4", "compressed-tensors", "awq", "nonsense"])},
    optional=dict.fromkeys(
        ("modules_to_not_convert", "ignore", "quant_algo", "quantized_layers", "config_groups", "bits"), json_values
    ),
)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    base=st.sampled_from([bundled_model, None]),
    changes=st.dictionaries(
        st.sampled_from(
            [
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "layer_types",
                "compress_ratios",
                "moe_layer_freq",
                "quantization_config",
                "torch_dtype",
                "text_config",
                "num_experts",
                "mlp_only_layers",
                "sparse_attention_config",
                "hybrid_override_pattern",
                "tie_word_embeddings",
            ]
        ),
        json_values | quantizations,
        max_size=4,
    ),
)
def test_hostile_configurations_are_refused_with_our_own_errors(
    family: str, base: object, changes: dict[str, Any]
) -> None:
    """Whatever stands in the file: an architecture or an InputError, never another exception."""
    values = {**MOE, "model_type": family, **changes}
    if base is not None:
        values = {**_example(family), **changes}
    try:
        model = _read(values)
    except InputError:
        return
    assert model.parameters > 0


_EXAMPLES: dict[str, dict[str, Any]] = {}


def _example(family: str) -> dict[str, Any]:
    """A bundled configuration of this family, made small, or the plain mixture."""
    if not _EXAMPLES:
        folder = Path(__file__).resolve().parents[2] / "src" / "specmargin" / "catalog" / "models"
        for file in sorted(folder.glob("*.json")):
            config = json.loads(file.read_text())["config"]
            _EXAMPLES.setdefault(config["model_type"], config)
    return _EXAMPLES.get(family, {**MOE, "model_type": family})


# --- files and names ---


def test_a_folder_a_file_and_the_quantization_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    by_folder, by_file = load_architecture(tmp_path), load_architecture(tmp_path / "config.json")
    assert by_folder == by_file
    assert by_folder.groups[0].layer.projections[0].precision == FP8
    assert by_folder.name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[]", "is a JSON object"),
        ("\xff\xfe", "not valid JSON|cannot be read|UTF-16"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not usable JSON"),
        ("[" * 100_000, "not usable JSON|not valid JSON"),
    ],
    ids=["cut", "list", "bytes", "digits", "nesting"],
)
def test_malformed_files(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ArchitectureError, match=complaint):
        load_architecture(file)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"no config\.json here"):
        load_architecture(tmp_path)
    with pytest.raises(ArchitectureError, match="no such file"):
        load_architecture(tmp_path / "nothing.json")


def test_quantization_beside_the_configuration_must_say_something(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ArchitectureError, match="'quantization' is missing"):
        load_architecture(tmp_path)


@pytest.mark.parametrize("name", ["~nosuchuser/x", "x" * 300, "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(CatalogError, match="neither a bundled model"):
        find_model(name)


def test_hub_ids_resolve_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--someone--some-model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    assert find_model("someone/some-model").name == "someone/some-model"
    assert find_model("Qwen/Qwen3.6-35B-A3B") == bundled_model("qwen3.6-35b-a3b")
    with pytest.raises(CatalogError, match="neither a bundled model"):
        find_model("someone/other-model")


def test_nearest_names_are_suggested() -> None:
    with pytest.raises(CatalogError, match=r"nearest bundled: qwen3.6-35b-a3b"):
        find_model("qwen3.6-35b")


def test_matrices_are_checked() -> None:
    with pytest.raises(ArchitectureError, match="at least 1"):
        Matrix(name="m", inputs=0, outputs=1, precision=FP8)
