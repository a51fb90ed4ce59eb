"""Prompts through attention: the path that an engine takes, what it costs, and that the price says where it is from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specmargin.architecture.precision import BF16
from specmargin.architecture.types import LatentAttention, LinearAttention
from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.catalog.prices import find_prices, scaled_prices
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.kernels.prompts import (
    PromptPath,
    fits_selection,
    projected_context,
    prompt_terms,
)
from specmargin.prices.model import PriceModel
from specmargin.prices.work import Module, module_work
from specmargin.step import FloatArray, Step

BLACKWELL = PromptPath(engine="vllm", architecture="sm_100", fp8_cache=False, ranks=8)
HOPPER = replace(BLACKWELL, architecture="sm_90")


def _module(model: str) -> Module:
    module = Module.of(bundled_model(model).groups[-1].layer)
    assert module is not None
    return module


def _latent(model: str) -> LatentAttention:
    attention = _module(model).attention
    assert isinstance(attention, LatentAttention)
    return attention


def _prices(gpu: str, engine: str = "vllm", source: str = "laws") -> PriceModel:
    return find_prices(source, bundled_device(gpu), engine, RooflineForm.PER_COMPONENT)


def _seconds(prices: PriceModel, model: str, step: Step, gpus: int = 8) -> FloatArray:
    works = module_work(_module(model), step, layout=Layout(gpus=gpus), kv=BF16)
    return np.asarray(sum((part.seconds for part in prices.price(works)), start=np.zeros(())))


def test_a_prompt_is_computed_in_the_heads_own_dimensions() -> None:
    """DeepSeek V3: keys of 192 and values of 128 dimensions per head, 16 heads per rank."""
    terms = prompt_terms(_latent("deepseek-v3"), Step.prompts(tokens=1000.0), BLACKWELL)
    assert terms.operations == pytest.approx(1000 * 1001 / 2 * 16 * 2 * (192 + 128))


@pytest.mark.parametrize(("fp8_cache", "tokens"), [(False, 512), (True, 128)])
def test_vllm_absorbs_short_prompts_on_hopper(fp8_cache: bool, tokens: int) -> None:
    """vLLM 0.24's rows name the decode kernel up to these lengths, on Hopper alone; it has 2 × 512 + 64 dimensions."""
    attention, pairs = _latent("deepseek-v3"), tokens * (tokens + 1) / 2
    path = replace(HOPPER, fp8_cache=fp8_cache)
    absorbed = prompt_terms(attention, Step.prompts(tokens=float(tokens)), path)
    assert absorbed.operations == pytest.approx(pairs * 16 * 2 * (2 * 512 + 64))
    longer, elsewhere = Step.prompts(tokens=tokens + 1.0), replace(path, architecture="sm_100")
    assert prompt_terms(attention, longer, path).operations < absorbed.operations
    assert prompt_terms(attention, longer, path) == prompt_terms(attention, longer, elsewhere)


def test_every_piece_of_a_prompt_projects_its_context_again() -> None:
    attention = _latent("deepseek-v3")
    piece = Step.prompts(count=2.0, tokens=2048.0, context=8192.0)
    assert projected_context(attention, piece, BLACKWELL) == 2 * 8192
    assert projected_context(attention, Step.prompts(tokens=2048.0), BLACKWELL) == 0
    sglang = replace(BLACKWELL, engine="sglang")
    assert projected_context(attention, Step.prompts(tokens=2048.0, context=8191.0), sglang) == 0
    assert projected_context(attention, Step.prompts(tokens=2048.0, context=8192.0), sglang) == 8192


def test_the_projection_of_the_context_is_paid_for() -> None:
    """16k tokens in pieces of 2k project 8 · 7 / 2 · 2k = 56k tokens more than in one piece."""
    prices = _prices("b200")
    pieces = Step.prompts(tokens=np.full(8, 2048.0), context=2048.0 * np.arange(8))
    whole = float(_seconds(prices, "deepseek-v3", Step.prompts(tokens=16384.0)))
    inputs, outputs = 512, 16 * (128 + 128)
    extra = 2.0 * 57344 * inputs * outputs / bundled_device("b200").rate(BF16.arithmetic)
    assert _seconds(prices, "deepseek-v3", pieces).sum() > whole + extra


def test_dsa_is_dense_while_the_longest_prompt_fits_into_the_selection() -> None:
    attention = _latent("deepseek-v3.2")
    fits, beyond = Step.prompts(tokens=2048.0), Step.prompts(tokens=2049.0)
    assert fits_selection(attention, fits, BLACKWELL)
    assert not fits_selection(attention, fits, replace(BLACKWELL, dense_selection=False))
    assert not fits_selection(attention, fits.joined(beyond), BLACKWELL)
    dense = prompt_terms(attention, fits, BLACKWELL)
    assert dense.units == 0
    assert dense.operations < prompt_terms(attention, fits, replace(BLACKWELL, dense_selection=False)).operations
    both = Step.prompts(tokens=np.array([2048.0, 2049.0]))
    seconds = _seconds(_prices("b200"), "deepseek-v3.2", both)
    assert seconds[1] > 1.2 * seconds[0]


def test_sparse_kernels_compute_whole_tiles_of_heads() -> None:
    """16 heads per rank cost as much as 64 on Hopper and 128 on Blackwell, with vLLM and SGLang."""
    attention, step = _latent("deepseek-v3.2"), Step.prompts(tokens=8192.0)
    own = prompt_terms(attention, step, replace(BLACKWELL, engine="trtllm")).operations
    assert prompt_terms(attention, step, HOPPER).operations == pytest.approx(4.0 * own)
    assert prompt_terms(attention, step, BLACKWELL).operations == pytest.approx(8.0 * own)


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "qwen3.6-35b-a3b"])
@pytest.mark.parametrize("gpu", ["h200", "b200", "rtx-pro-6000"])
def test_a_prompt_costs_more_with_tokens_and_with_context(model: str, gpu: str) -> None:
    """Beyond vLLM's absorbed lengths, where a longer prompt may take the cheaper path."""
    prices = _prices(gpu)
    tokens = 1024.0 * 2.0 ** np.arange(5)
    assert np.all(np.diff(_seconds(prices, model, Step.prompts(tokens=tokens), gpus=2)) > 0)
    context = 8192.0 * np.arange(1, 6)
    assert np.all(np.diff(_seconds(prices, model, Step.prompts(tokens=2048.0, context=context), gpus=2)) >= 0)


def test_delta_net_prompts_are_measured_not_datasheet() -> None:
    layers = [group.layer for group in bundled_model("qwen3.6-35b-a3b").groups]
    module = next(m for layer in layers if (m := Module.of(layer)) and isinstance(m.attention, LinearAttention))
    *_, attention = module_work(module, Step.prompts(tokens=4096.0), layout=Layout(gpus=1), kv=BF16)
    (price,) = _prices("h200").price([attention])
    assert "vllm 0.24" in price.source.detail
    (datasheet,) = _prices("h200", source="datasheet").price([attention])
    assert float(price.seconds) > float(datasheet.seconds)


def test_an_unmeasured_gpu_scales_the_laws_of_prompts() -> None:
    prices = scaled_prices(bundled_device("h20"), "vllm")
    assert prices is not None
    *_, attention = module_work(_module("deepseek-v3"), Step.prompts(tokens=8192.0), layout=Layout(gpus=8), kv=BF16)
    (price,) = prices.price([attention])
    assert "scaled to h20" in price.source.detail
