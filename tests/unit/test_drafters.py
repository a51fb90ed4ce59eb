"""What drafting costs, kind by kind."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.architecture.precision import precision_named
from specmargin.architecture.types import Architecture, DraftHead, LatentAttention, total_bytes, total_parameters
from specmargin.catalog.drafters import (
    DraftChoice,
    acceptance_names,
    available_drafters,
    bundled_acceptance,
    default_kind,
    find_acceptance,
    find_drafter,
)
from specmargin.catalog.lookup import bundled_model, find_model, model_names
from specmargin.decisions.pricer import Pricer
from specmargin.errors import AcceptanceError, ArchitectureError, CatalogError, ScenarioError
from specmargin.hardware.layout import Layout
from specmargin.modes import DRAFTERS, DrafterKind
from specmargin.prices.drafters import FREE, NGRAM, drafter_sequence_bytes, drafter_weight_bytes, round_seconds
from specmargin.prices.work import Component
from specmargin.sources import SourceKind
from specmargin.step import FloatArray
from tests.scenarios import pricer, scenario

QWEN = bundled_model("qwen3.6-35b-a3b")


def _draft(spec: str, batch: int, depth: int, model: str = "qwen3.6-35b-a3b") -> float:
    setting = pricer(model, drafter=spec, context=0)
    return float(setting.grid([batch], depth).draft_seconds[0, depth])


def _array(value: float) -> FloatArray:
    return np.asarray(float(value))


def test_mtp_pass_by_hand() -> None:
    """One pass at batch 1 after a run of 2: all dense weights, 15.75 experts, the LM head, KV and logits."""
    assert QWEN.draft_head is not None
    layer = QWEN.draft_head.groups[0].layer
    assert layer.experts is not None
    dense = total_parameters(layer.matrices) + 2 * 2048 * 2048 + 248_320 * 2048
    experts = 256 * (1 - (1 - 8 / 256) ** 2) * 3_145_728
    kv = (2 + 2) * 2 * 2 * 256 * 2  # two positions, written and read
    logits = 248_320 * 4
    expected = (2 * (dense + experts) + kv + logits) / 4.8e12
    assert _draft("mtp", batch=1, depth=1) == pytest.approx(expected, rel=1e-6)


def test_autoregressive_heads_pay_by_pass_and_block_heads_once() -> None:
    mtp = [_draft("mtp", 4, depth) for depth in (1, 2, 4)]
    assert mtp[0] < mtp[1] < mtp[2]
    block = [_draft("dflash", 4, depth) for depth in (1, 8, 15)]
    assert block[0] == block[1] == block[2] > 0
    assert _draft("dflash", 4, 0) == _draft("mtp", 4, 0) == 0.0


def test_a_draft_model_pays_its_own_price_sheet() -> None:
    small, large = _draft("model:qwen3-0.6b", 1, 4), _draft("model:qwen3-8b", 1, 4)
    assert 0 < small < large


@pytest.mark.parametrize(
    ("model", "kind", "millions"),
    [
        ("gemma-4-12b", "mtp", 423),  # google/gemma-4-12B-it-assistant
        ("gemma-4-31b", "mtp", 470),  # its 0.94 GB in bf16
        ("qwen3.8-27b", "dflash", 1924),  # z-lab/Qwen3.8-27B-DFlash2: 1.924 G
        ("laguna-xs-2.1", "dflash", 461),  # poolside/Laguna-XS-2.1-DFlash: 924 MB in bf16, norms included
        ("llama-3.1-8b", "dflash", 1049),  # z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat: 1.95 GiB
        ("qwen3.5-27b", "dflash", 1730),  # z-lab/Qwen3.5-27B-DFlash: 1.71 GiB in Q8_0 (8.5 bits)
    ],
)
def test_published_heads_have_their_published_size(model: str, kind: str, millions: int) -> None:
    choice = find_drafter(kind, bundled_model(model))
    assert isinstance(choice.drafter.runs, DraftHead)
    assert choice.drafter.runs.parameters / 1e6 == pytest.approx(millions, rel=0.002)
    assert choice.model.count("/") == 1  # what the engine loads
    assert choice.drafter.source.kind is SourceKind.PUBLISHED


def test_a_derived_head_has_its_published_size_and_says_that_it_is_assumed() -> None:
    """MiMo-V2.6-Flash's DFlash head: 2.94 GB in bf16 (vllm-project/vllm issue 47277)."""
    drafter = find_drafter("dflash", bundled_model("mimo-v2-flash")).drafter
    assert isinstance(drafter.runs, DraftHead)
    assert 2 * drafter.runs.parameters == pytest.approx(2.94e9, rel=0.002)
    assert drafter.source.kind is SourceKind.ASSUMED


