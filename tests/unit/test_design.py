"""Designs: variants keep what they should, bad input is refused in a sentence, and the verb shows what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specmargin.architecture.types import total_parameters
from specmargin.architecture.variants import ExpertShape, reshaped, shape_of
from specmargin.catalog.lookup import find_model, model_names
from specmargin.catalog.routing_profiles import assumed_routing
from specmargin.decisions.design import STEP, TOLERANCE, Space, design_row, explore
from specmargin.decisions.plan import make_plan
from specmargin.decisions.setting import Setting
from specmargin.errors import ArchitectureError, ScenarioError
from specmargin.modes import Hold
from specmargin.routing.profile import ModelRouting
from tests.command_line import payload, run
from tests.scenarios import pricer

QWEN = shape_of(find_model("qwen3.6-35b-a3b"))
ACTIVE = Space(
    hold=Hold.ACTIVE, experts=[64, 128, 256, 512], experts_per_token=[2, 4, 8, 16], shared_shares=[0.0, 0.25, 0.5]
)
TOTAL = Space(hold=Hold.TOTAL, experts=[64, 128, 256, 512], experts_per_token=range(1, 21))
DESIGN = ["design", "qwen3.6-35b-a3b", "--gpu", "h200"]


def test_the_shape_of_a_known_model() -> None:
    assert ExpertShape(experts=256, experts_per_token=8, width=512, shared_width=512) == QWEN
    assert (QWEN.active_width, QWEN.total_width) == (9 * 512, 257 * 512)
    assert QWEN.shared_share == pytest.approx(1 / 9)


def test_a_model_in_its_own_shape_is_itself() -> None:
    models = [model for name in model_names() if (model := find_model(name)).is_moe]
    latent = {model.name for model in models if model.expert_groups[0][1].expert[0].inputs != model.hidden}
    assert latent == {"nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b", "kimi-k3"}
    for model in models:
        if model.name not in latent:
            assert reshaped(model, shape_of(model)) == model


@pytest.mark.parametrize("space", [ACTIVE, TOTAL], ids=["active", "total"])
@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b", "qwen3-30b-a3b", "gpt-oss-120b", "nemotron-3-nano-30b-a3b"])
def test_variants_keep_their_parameters(name: str, space: Space) -> None:
    """Counted on the matrices themselves, not on the widths that the variants were chosen by."""
    model = find_model(name)
    shapes = space.shapes(shape_of(model))
    assert len(shapes) >= 7
    active, total = _expert_parameters(name, shape_of(model))
    for shape in shapes:
        assert shape.width % STEP == shape.shared_width % STEP == 0
        found_active, found_total = _expert_parameters(name, shape)
        assert found_active == pytest.approx(active, rel=TOLERANCE)
        if space.hold is Hold.TOTAL:
            assert found_total == pytest.approx(total, rel=TOLERANCE)


def _expert_parameters(name: str, shape: ExpertShape) -> tuple[int, int]:
    """Active and total, of one layer; without router and gates."""
    _, block = reshaped(find_model(name), shape).expert_groups[0]
    one = total_parameters(block.expert)
    shared = total_parameters(matrix for matrix in block.always_on if matrix.outputs > 1)
    return block.pool.experts_per_token * one + shared, block.pool.experts * one + shared


def test_only_the_experts_change() -> None:
    model = find_model("qwen3-30b-a3b")
    changed = reshaped(model, ExpertShape(experts=64, experts_per_token=4, width=768, shared_width=3072))
    for before, after in zip(model.groups, changed.groups, strict=True):
        assert replace(before.layer, experts=None) == replace(after.layer, experts=None)
    _, block = changed.expert_groups[0]
    assert block.router[0].outputs == block.pool.experts == 64
    assert [matrix.name for matrix in block.always_on] == [
        "shared_mlp.experts.gate_up_proj",
        "shared_mlp.experts.down_proj",
    ]
    assert changed.draft_head == model.draft_head


def test_equal_totals_tie_the_shared_share_to_k_over_n() -> None:
    """Fewer of the same experts a token leave more to the shared ones: both cannot be chosen."""
    shares = {s.experts_per_token: s.shared_share for s in TOTAL.shapes(QWEN) if s.experts == 256}
    assert list(shares) == [3, 4, 5, 6, 7, 8, 9]
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert shares[8] == QWEN.shared_share
    assert shares[9] == 0


def test_the_base_row_is_the_plan() -> None:
    priced = pricer(drafter="mtp")
    design = explore(priced, ACTIVE, Setting(max_depth=8), batch=32)
    row = make_plan(priced, [32], Setting(max_depth=8)).rows[0]
    assert design.base.depth == row.depth
    assert design.base.speedup == pytest.approx(row.speedup)
    assert design.base.distinct_experts == row.distinct_experts
    goodputs = [variant.goodput_tokens_per_second for variant in design.rows]
    assert goodputs == sorted(goodputs, reverse=True)
    assert (
        design.left_out == ACTIVE.combinations - len(design.rows) == 8
    )  # 16 per token of 0% and 25%: 288 and 216 wide


def test_what_does_not_fit_is_priced_and_said() -> None:
    design = explore(pricer(), ACTIVE, Setting(max_depth=4), batch=32)
    too_large = [row for row in design.rows if not row.fits]
    assert {row.parameters > 55e9 for row in too_large} == {True}
    assert all(row.fits for row in design.fitting)
    assert len(too_large) + len(design.fitting) == len(design.rows)


def test_steps_without_a_graph_are_not_chosen() -> None:
    setting = Setting(max_depth=8, graph_limit=100)
    assert design_row(pricer().scenario, QWEN, setting, batch=32).depth == 2


def test_models_that_cannot_be_reshaped() -> None:
    with pytest.raises(ArchitectureError, match="is dense"):
        shape_of(find_model("llama-3.1-8b"))
    with pytest.raises(ArchitectureError, match="latent space"):
        shape_of(find_model("nemotron-3-super-120b-a12b"))
    model = find_model("qwen3.6-35b-a3b")
    wider = reshaped(model, replace(QWEN, width=1024)).groups[:1] + model.groups[1:]
    with pytest.raises(ArchitectureError, match="different experts"):
        shape_of(replace(model, groups=wider))


def test_the_routing_of_one_model_says_nothing_of_its_variants() -> None:
    curves = assumed_routing()
    own = ModelRouting(own=curves.local(find_model("qwen3.6-35b-a3b").pools[0]), others=curves)
    with pytest.raises(ScenarioError, match="knows the experts of one model"):
        explore(pricer(routing=own), ACTIVE, Setting(max_depth=4), batch=1)


def test_json() -> None:
    result = payload(*DESIGN, "--batch", "32", "--experts", "64,512", "--experts-per-token", "8", "--shared", "0,0.5")
    assert result["schema"] == "specmargin.design/1"
    assert result["hold"] == "active"
    assert result["prices"] == "laws"
    assert "quality of the variants is not predicted" in result["note"]
    keys = {"experts", "experts_per_token", "expert_width", "shared_width", "shared_share", "parameters"}
    keys |= {"active_parameters", "depth", "goodput_tokens_per_second", "no_spec_tokens_per_second", "speedup"}
    keys |= {"distinct_experts", "fits", "goodput_over_base"}
    assert [set(row) for row in (result["base"], result["best"], *result["rows"])] == [keys] * 6
    assert result["best"] == result["rows"][0]
    assert result["sources"]["routing"].startswith("assumed: scaled to the experts of every variant")
    assert result["weakest_source"].startswith("assumed")


@pytest.mark.parametrize("arguments", [[], ["--hold", "total", "--batch", "128"]], ids=["active", "total"])
def test_the_table_fits_100_columns_and_says_what_it_does_not_know(arguments: list[str]) -> None:
    shown = run(*DESIGN, *arguments).out
    assert [line for line in shown.splitlines() if len(line) > 100] == []
    assert "quality of the variants is not predicted" in " ".join(shown.split())
    assert "sources" in shown


def test_the_figure(tmp_path: Path) -> None:
    for name, arguments in (("active.svg", []), ("total.svg", ["--hold", "total"])):
        file = tmp_path / name
        run(*DESIGN, "--experts", "128,256", *arguments, "--plot", str(file))
        drawn = file.read_text()
        assert "experts per token" in drawn
        assert ("50% shared" in drawn) == (not arguments)
    again = run(*DESIGN, "--plot", str(tmp_path / "active.svg"), code=2)
    assert "give --force" in again.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["design", "llama-3.1-8b", "--gpu", "h200"], "is dense"),
        ([*DESIGN, "--experts", "1"], "no variant of these experts keeps active parameters"),
        ([*DESIGN, "--experts", "0"], "--experts must lie in"),
        ([*DESIGN, "--experts", "1-500"], "at most 64 values"),
        ([*DESIGN, "--experts-per-token", "x"], "is neither a number"),
        ([*DESIGN, "--shared", "some"], "is not a list of shares"),
        ([*DESIGN, "--shared", "1"], "--shared must lie in 0..1"),
        ([*DESIGN, "--shared", "nan"], "--shared.0 must be a finite number"),
        ([*DESIGN, "--hold", "total", "--shared", "0"], "leave out --shared"),
        ([*DESIGN, "--hold", "both"], "--hold"),
        ([*DESIGN, "--batch", "0"], "--batch must be at least 1, got 0"),
        ([*DESIGN, "--depth", "99"], "--depth must be at most 64, got 99"),
        ([*DESIGN, "--drafter", "all"], "name one drafter"),
        ([*DESIGN, "--plot", "map.pdf"], "must end in"),
        ([*DESIGN, "--gpus", "8", "--parallel", "ep", "--experts", "60"], "60 experts do not divide over 8 GPUs"),
        (["design", "deepseek-v3", "--gpu", "h100"], "does not fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], complaint: str) -> None:
    done = run(*arguments, code=2)
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
