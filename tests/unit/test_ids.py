"""Hugging Face ids: listed variants, names from any publisher, and the message for the rest."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from specmargin.architecture.precision import PRECISIONS, precision_named
from specmargin.architecture.reader import REFUSED, read_architecture
from specmargin.architecture.types import Architecture
from specmargin.catalog.ids import listed_variants, varied
from specmargin.catalog.lookup import bundled_model, find_model, hub_id, model_names, variant_ids
from specmargin.errors import CatalogError
from specmargin.sources import SourceKind

IDS = sorted(variant.id for variant in listed_variants().values())
# The end of a name states its precision; the listed precision must agree with it.
STATED = {
    "fp8": ("fp8", "fp8-block"),
    "fp8-dynamic": ("fp8",),
    "fp8-block": ("fp8-block",),
    "fp8-kv": ("fp8",),
    "awq": ("int4-g128",),
    "awq-4bit": ("int4-g128",),
    "awq-int4": ("int4-g128",),
    "gptq": ("int4-g128",),
    "gptq-int4": ("int4-g128",),
    "gptq-int8": ("w8a16",),
    "int4-autoround": ("int4-g128",),
    "w4a16": ("int4-g128",),
    "w8a8": ("int8",),
    "nvfp4": ("nvfp4", "nvfp4-w4a16"),
    "fp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
    "mxfp8": ("mxfp8",),
    "bf16": ("bf16",),
}


@pytest.fixture(autouse=True)
def _no_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def _groups() -> list[dict[str, Any]]:
    text = (files("specmargin.catalog") / "ids.toml").read_text(encoding="utf-8")
    groups: list[dict[str, Any]] = tomllib.loads(text)["variants"]
    return groups


def test_the_list_is_long_and_names_nothing_twice() -> None:
    ids = [name.lower() for group in _groups() for name in group["ids"]]
    assert len(ids) >= 150
    assert len(ids) == len(set(ids))
    assert not set(ids) & {hub_id(name).lower() for name in model_names()}


def test_the_file_has_no_unknown_keys_or_names() -> None:
    for group in _groups():
        assert set(group) <= {"model", "weights", "config", "context", "source", "note", "ids"}
        assert group["model"] in model_names()
        assert group.get("weights", "bf16") in PRECISIONS
        assert "weights" not in group or "quantization_config" not in group.get("config", {})


def test_a_context_of_its_own_has_a_source() -> None:
    """A length that differs from the bundled model's is stated somewhere, and the output says where."""
    for group in _groups():
        assert ("max_position_embeddings" in group.get("config", {})) == ("context" in group), group["ids"]
    assert "; context 202,752 (GLM-4.6 model card: 200K; " in find_model("zai-org/GLM-4.7").source.detail
    assert "; context" not in find_model("zai-org/GLM-4.5-FP8").source.detail


@pytest.mark.parametrize("spec", IDS)
def test_every_listed_id_is_its_model_in_the_precision_of_its_name(spec: str) -> None:
    variant, model = listed_variants()[spec.lower()], find_model(spec)
    bundled = bundled_model(variant.model)
    assert (model.name, model.parameters) == (variant.model, bundled.parameters)
    shown = f"{spec}: architecture of {variant.model}, weights {', '.join(model.weight_precisions)}"
    assert model.source.detail.startswith(shown)
    ending = max((end for end in STATED if spec.lower().endswith(("-" + end, "." + end))), key=len, default=None)
    if ending is not None:
        assert set(STATED[ending]) & set(model.weight_precisions)
    elif not variant.is_quantized:
        assert model.groups == bundled.groups


@pytest.mark.parametrize("spec", IDS)
def test_an_explicit_precision_wins(spec: str) -> None:
    model = find_model(spec.upper(), weights=precision_named("q4_k"))
    assert model.groups == bundled_model(model.name, weights=precision_named("q4_k")).groups
    assert "weights q4_k" in model.source.detail


def _located() -> list[str]:
    pytest.importorskip("aiconfigurator_core")
    folder = files("aiconfigurator_core") / "model_configs"
    files_by_id = {spec: folder / f"{spec.replace('/', '--')}_config.json" for spec in IDS}
    present = [spec for spec, file in files_by_id.items() if file.is_file()]
    return [spec for spec in present if json.loads(files_by_id[spec].read_text())["model_type"] not in REFUSED]


def _own_configuration(spec: str) -> Architecture:
    folder, name = files("aiconfigurator_core") / "model_configs", spec.replace("/", "--")
    beside = folder / f"{name}_hf_quant_config.json"
    quantization = json.loads(beside.read_text())["quantization"] if beside.is_file() else None
    values = json.loads((folder / f"{name}_config.json").read_text())
    return read_architecture(values, name=name, origin=name, quantization=quantization)


