"""Parameter counts against what publishers print and what another implementation builds."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from specmargin.architecture.reader import REFUSED, read_architecture
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import bundled_model
from specmargin.errors import UnknownFamilyError
from specmargin.hardware.layout import Layout
from specmargin.prices.drafters import Drafter, drafter_weight_bytes
from specmargin.prices.memory import weight_bytes

COUNTS = json.loads((Path(__file__).parent / "data" / "transformers_parameter_counts.json").read_text())["parameters"]


def _rounded(parameters: int, digits: int) -> str:
    return f"{parameters / 1e9:.{digits}f}"


@pytest.mark.parametrize(
    ("model", "printed", "digits"),
    [
        ("mixtral-8x7b", "46.7", 1),  # Mistral AI, "Mixtral of experts"
        ("qwen3-30b-a3b", "30.5", 1),  # Qwen3-30B-A3B model card
        ("qwen3-235b-a22b", "235", 0),  # Qwen3-235B-A22B model card
        ("deepseek-v3", "671", 0),  # DeepSeek-V3 technical report, main model without the MTP module
        ("gpt-oss-120b", "116.8", 1),  # gpt-oss model card: 116.83B
        ("deepseek-v4-flash", "284", 0),  # DeepSeek-V4-Flash model card, without the MTP module
        ("llama-3.1-70b", "70.6", 1),  # Llama 3.1 model card
        ("qwen3.6-35b-a3b", "35", 0),  # Qwen3.6-35B-A3B model card
        ("command-a", "111", 0),  # Command A model card
        ("qwen3-next-80b-a3b", "80", 0),  # Qwen3-Next-80B-A3B model card
        ("qwen3-14b", "14.8", 1),  # Qwen3-14B model card: 14.8B
        ("llama-3.2-1b", "1.24", 2),  # Llama 3.2 model card: 1.23B, cut; 1.2358 here
        ("llama-3.2-3b", "3.21", 2),  # Llama 3.2 model card: 3.21B
        ("qwen3.8-2.4t-a95b", "2420", 0),  # Qwen3.8-2.4T-A95B: 2.4T
        ("qwen3.8-27b", "27", 0),  # Qwen3.8-27B
        ("hy3", "295", 0),  # Hy3 model card, without the MTP layer
        ("ling-mini-2.0", "16.26", 2),  # Ling-V2 README
        ("step-3.5-flash", "197", 0),  # Step-3.5-Flash model card: 196B, cut; 196.96 here
        ("kimi-k3", "2779", 0),  # Kimi-K3: 2.8T
        ("mimo-7b", "7.6", 1),  # MiMo-7B: 7B; exactly what transformers builds (below)
        ("qwen2.5-coder-0.5b", "0.49", 2),  # Qwen2.5-Coder model cards
        ("qwen2.5-coder-1.5b", "1.54", 2),
        ("qwen2.5-coder-7b", "7.62", 2),  # 7.61B, cut; 7.6156 here
        ("qwen2.5-coder-14b", "14.8", 1),  # 14.7B, cut; 14.77 here
        ("qwen2.5-coder-32b", "33", 0),  # 32.5B; 32,763,876,352 in its safetensors, as here
        (
            "qwen3.8-flash-next",
            "126",
            0,
        ),  # "125B main" (jundot/omlx issue 3170), cut; 125.7 here, without the n-gram table
        # "552B backbone" (vLLM 0.33, recipes/models/deepseek-ai/DeepSeek-V4.1-Flash.yaml), without the n-gram tables
        ("deepseek-v4.1-flash", "552", 0),
        ("nemotron-3.5-lightning-30b-a3b", "31.6", 1),  # 31,577,937,344, exactly what transformers builds (below)
        ("qwen3.5-4b", "4", 0),  # Qwen3.5-4B model card
        ("qwen3.5-9b", "9", 0),  # Qwen3.5-9B model card
        ("gemma-4-12b", "11.91", 2),  # 11.96B with the vision and audio embedders (tenstorrent/tt-xla issue 5255)
        ("laguna-xs-2.1", "33", 0),  # Laguna-XS-2.1 model card: 33B-A3B
        ("glm-4.5-air", "107", 0),  # GLM-4.5-Air: "106B" without its embedding's rounding; 106.85 here
    ],
)
def test_total_is_the_published_one(model: str, printed: str, digits: int) -> None:
    assert _rounded(bundled_model(model).parameters, digits) == printed


def test_flash_next_uses_six_billion_parameters_per_token() -> None:
    """125B-A6B: 6.0 without embedding and LM head."""
    model = bundled_model("qwen3.8-flash-next")
    assert _rounded(model.active_parameters(count_embedding=False) - model.lm_head.parameters, 0) == "6"


def test_glm_5_3_flash_has_the_parameters_that_transformers_builds() -> None:
    """313,326,799,870 in the modules of Transformers 5.23 (glm5_next, with the published index_kpool of 4 and an LM
    head); "321B" and "18B active" in vLLM 0.33's recipe count the MTP layer."""
    model = bundled_model("glm-5.3-flash")
    assert model.parameters == 313_326_799_870
    assert model.draft_head is not None
    assert _rounded(model.parameters + model.draft_head.parameters, 0) == "321"
    drafting = sum(group.count * group.layer.active_parameters for group in model.draft_head.groups)
    assert _rounded(model.active_parameters(count_embedding=True) + drafting, 0) == "18"


