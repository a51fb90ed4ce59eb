"""Tokenizers: which models may draft for which, and the draft models that `--drafter all` tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specmargin.answers.request_schema import read_request
from specmargin.catalog.drafters import available_drafters, available_kinds
from specmargin.catalog.lookup import bundled_model, model_names
from specmargin.catalog.tokenizers import draft_models, same_tokenizer, tokenizer_of
from specmargin.errors import CatalogError, ParallelismError
from specmargin.verbs.plan.drafter_plan import drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest


@pytest.mark.parametrize(
    ("target", "draft", "same"),
    [
        ("qwen3-30b-a3b", "qwen3-0.6b", True),
        ("qwen2.5-coder-32b", "qwen2.5-coder-0.5b", True),  # padded differently
        ("qwen3.6-35b-a3b", "qwen3-0.6b", False),
        ("llama-3.1-70b", "llama-3.2-1b", True),
        ("llama-3.1-70b", "qwen3-0.6b", False),
        ("gemma-4-31b", "north-mini-code", False),  # as many tokens, other ones
        ("kimi-k2", "deepseek-v3", False),  # one family of configurations, two tokenizers
        ("hy3", "qwen3-0.6b", False),
    ],
)
def test_same_tokenizer(target: str, draft: str, same: bool) -> None:
    assert same_tokenizer(bundled_model(target), bundled_model(draft)) is same


def test_a_fine_tune_with_added_tokens_cannot_be_told() -> None:
    target = replace(bundled_model("llama-3.1-70b"), vocabulary=128_264)
    assert tokenizer_of(target) is None
    assert same_tokenizer(target, bundled_model("llama-3.2-1b")) is None


def test_draft_models_share_tokenizer_and_vocabulary_and_are_much_smaller() -> None:
    assert draft_models(bundled_model("qwen3-30b-a3b")) == ["qwen3-0.6b"]
    assert draft_models(bundled_model("llama-3.1-70b")) == ["llama-3.2-1b", "llama-3.2-3b"]
    assert draft_models(bundled_model("qwen3.6-35b-a3b")) == []  # the smallest of its tokenizer reads more per token
    for name in model_names():
        target = bundled_model(name)
        for draft in map(bundled_model, draft_models(target)):
            assert same_tokenizer(target, draft)
            assert draft.vocabulary == target.vocabulary
            assert draft.parameters < target.parameters / 4


def test_all_tries_draft_models_and_the_page_only_kinds() -> None:
    target = bundled_model("qwen3-30b-a3b")
    names = [choice.drafter.name for choice in available_drafters(target)]
    assert names == [*available_kinds(target), "model:qwen3-0.6b"]
    assert "model" not in available_kinds(target)


def _drafters(**options: object) -> list[str]:
    asked = {"model": "llama-3.1-70b", "gpu": "h100", "gpus": 2, "batch": 1, "depth": 3, "prices": "laws"}
    return [plan.plan.scenario.drafter.name for plan in drafter_plans(read_request(PlanRequest, asked | options))]


def test_a_list_of_drafters_is_ranked() -> None:
    names = _drafters(drafter="ngram, model:llama-3.2-1b,ngram")
    assert sorted(names) == ["model:llama-3.2-1b", "ngram"]


def test_all_leaves_out_a_draft_model_without_memory_and_a_list_names_it() -> None:
    """Of the 72 GB that an engine may use on each of two H100, the 70B takes 70.6, the drafters 1.2 and 3.2."""
    ranked = _drafters(drafter="all")
    assert "model:llama-3.2-1b" in ranked
    assert "model:llama-3.2-3b" not in ranked
    with pytest.raises(ParallelismError, match="does not fit"):
        _drafters(drafter="ngram,model:llama-3.2-3b")


@pytest.mark.parametrize("drafter", ["all,mtp", "mtp,", ","])
def test_a_list_that_names_no_drafter_is_refused(drafter: str) -> None:
    with pytest.raises(CatalogError, match="`all` is given alone"):
        _drafters(drafter=drafter)