def test_the_eagle_head_of_kimi_has_latents_and_the_full_vocabulary() -> None:
    """lightseekorg/kimi-k2.5-eagle3-mla: about 6 GB with the embedding, in bf16."""
    head = find_drafter("eagle", bundled_model("kimi-k2.5")).drafter.runs
    assert isinstance(head, DraftHead)
    assert isinstance(head.groups[0].layer.attention, LatentAttention)
    assert 2 * (head.parameters + head.lm_head.parameters) == pytest.approx(6.0e9, rel=0.01)


def test_an_assistant_reads_the_cache_of_its_target() -> None:
    """It stores no keys and values, projects none, and its LM head is most of a pass."""
    model = bundled_model("gemma-4-12b")
    head = find_drafter("mtp", model).drafter
    assert isinstance(head.runs, DraftHead)
    assert drafter_sequence_bytes(head, 8192.0, layout=Layout(), kv=model.kv_precision, depth=4) == 0.0
    names = {matrix.name for group in head.runs.groups for matrix in group.layer.projections}
    assert names == {"self_attn.q_proj", "self_attn.o_proj"}
    assert {m.inputs for m in head.runs.fusion} == {2 * model.hidden, 1024}
    seconds = [
        float(pricer("gemma-4-12b", drafter="mtp", context=c).grid([1], 4).draft_seconds[0, 4]) for c in (0, 65536)
    ]
    per_token = 2 * 512 * 2 * 1  # bytes of keys and values of the one full layer, of one KV head
    assert seconds[1] - seconds[0] == pytest.approx(
        4 * (65536 * per_token + 3 * 1024 * 2 * 8 * 256 * 2) / 4.8e12, rel=0.05
    )


def test_an_assistant_belongs_to_every_precision_of_its_target_and_stays_bf16() -> None:
    head = find_model("nvidia/Gemma-4-31B-IT-NVFP4").draft_head
    assert head == bundled_model("gemma-4-31b").draft_head
    assert head is not None and head.lm_head.precision.name == "bf16"


def _pass_bytes(spec: str, model: str, **options: Any) -> float:
    """What one draft token at batch 1 and no context reads, from its time on an H200's datasheet."""
    drafter = find_drafter(spec, bundled_model(model), **options).drafter
    setting = Pricer(replace(scenario(model, context=0), drafter=drafter))
    return float(setting.grid([1], 2).draft_seconds[0, 2] - setting.grid([1], 1).draft_seconds[0, 1]) * 4.8e12


def test_a_drafter_in_another_format_reads_fewer_bytes() -> None:
    """Gemma's assistant: int4 layers and projections, the LM head stays; llama.cpp's formats take the head, too."""
    head = bundled_model("gemma-4-12b").draft_head
    assert head is not None
    layers = head.parameters - head.lm_head.parameters - head.vector_parameters
    norms = sum(group.count * group.layer.vector_parameters for group in head.groups)
    plain, int4 = (
        _pass_bytes("mtp", "gemma-4-12b"),
        _pass_bytes("mtp", "gemma-4-12b", weights=precision_named("int4-g128")),
    )
    assert plain - int4 == pytest.approx((layers - norms) * (2 - (0.5 + 2.5 / 128)), rel=0.01)
    gguf = find_drafter("mtp", bundled_model("gemma-4-12b"), weights=precision_named("q4_k_m")).drafter.runs
    assert isinstance(gguf, DraftHead) and gguf.lm_head.precision.name == "q6_k"


