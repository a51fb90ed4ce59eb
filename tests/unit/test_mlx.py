"""MLX as an engine: its kernels' prices against published figures, its settings, and the memory of Macs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import engine_of, scenarios_of
from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.prices import find_prices
from specmargin.decisions.pricer import Pricer
from specmargin.errors import CatalogError, InputError
from specmargin.formats.mlx import FORMAT
from specmargin.hardware.layout import Layout
from specmargin.modes import RooflineForm
from specmargin.prices.mlx import MlxPrices
from specmargin.step import Step
from tests.command_line import ended, run


def pricer(model: str, gpu: str, weights: str | None = "4bit", **changes: Any) -> Pricer:
    fields = {"model": model, "gpu": gpu, "weights": weights, "engine": "mlx", **changes}
    return Pricer(scenarios_of(ScenarioRequest.model_validate(fields))[0][1])


def seconds(model: str, gpu: str, positions: int = 1, **changes: Any) -> float:
    step = Step.uniform(batch=1, depth=positions - 1, context=200.0)
    return float(pricer(model, gpu, **changes).verify(step).total_seconds)


@pytest.mark.parametrize(
    ("model", "gpu", "published"),
    [  # mlx-lm and mlxcel, 4 bits: github.com/lablup/mlxcel, README.md (commit 0173783)
        ("llama-3.1-8b", "m5-max", 117.0),
        ("llama-3.1-8b", "m1-ultra", 108.0),
        ("qwen3-30b-a3b", "m5-max", 147.0),
        ("qwen3-30b-a3b", "m1-ultra", 84.0),
    ],
)
def test_plain_decoding_is_near_what_is_published(model: str, gpu: str, published: float) -> None:
    assert 1.0 / seconds(model, gpu) == pytest.approx(published, rel=0.25)


def test_two_positions_of_a_fine_grained_mixture_read_nearly_twice_the_experts() -> None:
    """github.com/jundot/omlx/issues/2077: 51 and 112 ms for GLM-5.2 (8 of 256 experts) in mxfp4 on an M3 Ultra.

    The second is oMLX's verify path; of it the price explains what MLX's kernels read, 1.4 of the 2.2 times.
    """
    one, two = (seconds("glm-5.2", "m3-ultra", n, weights="mxfp4", memory_utilization=1.0) for n in (1, 2))
    assert one == pytest.approx(51e-3, rel=0.15)
    assert 1.35 < two / one < 2.3
    dense = [seconds("qwen3-8b", "m3-ultra", n) for n in (1, 2)]
    assert dense[1] / dense[0] < 1.3


def test_older_chips_read_weights_per_position() -> None:
    newer, older = ([seconds("qwen3-8b", gpu, n) for n in (1, 4)] for gpu in ("m3-max", "m2-max"))
    assert older[1] / older[0] > 1.5 * newer[1] / newer[0]
    floating = [seconds("qwen3-8b", "m2-max", n, weights="mxfp4") for n in (1, 4)]
    assert floating[1] / floating[0] < older[1] / older[0]


def test_a_step_never_gets_cheaper_with_positions() -> None:
    for gpu in ("m1", "m2-pro", "m3-ultra", "m4-max", "m5-max", "dgx-spark"):
        times = [seconds("qwen3-30b-a3b", gpu, n, memory_utilization=1.0) for n in range(1, 12)]
        assert all(later > 0.999 * earlier for earlier, later in itertools.pairwise(times)), gpu


def test_a_bare_roofline_stays_available() -> None:
    device, form = find_device("m4-max"), RooflineForm.PER_COMPONENT
    assert isinstance(find_prices(None, device, "mlx", form), MlxPrices)
    assert not isinstance(find_prices("datasheet", device, "mlx", form), MlxPrices)


@pytest.mark.parametrize(
    ("model", "options", "engine"),
    [
        ("qwen3-30b-a3b", "--gpu m4-max --weights 4bit", "mlx"),
        ("mlx-community/Qwen3-30B-A3B-4bit", "--gpu m4-max", "mlx"),
        ("qwen3-30b-a3b", "--gpu m4-max --weights q4_k_m", "llamacpp"),
        ("qwen3-30b-a3b", "--gpu rtx-4090 --weights q4_k_m", "llamacpp"),
        ("qwen3-30b-a3b", "--gpu rtx-4090 --weights int4-g128", "vllm"),
    ],
)
def test_weights_choose_the_engine_that_reads_them(model: str, options: str, engine: str) -> None:
    words = options.split()
    given = dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))
    assert engine_of(ScenarioRequest.model_validate({"model": model, **given})).name == engine


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gpu m4-max --weights q4_k_m --engine mlx", "MLX does not read q4_k_m weights; use --engine llamacpp, or"),
        ("--gpu h200 --weights 8bit --engine vllm", "vLLM does not read mlx-8bit weights; use --engine mlx, or"),
        ("--gpu m4-max --gpus 2 --weights 4bit", "MLX is priced on one device; use --gpus 1"),
        ("--gpu m4-max-512gb", "Apple M4 Max (40-core GPU) has 8 to 128 GB; leave the size out for 128 GB"),
    ],
)
def test_what_mlx_cannot_do_is_one_sentence(options: str, words: str) -> None:
    done = ended("plan", "qwen3-30b-a3b", *options.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err


def test_drafters_that_mlx_lacks() -> None:
    assert "n-gram" in FORMAT.cannot_draft("ngram", False)
    assert "trimmed" in FORMAT.cannot_draft("model", True)
    assert FORMAT.cannot_draft("model", False) == ""
    assert FORMAT.refuses(Layout(gpus=2)) is not None


def test_a_draft_model_is_served_by_mlx_lm() -> None:
    options = ["--gpu", "m4-max", "--weights", "8bit", "--drafter", "model:qwen3-0.6b", "--batch", "1", "--explain"]
    text = run("plan", "qwen3-8b", *options).out
    assert "mlx_lm.server" in text and "--num-draft-tokens" in text and "one request at a time" in text


def test_memory_of_macs_is_what_macos_wires() -> None:
    large, small = find_device("m4-max-64gb"), find_device("M4 Pro 24GB")
    assert large.usable_bytes(0.9) == pytest.approx(48e9)
    assert small.usable_bytes(0.9) == pytest.approx(16e9)
    assert large.usable_bytes(0.95) == pytest.approx(60.8e9)  # iogpu.wired_limit_mb raised
    with pytest.raises(CatalogError, match="8 to 64 GB"):
        find_device("m4-pro-96gb")


def test_mlx_quantises_the_head_with_a_scale_and_a_bias_per_group() -> None:
    model = find_model("mlx-community/Qwen3-8B-4bit")
    assert model.lm_head.precision.bytes_per_parameter == pytest.approx(4.5 / 8)
    with pytest.raises(InputError):
        find_model("mlx-community/Qwen3-8B-7bit")
