"""The adaptive post's grid: Qwen3.6-35B-A3B on a B200, no speculation, MTP and DFlash at every fixed depth.

Its assumptions, as far as known: decode only, mean context 512 (1 token in, 1024 out), datasheet roofline with
one max over the whole step's bytes and FLOPs, experts drawn with replacement, recurrent state read in bf16, never
written and computing nothing, no traffic of logits, one position a draft pass, draft heads without a KV cache, an MTP
head without its fusion layer (535,822,336 dense parameters), a DFlash head of 982,515,712 parameters and block 16.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specmargin.acceptance.survival import Survival
from specmargin.architecture.precision import BF16
from specmargin.architecture.types import Architecture, DraftHead, Layer, LayerGroup, LinearAttention, total_parameters
from specmargin.catalog.drafters import bundled_acceptance, find_drafter
from specmargin.catalog.lookup import bundled_model, find_device
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.modes import RooflineForm
from specmargin.prices.drafters import Drafter
from specmargin.prices.roofline import Roofline
from specmargin.prices.work import Scope
from specmargin.routing.profile import WITH_REPLACEMENT
from specmargin.sources import published
from specmargin.step import FloatArray
from tests.data import read_published

CONCURRENCY = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
TOLERANCE = 0.04

# A part of the grid, so that the test also runs where the file is absent (committed tokens a second).
QUOTED = {
    ("mtp", 0): [1394.1, 2075.5, 2789.0, 3488.3, 4292.2, 5561.3, 8157.1, 14096.1, 25788.1, 45169.2, 72388.0, 103603.5],
    ("mtp", 1): [
        1617.8,
        2262.9,
        2925.1,
        3679.6,
        4843.6,
        7187.2,
        12411.8,
        23686.3,
        44107.5,
        77560.6,
        123630.5,
        174562.1,
    ],
    ("mtp", 4): [
        1434.1,
        1950.6,
        2585.9,
        3604.0,
        5695.5,
        10305.8,
        19524.2,
        37638.2,
        70370.6,
        125349.7,
        196811.3,
        210817.5,
    ],
    ("mtp", 8): [
        1121.3,
        1559.6,
        2215.4,
        3475.8,
        6197.2,
        11700.9,
        22073.3,
        41888.7,
        78840.7,
        138017.2,
        146112.5,
        146981.7,
    ],
    ("dflash", 3): [
        1657.5,
        2197.7,
        2819.0,
        3759.1,
        5652.3,
        9711.4,
        17722.4,
        31648.5,
        51675.6,
        75704.1,
        98583.2,
        113036.8,
    ],
    ("dflash", 15): [
        1140.8,
        1519.9,
        2286.2,
        4043.8,
        7891.4,
        15241.2,
        28301.0,
        50046.5,
        79016.7,
        79820.6,
        80037.1,
        80178.8,
    ],
}
# Percent of rounds with exactly 0, 1, 2 … accepted tokens, all SPEED-Bench categories.
HISTOGRAM = {
    "mtp": [22.11, 19.54, 13.91, 9.54, 7.0, 5.31, 4.04, 3.01, 2.25, 1.84, 1.36, 1.09, 0.94, 0.7, 0.55, 0.46, 6.34],
}


def _state_as_in_the_post(layer: Layer) -> Layer:
    if not isinstance(layer.attention, LinearAttention):
        return layer
    return replace(layer, attention=replace(layer.attention, state_precision=BF16, flops_per_position=0.0))


def _target() -> Architecture:
    model = bundled_model("qwen3.6-35b-a3b")
    groups = tuple(LayerGroup(layer=_state_as_in_the_post(g.layer), count=g.count) for g in model.groups)
    return replace(model, groups=groups)


def _head(kind: str, target: Architecture) -> DraftHead:
    head = find_drafter(kind, target).drafter.runs
    assert isinstance(head, DraftHead)
    groups = tuple(LayerGroup(layer=replace(group.layer, attention=None), count=group.count) for group in head.groups)
    return replace(head, groups=groups, fusion=() if kind == "mtp" else head.fusion)


def _survival(histogram: list[float]) -> Survival:
    share = np.asarray(histogram) / np.sum(histogram)
    curve = np.maximum(1.0 - np.cumsum(share)[:-1], 0.0)
    return Survival(by_depth=np.append(curve, 0.0), source=published("SPEED-Bench histogram"))


def grid_scenario(kind: str, histogram: list[float]) -> Scenario:
    target, device = _target(), find_device("b200")
    head = _head(kind, target)
    return Scenario(
        architecture=target,
        device=device,
        prices=Roofline(device=device, form=RooflineForm.WHOLE_STEP),
        routing=WITH_REPLACEMENT,
        drafter=Drafter(name=kind, runs=head, source=head.source),
        survival=_survival(histogram),
        context=512,
        scope=Scope(sampling=False, state_writes=False, draft_catch_up=False),
    )


def _goodput(kind: str, histogram: list[float], max_depth: int) -> FloatArray:
    return Pricer(grid_scenario(kind, histogram)).grid(CONCURRENCY, max_depth).goodput


def test_drafters_are_those_of_the_post() -> None:
    target = _target()
    mtp, dflash = _head("mtp", target), _head("dflash", target)
    dense = total_parameters(mtp.groups[0].layer.projections) + mtp.lm_head.parameters
    assert dense == 535_822_336
    block = mtp.groups[0].layer.experts
    assert block is not None
    assert total_parameters(block.expert) == 3_145_728
    layers = sum(g.count * total_parameters(g.layer.projections + g.layer.dense) for g in dflash.groups)
    assert layers + total_parameters(dflash.fusion) + dflash.lm_head.parameters == 982_515_712
    assert dflash.block == 16


@pytest.mark.parametrize("depth", [0, 1, 4, 8])
def test_quoted_mtp_rows(depth: int) -> None:
    goodput = _goodput("mtp", HISTOGRAM["mtp"], 8)[:, depth]
    np.testing.assert_allclose(goodput, QUOTED["mtp", depth], rtol=TOLERANCE)


def test_quoted_dflash_rows() -> None:
    """The histogram is recovered from the bundled DFlash curve, which was computed from it."""
    curve = bundled_acceptance("dflash").by_depth
    histogram = [100 * (1 - curve[0]), *(-100 * np.diff(curve)), 100 * curve[-1]]
    goodput = _goodput("dflash", histogram, 16)
    for depth in (3, 15):
        np.testing.assert_allclose(goodput[:, depth], QUOTED["dflash", depth], rtol=TOLERANCE)


def test_every_cell_of_the_published_grid() -> None:
    grid = read_published("drafter-grid.json")
    assert grid["conc"] == CONCURRENCY
    acceptance = read_published("acceptance-by-dataset.json")
    worst = 0.0
    for kind, deepest in (("mtp", 8), ("dflash", 16)):
        goodput = _goodput(kind, acceptance[kind]["datasets"]["speedbench/all"]["hist"], deepest)
        cells = grid["drafters"][kind]
        rows = {0: cells["nospec"]["goodput"]} | {row["gamma"]: row["goodput"] for row in cells["fixed"]}
        assert set(rows) == set(range(deepest + 1))
        for depth, quoted in rows.items():
            np.testing.assert_allclose(goodput[:, depth], quoted, rtol=TOLERANCE, err_msg=f"{kind} depth {depth}")
            worst = max(worst, float(np.abs(goodput[:, depth] / quoted - 1).max()))
    assert worst > 0.001  # not a comparison with itself