def test_kat_coder_has_the_parameters_of_its_conversion() -> None:
    """ "35,505 million" with the MTP layer of Qwen3.6-35B-A3B added (prasel/KAT-Coder-V2.5-Dev-MTP-ROCmFPX-GGUF)."""
    model, base = bundled_model("kat-coder-v2.5-dev"), bundled_model("qwen3.6-35b-a3b")
    assert model.draft_head is None and base.draft_head is not None
    assert f"{(model.parameters + base.draft_head.parameters) / 1e6:.0f}" == "35505"


def test_deepseek_v4_1_has_the_bytes_of_its_checkpoint() -> None:
    """510.3 GB in the index (vLLM 0.33, recipes/models/deepseek-ai/DeepSeek-V4.1-Flash.yaml): layers, DSpark head with
    experts of its own, and two n-gram tables of 264 bytes a row; the vision tower (under 1 GB) is not read."""
    model = bundled_model("deepseek-v4.1-flash")
    assert model.block_head is not None
    own = drafter_weight_bytes(Drafter(name="dspark", runs=model.block_head, source=model.source), Layout(gpus=1))
    tables = (384_006_168 + 384_016_682) * 264
    total = weight_bytes(model, Layout(gpus=1)) + own + tables
    assert abs(total / 510.3e9 - 1) < 0.01


def test_glm_ocr_has_a_decoder_of_half_a_billion() -> None:
    """GLM-OCR model card: a 0.5B decoder, which is its layers without embedding and LM head."""
    model = bundled_model("glm-ocr")
    assert _rounded(model.parameters - model.embedding.parameters - model.lm_head.parameters, 1) == "0.5"


def test_kimi_k2_has_a_trillion_parameters() -> None:
    """Kimi K2 model card: 1T. 1.03T with the input embedding and the LM head."""
    assert f"{bundled_model('kimi-k2').parameters / 1e12:.0f}" == "1"


@pytest.mark.parametrize(
    ("model", "printed", "digits", "with_embedding"),
    [
        ("mixtral-8x7b", "12.9", 1, True),  # Mistral AI counts the input embedding: 12.88
        ("qwen3-235b-a22b", "22", 0, True),  # model card; 21.6 without the embedding also rounds to it
        ("deepseek-v3", "37", 0, False),  # technical report; 36.6 without the input embedding
        ("gpt-oss-120b", "5.1", 1, False),  # model card: the embedding is not counted, the unembedding is
        ("kimi-k2", "32", 0, False),  # model card; 31.7 without the input embedding
        ("deepseek-v4-flash", "13", 0, False),  # model card; 13.3 without the input embedding
        ("qwen3.8-2.4t-a95b", "95", 0, True),  # model card
        ("hy3", "21", 0, True),  # model card; 20.7 with the input embedding
        ("step-3.5-flash", "11", 0, False),  # model card
        ("ling-mini-2.0", "1.43", 2, True),  # Ling-V2 README
        ("laguna-xs-2.1", "3", 0, False),  # model card: 33B-A3B
        ("qwen3.6-35b-a3b", "3", 0, False),  # model card; 2.95 without the input embedding
        ("deepseek-v4.1-flash", "16", 0, False),  # "16B per output token" (vLLM's recipe)
        ("nemotron-3.5-lightning-30b-a3b", "3", 0, False),  # model card: 30B-A3B
    ],
)
def test_active_is_the_published_one(model: str, printed: str, digits: int, with_embedding: bool) -> None:
    active = bundled_model(model).active_parameters(count_embedding=with_embedding)
    assert _rounded(active, digits) == printed


