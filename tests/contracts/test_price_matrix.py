"""A fixed sample of models × GPUs × engines × precisions: no absurd price. `make test-matrix` checks all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests import price_matrix
from tests.price_matrix import BATCHES, Cell, Priced, faults, priced, ratio_faults, sample

_PARTS = 4
# Open faults of the prices: kernels of these formats on these GPUs are scaled, or measured on other shapes. One that is
# mended must leave this list, and no other may join it.
KNOWN = {
    ("glm-4.7-flash fp8-block on rtx-5090 with vllm", "attention projections"),
    ("glm-4.7-flash fp8-block on rtx-5090 with vllm", "shared experts"),
    ("kat-coder-v2.5-dev nvfp4 on rtx-pro-6000 with sglang", "routed experts"),
    ("nemotron-3-super-120b-a12b fp8 on mi355x with sglang", "routed experts"),
    ("qwen3-235b-a22b fp8 on gb200 with sglang", "attention projections"),
}


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_absurd_price(part: int) -> None:
    chosen = sample(160)[part::_PARTS]
    found = {(str(cell), fault.partition(" takes ")[0]) for cell in chosen for fault in faults(cell)}
    assert found == {(cell, component) for cell, component in KNOWN if cell in map(str, chosen)}


def test_the_checks_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(model="qwen3-30b-a3b", gpu="h200", engine="vllm", weights="fp8")
    good = priced(cell)
    assert good is not None
    assert list(faults(cell)) == []
    slow = {component: 3.0 * seconds for component, seconds in good.by_component.items()}
    broken: list[Priced] = [
        replace(good, by_component=slow, total=3.0 * good.total),
        replace(good, total=good.total[::-1]),
        replace(good, one_more=-1e-6 + 0.0 * BATCHES),
    ]
    for wrong in broken:
        monkeypatch.setattr(
            price_matrix, "priced", lambda other, wrong=wrong: wrong if other == cell else priced(other)
        )
        assert list(faults(cell))


def test_ratios_to_the_datasheet_are_compared_between_models(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ("qwen3-30b-a3b", "qwen3.6-35b-a3b", "qwen3-235b-a22b", "glm-4.5-air", "deepseek-v3")
    chosen = [Cell(model=model, gpu="h200", engine="vllm", weights="fp8-block") for model in models]
    assert list(ratio_faults(chosen)) == []

    def slowed(cell: Cell, prices: str | None = None) -> Priced | None:
        price = priced(cell, prices)
        if price is None or prices is not None or cell.model != "deepseek-v3":
            return price
        return replace(price, by_component={c: 20.0 * np.asarray(s) for c, s in price.by_component.items()})

    monkeypatch.setattr(price_matrix, "priced", slowed)
    assert {cell.model for cell, _ in ratio_faults(chosen)} == {"deepseek-v3"}