def test_a_reduced_vocabulary_is_a_smaller_lm_head_of_its_own() -> None:
    whole, reduced = _pass_bytes("mtp", "qwen3.8-27b"), _pass_bytes("mtp", "qwen3.8-27b", vocabulary=40_000)
    rows = 248_320 - 40_000
    assert whole - reduced == pytest.approx(rows * (5120 * 2 + 4), rel=0.01)  # weights, and a logit written and read
    drafter = find_drafter("mtp", bundled_model("qwen3.8-27b"), vocabulary=40_000).drafter
    own = drafter_weight_bytes(drafter, Layout()) - drafter_weight_bytes(
        find_drafter("mtp", bundled_model("qwen3.8-27b")).drafter, Layout()
    )
    assert own == pytest.approx(40_000 * 5120 * 2)


def test_a_draft_model_is_read_in_its_own_format() -> None:
    for spec in ("model:qwen3-0.6b", "ssd:model:qwen3-0.6b"):
        runs = find_drafter(spec, QWEN, weights=precision_named("q8_0")).drafter.runs
        assert isinstance(runs, Architecture)
        assert runs.weight_precisions == ("q8_0",)


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("ngram", {"weights": precision_named("fp8")}, "--draft-weights: --drafter ngram has no weights"),
        ("free", {"vocabulary": 100}, "--draft-vocabulary: --drafter free has no weights"),
        ("mtp", {"vocabulary": 10**6}, "larger than the drafter's own, 248320"),
    ],
)
def test_what_a_drafter_cannot_be(spec: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        find_drafter(spec, QWEN, **options)


def test_free_and_ngram_cost_nothing_and_hold_no_memory() -> None:
    for name in ("free", "ngram"):
        assert _draft(name, 64, 8) == 0.0
        assert drafter_weight_bytes(find_drafter(name, QWEN).drafter, Layout()) == 0.0


def test_overlapped_drafting_takes_the_longer_and_pays_misses() -> None:
    drafter = find_drafter("ssd:mtp@0.75", QWEN).drafter
    verify, draft = _array(3e-3), _array(1e-3)
    assert round_seconds(drafter, verify, draft) == pytest.approx(3e-3 + 0.25e-3)
    assert round_seconds(drafter, draft, verify) == pytest.approx(3e-3 + 0.75e-3)
    assert round_seconds(FREE, verify, draft) == pytest.approx(4e-3)


def test_drafter_weights_and_kv_count_against_memory() -> None:
    with_head, without = pricer(drafter="mtp"), pricer(drafter="free")
    assert with_head.memory.drafter_bytes == pytest.approx(2 * (844_640_768 - 3 * 2048 - 2 * 2048 - 2 * 256))
    assert with_head.memory.free_bytes < without.memory.free_bytes
    assert with_head.sequence_bytes(0) > without.sequence_bytes(0)
    assert with_head.largest_batch(4) < without.largest_batch(0)


def test_a_recurrent_model_holds_a_state_for_every_draft_token() -> None:
    """Speculation's hidden price on hybrids: depth 3 keeps four states a sequence, so fewer sequences fit."""
    setting = pricer(drafter="free")
    state = 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert setting.sequence_bytes(3) - setting.sequence_bytes(0) == pytest.approx(3 * state, rel=0.01)


def test_kinds_and_defaults() -> None:
    assert [choice.kind for choice in available_drafters(QWEN)] == ["mtp", "eagle", "dflash", "ngram"]
    dense = [choice.kind for choice in available_drafters(bundled_model("qwen3-8b"))]
    assert dense == ["eagle", "dflash", "ngram", "model"]
    assert find_drafter("eagle3", QWEN).kind == "eagle"


@pytest.mark.parametrize("kind", sorted(DRAFTERS))
def test_every_kind_is_built_and_has_an_acceptance(kind: str) -> None:
    choice = find_drafter(f"{kind}:qwen3-0.6b" if DRAFTERS[kind].needs_detail else kind, QWEN)
    assert 0 < find_acceptance(None, choice, QWEN).first_acceptance < 1
    assert (choice.drafter is FREE) is (kind == "free")


def test_a_kind_that_is_only_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, "suffix", DrafterKind(name="suffix", detail="[:FILE]"))
    for spec in ("suffix", "suffix:anything"):
        with pytest.raises(CatalogError, match="--drafter suffix has no price"):
            find_drafter(spec, QWEN)
    choice = DraftChoice(kind="suffix", model="", drafter=NGRAM)
    with pytest.raises(CatalogError, match="no default acceptance of --drafter suffix is bundled"):
        find_acceptance(None, choice, QWEN)