@pytest.mark.parametrize(
    ("model", "printed", "digits"),
    [
        ("hy3", "3.8", 1),  # Hy3 model card: "+3.8B MTP layer"
        ("mimo-v2-flash", "0.33", 2),  # MiMo-V2-Flash README: "0.33B params/block"
    ],
)
def test_mtp_heads_have_the_published_size(model: str, printed: str, digits: int) -> None:
    head = bundled_model(model).draft_head
    assert head is not None
    assert _rounded(head.parameters, digits) == printed


def test_active_parameters_of_qwen3_30b_are_cut_not_rounded_on_its_card() -> None:
    """The card prints 3.3B; with both embeddings the model has 3.353B, which it truncates."""
    active = bundled_model("qwen3-30b-a3b").active_parameters(count_embedding=True)
    assert active == 3_353_032_704
    assert f"{int(active / 1e8) / 10:.1f}" == "3.3"


def _configurations() -> list[str]:
    folder = pytest.importorskip("aiconfigurator_core")
    del folder
    names = (entry.name for entry in (files("aiconfigurator_core") / "model_configs").iterdir())
    return sorted(n.removesuffix("_config.json") for n in names if n.endswith("_config.json") and "hf_quant" not in n)


def _read(name: str) -> Architecture:
    folder = files("aiconfigurator_core") / "model_configs"
    beside = folder / f"{name}_hf_quant_config.json"
    quantization = json.loads(beside.read_text())["quantization"] if beside.is_file() else None
    values = json.loads((folder / f"{name}_config.json").read_text())
    return read_architecture(values, name=name, origin=name, quantization=quantization)


def test_public_configurations_load_or_are_refused_by_name() -> None:
    """aiconfigurator-core 0.12.0 carries 89 real configurations; 87 load, the two forms of Step-3.7 say why not."""
    names = _configurations()
    loaded, refused = [], {}
    for name in names:
        try:
            loaded.append(_read(name))
        except UnknownFamilyError as error:
            refused[name] = str(error)
    assert len(names) >= 89
    assert len(loaded) >= 87
    assert not any("unknown family" in str(model.source) for model in loaded)  # each has a reader of its own
    for name, reason in refused.items():
        assert name in reason
        assert any(why in reason for why in REFUSED.values())


def test_pruned_llama_has_the_parameters_of_its_blocks() -> None:
    """Llama-3.3-Nemotron-Super-49B, summed from the shapes of vLLM's module: 49.9B."""
    name = "nvidia--Llama-3_3-Nemotron-Super-49B-v1"
    assert name in _configurations()
    widths = [2.625] + [5.25] * 49 + [2.625] * 5 + [3.28125] + [1.3125] * 10 + [1.0] * 8 + [0.5] * 6  # ffn_mult
    mlps = sum(3 * 8192 * -(-int(2 * width * 8192 / 3) // 256) * 256 for width in widths)
    attention = 49 * (2 * 8192 * 8192 + 2 * 8192 * 8 * 128)
    norms = (80 + 49 + 1) * 8192
    assert _read(name).parameters == 2 * 128256 * 8192 + mlps + attention + norms
    assert _rounded(_read(name).parameters, 1) == "49.9"


def test_every_configuration_has_the_parameters_that_transformers_builds() -> None:
    """84 configurations, 26 families' quirks: exactly the count of Hugging Face's own modules, to the parameter."""
    names = set(_configurations())
    compared = [name for name in COUNTS if name in names]
    assert len(compared) >= 80
    wrong = {
        name: (_read(name).parameters, COUNTS[name]) for name in compared if _read(name).parameters != COUNTS[name]
    }
    assert wrong == {}
