"""Prices of GPUs that nobody measured: which GPU stands for them, what scales, and what the output says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import find_prices, law_book, measured_devices
from specmargin.errors import CatalogError
from specmargin.modes import RooflineForm
from specmargin.prices.kernels.law import Terms
from specmargin.prices.kernels.scaled import nearest_device, scaled_book
from specmargin.sources import SourceKind
from specmargin.step import Step
from tests.scenarios import pricer

PER_COMPONENT = RooflineForm.PER_COMPONENT


@pytest.mark.parametrize(
    ("gpu", "measured"),
    [("h20", {"h100", "h200"}), ("mi300x", {"h200"}), ("mi355x", {"b200", "gb200"}), ("rtx-5090", {"rtx-pro-6000"}),
     ("rtx-4090", {"l40s"})],
)  # fmt: skip
def test_the_nearest_gpu_of_its_class(gpu: str, measured: set[str]) -> None:
    nearest = nearest_device(find_device(gpu), measured_devices())
    assert nearest is not None
    assert nearest.name in measured


def test_twice_the_bandwidth_halves_reading_and_nothing_else() -> None:
    h200 = find_device("h200")
    double = replace(h200, name="double", bandwidth_bytes_per_second=2.0 * h200.bandwidth_bytes_per_second)
    book = law_book(h200)
    assert book is not None
    before, after = (each.gemm("vllm", "bf16") for each in (book, scaled_book(book, h200, double)))
    assert before is not None
    assert after is not None
    reading, computing = (
        Terms(bytes=np.array(1e9), operations=np.zeros(())),
        Terms(bytes=np.zeros(()), operations=np.array(1e13)),
    )
    fixed = before.law.fixed_seconds
    assert after.law.seconds(reading) - fixed == pytest.approx((before.law.seconds(reading) - fixed) / 2.0)
    assert after.law.seconds(computing) == pytest.approx(before.law.seconds(computing))


def test_an_unmeasured_gpu_is_priced_by_scaled_laws_and_says_so() -> None:
    device = find_device("mi300x")
    prices = find_prices(None, device, "vllm", PER_COMPONENT)
    assert prices.name == "scaled"
    step = Step.uniform(batch=8, depth=3, context=1024.0)
    price = pricer("qwen3-30b-a3b", "mi300x", prices=prices).verify(step)
    kinds = {line.source.kind for line in price.components}
    assert SourceKind.SCALED in kinds
    assert any("scaled to mi300x" in str(line.source) for line in price.components)
    datasheet = pricer("qwen3-30b-a3b", "mi300x").verify(step)
    assert price.total_seconds > datasheet.total_seconds


def test_what_can_be_asked() -> None:
    assert find_prices("scaled", find_device("h200"), "vllm", PER_COMPONENT).name == "scaled"  # from another GPU
    assert find_prices("datasheet", find_device("mi300x"), "vllm", PER_COMPONENT).name == "datasheet"
    assert find_prices(None, find_device("rtx-5090"), "llamacpp", PER_COMPONENT).name == "datasheet"
    with pytest.raises(CatalogError, match="use --prices scaled or datasheet"):
        find_prices("laws", find_device("mi300x"), "vllm", PER_COMPONENT)
    far = replace(find_device("m4-max"), bandwidth_bytes_per_second=1e9)
    assert find_prices(None, far, "vllm", PER_COMPONENT).name == "datasheet"
    with pytest.raises(CatalogError, match="no measured GPU is near"):
        find_prices("scaled", far, "vllm", PER_COMPONENT)