def _head(spec: str) -> DraftHead:
    head = find_drafter(spec, QWEN).drafter.runs
    assert isinstance(head, DraftHead)
    return head


def test_eagle_and_dflash_heads_from_their_own_configurations(tmp_path: Path) -> None:
    eagle = tmp_path / "eagle.json"
    shape = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    eagle.write_text(json.dumps({**shape, "intermediate_size": 8192, "draft_vocab_size": 32000, "vocab_size": 248320}))
    head = _head(f"eagle:{eagle}")
    attention = 2 * 2048 * 4096 + 2 * 2 * 2048 * 512 + 4096 * 2048
    expected = attention + 3 * 2048 * 8192 + 3 * 2048 * 2048 + 32_000 * 2048
    assert head.parameters == pytest.approx(expected, rel=1e-3)
    dflash = tmp_path / "config.json"
    extra = {"num_hidden_layers": 5, "intermediate_size": 6144, "block_size": 16}
    dflash.write_text(json.dumps({**shape, **extra, "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}))
    head = _head(f"dflash:{tmp_path}")
    assert head.block == 16
    assert head.fusion[0].inputs == 5 * 2048


def test_a_dspark_head_is_a_dflash_head_whose_first_position_drafts_with_a_markov_head(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    shape = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    own = {"num_hidden_layers": 5, "intermediate_size": 6144, "block_size": 7}
    nested = {"target_layer_ids": [1, 9, 17, 25, 33], "markov_rank": 256}
    file.write_text(json.dumps({**shape, **own, "dflash_config": nested}))
    dspark, dflash = _head(f"dspark:{tmp_path}"), _head(f"dflash:{tmp_path}")
    assert (dspark.block_depth, dflash.block_depth) == (7, 6)
    # W1 and W2 of the Markov head, and a confidence head over the hidden state and W1's row, with its bias.
    added = 2 * 256 * QWEN.vocabulary + 2048 + 256 + 1
    assert dspark.parameters - dflash.parameters == added
    file.write_text(json.dumps({**shape, **own, "target_layers": 5, "markov_rank": 256, "sample_from_anchor": False}))
    assert find_drafter(f"dspark:{tmp_path}", QWEN).drafter.max_depth == 6


def test_dspark_reads_its_markov_head_once_per_token_of_the_block() -> None:
    """At datasheet prices and batch 1, 7 reads of 256 × vocabulary in bfloat16 on top of the pass of such a block."""
    setting = pricer(drafter="dspark", context=0)
    drafter = setting.scenario.drafter
    assert isinstance(drafter.runs, DraftHead)
    plain = replace(setting.scenario, drafter=replace(drafter, runs=replace(drafter.runs, serial=())))
    with_head, without = (float(made.draft_seconds(1.0, 7.0, 0.0)) for made in (setting, Pricer(plain)))
    assert with_head - without == pytest.approx(7 * 256 * QWEN.vocabulary * 2 / 4.8e12, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"markov_rank": 0}, "'markov_rank' must be at least 1"),
        ({"dspark_block_size": 5}, "give the checkpoint as the model"),
    ],
)
def test_a_dspark_configuration_without_a_price_is_refused(tmp_path: Path, change: dict[str, int], words: str) -> None:
    shape = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    own = {"num_hidden_layers": 5, "intermediate_size": 6144, "block_size": 7, "target_layers": 5}
    (tmp_path / "config.json").write_text(json.dumps({**shape, **own, "markov_rank": 256, **change}))
    with pytest.raises(ArchitectureError, match=words):
        find_drafter(f"dspark:{tmp_path}", QWEN)


def test_a_dspark_head_in_the_checkpoint_drafts_by_default_and_is_loaded_from_there() -> None:
    target = find_model("deepseek-v4.1-flash")
    choice = find_drafter(default_kind(target), target)
    assert (choice.kind, choice.model) == ("dspark", "deepseek-ai/DeepSeek-V4.1-Flash")
    assert choice.drafter.runs is target.block_head
    with pytest.raises(CatalogError, match="has no MTP head; use --drafter dspark"):
        find_drafter("mtp", target)
    later = find_model("deepseek-ai/DeepSeek-V4-Flash-0731")
    assert later.draft_head is None
    assert find_drafter("dspark", later).model == "deepseek-ai/DeepSeek-V4-Flash-0731"


def test_a_head_with_experts_of_its_own_reads_as_many_as_its_block_routes_to() -> None:
    """At batch 1, five positions of three experts each: at most 15 of the head's 128, and never the target's 384."""
    setting = pricer("deepseek-v4.1-flash", "b300", "dspark", layout=Layout(gpus=8), context=1024)
    head = setting.scenario.drafter.runs
    assert isinstance(head, DraftHead)
    price = setting.draft_ledger(1.0, 5.0, 1024.0)
    assert price is not None
    (experts,) = [line for line in price.components if line.component is Component.ROUTED_EXPERTS]
    layer = next(group.layer for group in head.groups if group.layer.experts is not None)
    assert layer.experts is not None
    expert = total_bytes(layer.experts.expert) / 8
    assert 3 * 3 * expert < float(experts.bytes) <= 3 * 15 * expert


def test_overlapped_drafting_keeps_the_kind_inside() -> None:
    choice = find_drafter("ssd:eagle@0.8", QWEN)
    assert (choice.kind, choice.model, choice.drafter.name) == ("eagle", "", "ssd")
    assert find_drafter("ssd", bundled_model("qwen3-8b")).kind == "eagle"


def test_a_bundled_draft_model_is_written_by_its_hub_id() -> None:
    assert find_drafter("model:qwen3-0.6b", QWEN).model == "Qwen/Qwen3-0.6B"


def test_a_block_holds_the_token_to_continue_from() -> None:
    """Block 16 drafts 15: the published histogram has no round with 16 accepted."""
    assert find_drafter("dflash", QWEN).drafter.max_depth == 15


@pytest.mark.parametrize("name", model_names())
def test_every_bundled_model_has_its_drafters(name: str) -> None:
    assert {choice.kind for choice in available_drafters(bundled_model(name))} >= {"eagle", "dflash", "ngram"}


def test_a_draft_model_keeps_its_own_embedding_and_cache() -> None:
    drafter = find_drafter("model:llama-3.1-8b", QWEN).drafter
    model = bundled_model("llama-3.1-8b")
    vectors = 32 * 2 * 4096 + 4096
    assert drafter_weight_bytes(drafter, Layout()) == pytest.approx(2 * (model.parameters - vectors))


@pytest.mark.parametrize(
    ("spec", "error", "complaint"),
    [
        ("mtp:foo", CatalogError, "takes nothing after the colon"),
        ("mpt", CatalogError, "unknown drafter 'mpt'; nearest: mtp"),
        ("model", CatalogError, "needs a model"),
        ("model:nope", CatalogError, "neither a bundled model"),
        ("ssd:ngram", CatalogError, "overlaps a head or a model"),
        ("ssd:mtp@x", ScenarioError, "is not a number"),
        ("ssd:mtp@1.5", ScenarioError, r"must lie in 0\.\.1"),
        ("eagle:/nowhere/config.json", Exception, "cannot be read"),
    ],
)
def test_bad_drafters(spec: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        find_drafter(spec, QWEN)


def test_a_model_without_an_mtp_head_says_so() -> None:
    with pytest.raises(CatalogError, match="has no MTP head"):
        find_drafter("mtp", bundled_model("qwen3-8b"))


# --- acceptance ---


@pytest.mark.parametrize("name", acceptance_names())
def test_bundled_curves_are_curves_with_a_source(name: str) -> None:
    curve = bundled_acceptance(name)
    assert curve.source.detail
    assert 0 < curve.first_acceptance < 1


def test_default_curve_follows_the_drafter() -> None:
    assert find_acceptance(None, find_drafter("mtp", QWEN), QWEN).first_acceptance == 0.7789
    assert find_acceptance(None, find_drafter("ssd:dflash", QWEN), QWEN).first_acceptance == 0.7723
    assert find_acceptance("dflash", find_drafter("mtp", QWEN), QWEN).first_acceptance == 0.7723


def test_a_curve_of_another_model_is_an_assumption() -> None:
    other = bundled_model("deepseek-v3")
    assert find_acceptance(None, find_drafter("mtp", QWEN), QWEN).source.kind == "published"
    assert find_acceptance(None, find_drafter("mtp", other), other).source.kind == "assumed"


def test_cohere_curve_has_their_acceptance_length() -> None:
    """Acceptance length 2.73 at K = 3: one token for certain and 1.73 accepted drafts."""
    assert 1 + bundled_acceptance("eagle").accepted_by_depth(3)[-1] == pytest.approx(2.73, abs=0.005)


def test_forms_of_acceptance() -> None:
    choice = find_drafter("mtp", QWEN)
    assert find_acceptance("0.8", choice, QWEN).up_to(3) == pytest.approx([0.8, 0.64, 0.512])
    assert find_acceptance("0.78,0.58,0.44", choice, QWEN).up_to(2) == pytest.approx([0.78, 0.58])
    assert find_acceptance("length:3.3@4", choice, QWEN).accepted_by_depth(4)[-1] == pytest.approx(2.3)
    assert find_acceptance("accepted:2.3@4", choice, QWEN).accepted_by_depth(4)[-1] == pytest.approx(2.3)


def test_lengths_are_those_that_engines_report_and_the_source_says_what_was_understood() -> None:
    """vLLM's mean acceptance length and SGLang's accept length count the bonus token."""
    curve = find_acceptance("length:2.4@3", find_drafter("mtp", QWEN), QWEN)
    assert curve.first_acceptance + curve.first_acceptance**2 + curve.first_acceptance**3 == pytest.approx(1.4)
    assert "1.40 accepted drafts per round, 0.66 per token" in curve.source.detail


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "length:2.4",
            "length:2.4 needs the draft depth at which it was measured: length:2.4@3 for drafts of 3",
        ),
        ("accepted:1.4", "accepted:1.4 needs the draft depth"),
        ("length:0.5@3", "at depth 3 a round has 1 to 4 tokens, counted with the bonus token"),
        ("accepted:3.5@3", "at depth 3 a round has 0 to 3 tokens, counted without the bonus token"),
        ("length:2@65", "the depth after @ must lie in 1..64"),
    ],
)
def test_lengths_that_cannot_be_meant_are_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(AcceptanceError, match=re.escape(message)):
        find_acceptance(text, find_drafter("mtp", QWEN), QWEN)


@pytest.mark.parametrize(
    "text", ["1.2", "-0.1", "0.5,0.6", "nan", "abc", "", "length:9@4", "length:x", "0.8,,0.6", "length:2@100000000"]
)
def test_bad_acceptance(text: str) -> None:
    with pytest.raises(AcceptanceError):
        find_acceptance(text, find_drafter("mtp", QWEN), QWEN)
