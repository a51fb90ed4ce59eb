"""`plan --decode-only`: rounds without prompts, and what arrives with a request."""

from __future__ import annotations

from typing import Any

import pytest

import specmargin
from specmargin.errors import InputError

LOAD: dict[str, Any] = {"concurrency": 32, "isl": 2000, "osl": 100, "prices": "laws"}


def planned(**options: Any) -> dict[str, Any]:
    return specmargin.plan("qwen3-30b-a3b", gpu="h200", **options).to_dict()


def test_no_prompts_in_rounds() -> None:
    both, decode = planned(**LOAD), planned(decode_only=True, **LOAD)
    for side in ("plain", "speculating"):
        assert decode["service"][side]["prefill_share"] < 0.1 < both["service"][side]["prefill_share"]
        assert decode["service"][side]["tokens_per_second"] > both["service"][side]["tokens_per_second"]
    assert "decode_only" not in both


def test_a_rate_has_no_prefill() -> None:
    decode = planned(decode_only=True, qps=2, isl=2000, osl=100, prices="laws")
    assert decode["load"]["speculating"]["prefill_share"] == 0.0


def test_what_arrives_by_hand() -> None:
    """48 layers of 2 · 4 heads · 128 in bf16 for each token, with room for the next; 50 GB/s on an H200's network."""
    values = planned(decode_only=True, batch="128", context=4000, drafter="ngram", prices="laws")
    arrival = values["decode_only"]
    assert arrival["kv_bytes_per_gpu"] == pytest.approx(48 * 2 * 4 * 128 * 2 * 4000, rel=0.01)
    assert arrival["transfer_seconds"] == pytest.approx(arrival["kv_bytes_per_gpu"] / 50e9)
    assert arrival["drafter_prefill_seconds"] == 0.0
    assert planned(decode_only=True, batch="16", prices="laws")["decode_only"]["drafter_prefill_seconds"] > 0.0


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", '"kv_role": "kv_consumer"'), ("sglang", "--disaggregation-mode decode")]
)
def test_flags(engine: str, flag: str) -> None:
    values = planned(decode_only=True, batch="16", prices="laws", engine=engine)
    assert flag in values["serve"]["command"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"engine": "llamacpp"}, "--decode-only: llama.cpp has no disaggregated serving; leave it out"),
        ({"engine": "sglang", "gpus": 2, "pp": 2}, "--decode-only: SGLang does not draft in pipeline stages"),
        ({**LOAD, "prefix_hit": 0.5}, "--prefix-hit: with --decode-only no prompt is read here; leave it out"),
    ],
)
def test_refusals(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        planned(decode_only=True, **options)