def test_listed_ids_have_the_layers_of_their_own_configurations() -> None:
    """Every matrix, precision, KV format and context of the 44 ids whose configuration is public."""
    located = _located()
    assert len(located) >= 40
    for spec in located:
        model, own = find_model(spec), _own_configuration(spec)
        assert model.groups == own.groups, spec
        assert (model.lm_head, model.embedding) == (own.lm_head, own.embedding), spec
        assert (model.kv_precision, model.max_context) == (own.kv_precision, own.max_context), spec
        inside = [a.draft_head for a in (model, own)]  # an assistant has a checkpoint of its own
        heads = [None if head is None or head.checkpoint else head.groups for head in inside]
        assert heads[0] == heads[1], spec


@pytest.mark.parametrize(
    ("spec", "model", "weights", "context"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", "bf16", 262144),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "fp8-block", 163840),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", "bf16", 131072),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2.5", "int4-g32", 262144),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", "fp8-block", 262144),
        ("zai-org/GLM-4.6", "glm-4.5", "bf16", 202752),
        ("CohereLabs/command-a-reasoning-08-2025", "command-a", "bf16", 256000),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-r1", "nvfp4", 163840),
    ],
)
def test_ids_that_a_configuration_or_a_card_states(spec: str, model: str, weights: str, context: int) -> None:
    found = find_model(spec)
    assert (found.name, found.weight_precisions[0], found.max_context) == (model, weights, context)
    assert found.source.kind is SourceKind.PUBLISHED
    assert found.draft_head is None or found.draft_head.source == found.source


@pytest.mark.parametrize(
    ("spec", "model", "weights"),
    [
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air", "fp8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("someone/Qwen3-30B-A3B-Instruct-2507-AWQ", "qwen3-30b-a3b", "int4-g128"),
        ("someone/qwen3-30b-a3b-GPTQ-Int8", "qwen3-30b-a3b", "w8a16"),
        ("someone/DeepSeek-V3-0324-BF16", "deepseek-v3", "bf16"),
        ("someone/Qwen3-8B-quantized.w8a8", "qwen3-8b", "int8"),
        ("someone/GLM-4.6-MXFP4", "glm-4.5", "mxfp4"),
        ("Llama-3.3-70B-Instruct", "llama-3.1-70b", "bf16"),
        ("unsloth/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
    ],
)
def test_a_precision_that_only_the_name_states_is_assumed(spec: str, model: str, weights: str) -> None:
    found = find_model(spec)
    assert (found.name, found.weight_precisions[0]) == (model, weights)
    assert found.source.kind is SourceKind.ASSUMED
    assert "(from its name)" in found.source.detail


def test_the_context_of_a_stage_is_kept_under_a_suffix() -> None:
    assert find_model("someone/Qwen3-30B-A3B-Instruct-2507-AWQ").max_context == 262144


def test_a_gguf_repository_needs_its_precision() -> None:
    with pytest.raises(CatalogError, match="several precisions; name one, for example: qwen3-8b --weights q4_k"):
        find_model("unsloth/Qwen3-8B-GGUF")
    assert find_model("unsloth/Qwen3-8B-GGUF", weights=precision_named("q4_k")).weight_precisions[0] == "q4_k"


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("someone/Qwen3-30B-A3B-abliterated", "qwen3-30b-a3b"),
        ("cerebras/GLM-4.5-Air-REAP-82B-A12B", "glm-4.5-air"),
        ("zai-org/GLM-4.6-Turbo", "glm-4.5"),
        ("someone/Llama-3.3-70B-Instruct-FP8-FP8", "llama-3.1-70b"),
    ],
)
def test_an_unknown_id_names_the_nearest_model_and_the_command(spec: str, nearest: str) -> None:
    with pytest.raises(CatalogError) as caught:
        find_model(spec)
    message = str(caught.value)
    assert f"nearest bundled: {nearest};" in message
    assert f"hf download {spec} config.json" in message
    assert "\n" not in message


@pytest.mark.parametrize("spec", ["qwen3-40b", "a/b/c", "a b/c; rm -rf x"])
def test_the_command_never_quotes_what_is_not_an_id(spec: str) -> None:
    with pytest.raises(CatalogError, match=r"hf download ORG/NAME config\.json"):
        find_model(spec)


def test_a_fetched_configuration_answers_for_an_unlisted_id(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--someone--Qwen3-8B-FP8" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    values = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    (snapshot / "config.json").write_text(json.dumps(values | {"intermediate_size": 128, "vocab_size": 100}))
    assert find_model("someone/Qwen3-8B-FP8").name == "someone/Qwen3-8B-FP8"


def test_stars_stand_for_every_layer() -> None:
    variant = listed_variants()["nvidia/qwen3.6-27b-nvfp4"]
    layers = varied({"num_hidden_layers": 3}, variant)["quantization_config"]["quantized_layers"]
    assert {"lm_head", "layers.0.mlp", "layers.2.mlp"} <= set(layers)
    assert not any("*" in name for name in layers)


def test_ids_of_a_model() -> None:
    assert "zai-org/GLM-4.6" in variant_ids("glm-4.5")
    assert sum(len(variant_ids(name)) for name in model_names()) == len(IDS)
