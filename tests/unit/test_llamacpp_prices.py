"""llama.cpp: each matrix by the kernel that its source chooses, with the time of every launch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.architecture.types import DraftHead
from specmargin.catalog.llamacpp import llamacpp_prices
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.errors import HardwareError, ScenarioError
from specmargin.modes import RooflineForm
from specmargin.prices.llamacpp.backends import Backend, backend_named
from specmargin.prices.llamacpp.formats import format_work
from specmargin.prices.llamacpp.model import LlamaCppPrices
from specmargin.prices.llamacpp.switches import columns_by_launch, vector_limit
from specmargin.prices.roofline import Roofline
from specmargin.step import Step
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.command_line import payload, run


def pricer(model: str, gpu: str, weights: str | None, **given: object) -> Pricer:
    request = {"model": model, "gpu": gpu, "engine": "llamacpp", "context": 512, "drafter": "ngram"} | given
    return Pricer(scenario_of(read_request(PlanRequest, request | ({"weights": weights} if weights else {})))[1])


def tokens_per_second(model: str, gpu: str, weights: str | None) -> float:
    return 1.0 / float(pricer(model, gpu, weights).grid([1], 1).verify_seconds[0, 0])


@pytest.mark.parametrize(
    ("model", "gpu", "weights", "published", "within"),
    [
        ("gpt-oss-20b", "rtx-3090", None, 186.3, 0.2),  # llama.cpp pull request 15631
        ("qwen3-30b-a3b", "rtx-4090", "q4_0", 205.9, 0.2),  # the same, 4,096 tokens
        ("gpt-oss-20b", "m2-ultra", None, 133.3, 0.2),  # 19390
        ("qwen3-0.6b", "m2-ultra", "q4_0", 326.0, 0.25),  # the same: launches are nearly all of it
        ("llama-3.1-8b", "rx-7900-xtx", "q4_k_m", 105.8, 0.2),  # 26284
    ],
)
def test_plain_decoding_as_llama_bench_has_it(
    model: str, gpu: str, weights: str | None, published: float, within: float
) -> None:
    assert tokens_per_second(model, gpu, weights) == pytest.approx(published, rel=within)


def test_a_small_mixture_on_a_mac_is_far_from_its_bandwidth() -> None:
    """Qwen3-30B-A3B in Q4_K_M on an M4 Max: people report 80 to 130 tokens per second, a roofline 267."""
    assert 75.0 < tokens_per_second("qwen3-30b-a3b", "m4-max", "q4_k_m") < 130.0


def test_the_kernel_of_a_matrix_is_chosen_by_generation_and_format() -> None:
    """llama.cpp, ggml-cuda/mmvq.cu and ggml-metal-ops.cpp, August 2026."""
    dense = {
        ("sm_86", "q4_k"): 8,
        ("sm_89", "q4_k"): 7,
        ("sm_120", "q4_k"): 5,
        ("sm_120", "q8_0"): 8,
        ("sm_121", "q4_k"): 8,
        ("gfx942", "q4_k"): 3,
    }
    for (generation, block), limit in dense.items():
        backend = Backend.HIP if generation.startswith("gfx") else Backend.CUDA
        assert vector_limit(backend, generation, block, experts=False) == limit
    experts = {("sm_86", "mxfp4"): 7, ("sm_89", "mxfp4"): 8, ("gfx1100", "q4_k"): 4, ("gfx1201", "q8_0"): 7}
    for (generation, block), limit in experts.items():
        backend = Backend.HIP if generation.startswith("gfx") else Backend.CUDA
        assert vector_limit(backend, generation, block, experts=True) == limit
    assert vector_limit(Backend.METAL, "apple9", "q4_k", experts=True) == 31
    assert [columns_by_launch(Backend.METAL, "q8_0", n) for n in range(1, 9)] == [1, 2, 3, 4, 5, 3, 4, 4]
    assert [columns_by_launch(Backend.METAL, "q4_k", n) for n in range(1, 5)] == [1, 1, 1, 1.4]


def test_positions_of_a_dense_model_as_published() -> None:
    """RTX 3090, IQ3_XXS of an 8B model, without logits: 143.5, 242.7, 367.5 and 527.2 tokens per second for 1, 2, 4
    and 8 positions (llama.cpp pull request 8215)."""
    published = np.array([1, 2, 4, 8]) / np.array([143.46, 242.70, 367.51, 527.16])
    verify = pricer("llama-3.1-8b", "rtx-3090", "iq3_xxs").grid([1], 7).verify_seconds[0][[0, 1, 3, 7]]
    assert verify / verify[0] == pytest.approx(published / published[0], rel=0.15)


def test_matrix_kernels_pay_for_whole_tiles() -> None:
    """M2 Ultra, gpt-oss-20b: 8 positions take 25.7 ms, 16 take 47.3 and 32 take 55.8 (llama.cpp pull request 19390)."""
    verify = pricer("gpt-oss-20b", "m2-ultra", None).grid([1], 31).verify_seconds[0]
    assert 1.2 < verify[15] / verify[7] < 2.2
    assert verify[31] / verify[15] < 1.6


def test_metal_reads_an_expert_for_every_pair_and_cuda_once() -> None:
    def growth(gpu: str) -> float:
        prices = pricer("qwen3-30b-a3b", gpu, "q8_0", routing="uniform")
        steps = [Step.uniform(batch=np.array([n]), depth=np.zeros(1), context=np.array([64.0])) for n in (8.0, 1.0)]
        lines = [prices.verify(step) for step in steps]
        eight, one = (
            next(float(line.memory_seconds[0]) for line in price.components if line.component == "routed experts")
            for price in lines
        )
        return eight / one

    assert growth("m2-ultra") == pytest.approx(8.0)
    assert growth("rtx-3090") == pytest.approx(51.6 / 8 / 0.9, rel=0.02)  # distinct of 128, 8 tokens of 8 experts


@given(
    block=st.sampled_from(["q4_0", "q4_k", "q6_k", "q8_0", "iq3_xxs", "q2_k", "mxfp4", "bf16"]),
    gpu=st.sampled_from(["rtx-3090", "rtx-4090", "rtx-5090", "rx-7900-xtx", "m4-max", "strix-halo", "arc-pro-b60"]),
)
def test_a_step_never_falls_with_positions_up_to_the_switch(block: str, gpu: str) -> None:
    device = find_device(gpu)
    prices = llamacpp_prices(device, backend_named(None, device))
    limit = vector_limit(prices.backend, device.architecture, block, experts=False)
    positions = np.arange(1.0, limit + 1.0)
    seconds = prices._blocks(block, 1e9, positions).seconds
    # Metal multiplies K-quants position by position up to three, and serves several from four on.
    assert prices.backend is Backend.METAL or (np.diff(seconds) > 0.0).all()
    floor = 1e9 * 0.25 / device.bandwidth_bytes_per_second
    assert (seconds > floor).all()
    assert format_work(block).column > 0.0


def test_a_drafter_is_stored_in_the_targets_file_type() -> None:
    given = {"drafter": "eagle", "gpu": "rtx-3090", "model": "qwen3-8b", "engine": "llamacpp", "weights": "q4_k_m"}
    own = scenario_of(read_request(PlanRequest, given))[1].drafter.runs
    stated = scenario_of(read_request(PlanRequest, given | {"draft_weights": "bf16"}))[1].drafter.runs
    other = scenario_of(read_request(PlanRequest, given | {"engine": "vllm"}))[1].drafter.runs
    assert isinstance(own, DraftHead) and isinstance(stated, DraftHead) and isinstance(other, DraftHead)
    assert own.groups[0].layer.projections[0].precision.name == "q4_k_m"
    assert stated.groups[0].layer.projections[0].precision.name == "bf16"
    assert other.groups[0].layer.projections[0].precision.name == "bf16"


def test_a_draft_model_reads_the_verified_run_in_a_pass_of_its_own() -> None:
    """llama.cpp, common/speculative.cpp: `process` decodes the verified batch without logits, then `draft` runs."""
    prices = pricer("qwen3-8b", "rtx-3090", "q4_k_m", drafter="model:qwen3-0.6b")
    draft = prices.grid([1], 4).draft_seconds[0]
    one = draft[2] - draft[1]  # a pass of one position
    assert draft[1] > 1.7 * one
    ledger = prices.draft_ledger([1], [3])
    assert ledger is not None
    assert float(ledger.total_seconds[0]) == pytest.approx(float(draft[3]), rel=1e-6)


def test_gpt_oss_is_read_as_its_gguf_file() -> None:
    """ggml-org/gpt-oss-20b-GGUF: MXFP4 experts, the rest in Q8_0, 11.27 GiB."""
    scenario = pricer("gpt-oss-20b", "rtx-3090", None).scenario
    assert scenario.architecture.weight_precisions[0] == "mxfp4_moe"
    assert scenario.architecture.lm_head.precision.name == "q8_0"


def test_a_backend_is_the_devices_default_or_named() -> None:
    device = find_device("rtx-4090")
    assert backend_named(None, device) is Backend.CUDA
    assert backend_named("vulkan", device) is Backend.VULKAN
    assert backend_named(None, find_device("m4-max")) is Backend.METAL
    assert backend_named(None, find_device("strix-halo")) is Backend.HIP
    with pytest.raises(HardwareError, match=r"--backend metal: .* with cuda or vulkan"):
        backend_named("metal", device)
    with pytest.raises(ScenarioError, match="--backend is an option of"):
        pricer("qwen3-8b", "rtx-4090", None, engine="vllm", backend="cuda")


def test_other_prices_are_not_changed() -> None:
    device = find_device("rtx-5090")
    assert isinstance(find_prices(None, device, "llamacpp", RooflineForm.PER_COMPONENT), LlamaCppPrices)
    assert isinstance(find_prices("datasheet", device, "llamacpp", RooflineForm.PER_COMPONENT), Roofline)
    assert find_prices(None, device, "llamacpp", RooflineForm.WHOLE_STEP).name == "datasheet"
    assert not isinstance(find_prices(None, device, "vllm", RooflineForm.PER_COMPONENT), LlamaCppPrices)


def test_a_backend_is_priced_or_refused() -> None:
    asked = ("price", "qwen3-30b-a3b", "--gpu", "rtx-4090", "--weights", "q4_k_m", "--engine", "llamacpp")
    cuda, vulkan = (payload(*asked, "--backend", name)["total_seconds"] for name in ("cuda", "vulkan"))
    assert cuda != vulkan
    assert "leave one of them out" in run(*asked, "--backend", "vulkan", "--prices", "datasheet", code=2).err
