"""Captures: reading, counting, and clear errors for malformed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from specmargin.architecture.types import ExpertPool
from specmargin.errors import RoutingError
from specmargin.routing.capture import open_captures
from specmargin.routing.capture_profile import build_profile
from specmargin.routing.counts import count
from specmargin.routing.schema import as_text, parse_routing
from specmargin.step import Step
from tests.command_line import payload, run

POOL = ExpertPool(experts=8, experts_per_token=2)


def bank(folder: Path, *, rounds: int = 40, length: int = 4, seed: int = 0, **columns: Any) -> Path:
    """A bank of two layers, two categories taking turns, twenty requests."""
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = rounds * length
    experts = np.array([[generator.permutation(8)[:2] for _ in range(2)] for _ in range(rows)], dtype=np.uint8)
    np.save(folder / "routing.npy", experts)
    block = np.repeat(np.arange(rounds), length)
    meta: dict[str, Any] = {
        "category": np.where(block % 2 == 0, "code", "prose"),
        "prompt_idx": (block % 20).astype(np.int32),
        "turn": np.zeros(rows, dtype=np.int16),
        "routing_idx": np.arange(rows),
        "routing_block_idx": block.astype(np.int32),
        "position": np.tile(np.arange(length), rounds).astype(np.int16),
    }
    pl.DataFrame(meta | columns).write_parquet(folder / "routing_meta.parquet")
    return folder


def test_a_bank_is_counted_exactly(tmp_path: Path) -> None:
    """Against a plain loop over the same array."""
    folder = bank(tmp_path / "bank")
    counts = count(open_captures([str(folder)]), experts=8, longest_run=16)
    experts = np.load(folder / "routing.npy").reshape(40, 4, 2, 2)
    assert set(counts) == {"code", "prose"}
    for offset, name in enumerate(("code", "prose")):
        own = experts[offset::2]
        category = counts[name]
        assert category.rounds == 20
        assert category.positions == 80
        for length in range(4):
            for layer in range(2):
                sets = [set(run[: length + 1, layer].ravel().tolist()) for run in own]
                assert category.distinct_by_length_layer[length, layer] == sum(map(len, sets))
                hits = [sum(e in one for one in sets) for e in range(8)]
                assert category.hits_by_layer_expert_length[layer, :, length].tolist() == hits
        shared = [len(set(run[i, 0].tolist()) & set(run[i + 1, 0].tolist())) for run in own for i in range(3)]
        assert category.shared_by_lag_layer[1, 0] == sum(shared)
        assert category.pairs_by_lag[1] == len(shared)


def test_ragged_rounds_count_where_they_reach(tmp_path: Path) -> None:
    folder = bank(tmp_path / "bank", rounds=30, length=4)
    meta = pl.read_parquet(folder / "routing_meta.parquet")
    keep = ~((meta["routing_block_idx"] % 3 == 0) & (meta["position"] >= 2))  # every third round has two positions
    np.save(folder / "routing.npy", np.load(folder / "routing.npy")[keep.to_numpy()])
    meta.filter(keep).with_columns(routing_idx=pl.int_range(pl.len())).write_parquet(folder / "routing_meta.parquet")
    counts = count(open_captures([str(folder)]), experts=8, longest_run=16)
    assert counts["code"].runs_by_length.tolist() == [15, 15, 10, 10]


def test_runs_are_counted_to_a_length_that_every_category_has(tmp_path: Path) -> None:
    """An engine whose depth varies may go four deep in code and two in prose; and captures come in parts."""
    deep = bank(tmp_path / "routing-1" / "part-000001", rounds=30, length=4, category=["code"] * 120)
    bank(deep.with_name("part-000002"), rounds=30, length=2, category=["prose"] * 60)
    counts = count(open_captures([str(tmp_path)]), experts=8, longest_run=16)
    assert counts["code"].runs_by_length.tolist() == counts["prose"].runs_by_length.tolist() == [30, 30]
    shallow = bank(tmp_path / "other", rounds=30, length=1)
    with pytest.raises(RoutingError, match="no runs of two positions"):
        count(open_captures([str(shallow)]), experts=8, longest_run=16)


def test_returned_arrays_are_cut_into_runs(tmp_path: Path) -> None:
    """One array per request, as vLLM and SGLang return them; categories by name or by folder."""
    generator = np.random.default_rng(0)
    (tmp_path / "prose").mkdir()
    for name in ("a", "b"):
        np.save(tmp_path / "prose" / f"{name}.npy", generator.integers(0, 300, (50, 3, 2), dtype=np.uint16))
    np.save(tmp_path / "one.npy", generator.integers(0, 300, (40, 3, 2), dtype=np.uint16))
    captures = open_captures([str(tmp_path / "prose"), f"code={tmp_path / 'one.npy'}"])
    counts = count(captures, experts=300, longest_run=16)
    assert counts["prose"].rounds == 8  # 16 + 16 + 16 + 2, twice
    assert counts["prose"].runs_by_length.tolist() == [8.0, 8.0] + [6.0] * 14
    assert counts["code"].rounds == 3
    assert len(counts["prose"].sums_by_request) == 2


def test_pieces_do_not_change_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that lie across the edge of two pieces are whole."""
    folder = bank(tmp_path / "bank", rounds=60)
    whole = count(open_captures([str(folder)]), experts=8, longest_run=4)
    monkeypatch.setattr("specmargin.routing.capture._PIECE_ROWS", 30)
    parts = count(open_captures([str(folder)]), experts=8, longest_run=4)
    for name in whole:
        assert (whole[name].hits_by_layer_expert_length == parts[name].hits_by_layer_expert_length).all()
        assert whole[name].rounds == parts[name].rounds


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    counts = count(open_captures([str(bank(tmp_path / "bank", rounds=400))]), experts=8, longest_run=4)
    written = build_profile(counts, name="mine", pool=POOL, provenance="test")
    read = parse_routing(as_text(written), "mine")
    hit = counts["code"].hits_by_layer_expert_length / counts["code"].runs_by_length
    for length in range(1, 5):
        distinct = read.category("code").mean_by_layer(Step.uniform(batch=1, depth=length - 1))
        assert distinct == pytest.approx(hit[..., length - 1].sum(axis=1), rel=2e-3)


def test_a_large_profile_is_well_under_a_megabyte() -> None:
    """48 layers of 256 experts, runs of 16, three categories."""
    generator = np.random.default_rng(0)
    from specmargin.routing.counts import empty_counts  # noqa: PLC0415

    counts = {}
    for name in ("code", "prose", "chat"):
        category = empty_counts(16, 48, 256)
        popularity = generator.gamma(1.0, 1.0, (48, 256, 1))
        hit = 1.0 - np.exp(-0.03 * popularity * np.arange(1, 17) ** 0.75)
        category.hits_by_layer_expert_length = generator.binomial(20_000, hit)
        category.runs_by_length += 20_000
        category.positions = 320_000
        category.chosen_by_layer_expert = category.hits_by_layer_expert_length[..., 0] * 16
        category.distinct_by_length_layer += category.hits_by_layer_expert_length.sum(axis=1).T
        category.distinct_squared_by_length_layer += category.distinct_by_length_layer**2 / 20_000 * 1.01
        category.pairs_by_lag += 1.0
        category.sums_by_request = {0: np.ones((2, 16)), 1: np.ones((2, 16))}
        category.reservoir = generator.integers(0, 256, (64, 16, 48, 8)).astype(np.uint8)
        category.full_length_runs = 64
        counts[name] = category
    text = as_text(
        build_profile(counts, name="large", pool=ExpertPool(experts=256, experts_per_token=8), provenance="test")
    )
    assert len(text) < 900_000
    assert len(text) / 3 < 300_000


# --- refusals ---


def test_wrong_captures_are_refused_by_name(tmp_path: Path) -> None:
    good = bank(tmp_path / "good")
    cases: list[tuple[str, str]] = []

    def case(name: str, message: str) -> Path:
        folder = bank(tmp_path / name)
        cases.append((str(folder), message))
        return folder

    folder = case("shorter", "has 160 rows for the 159 positions")
    np.save(folder / "routing.npy", np.load(folder / "routing.npy")[:-1])
    folder = case("beyond", "expert id 9 is out of range")
    array = np.load(folder / "routing.npy")
    array[7, 1, 0] = 9
    np.save(folder / "routing.npy", array)
    folder = case("cut", "not a complete .npy file")
    (folder / "routing.npy").write_bytes((folder / "routing.npy").read_bytes()[:200])
    folder = case("signed", "expert ids are int64")
    np.save(folder / "routing.npy", np.load(folder / "routing.npy").astype(np.int64))
    folder = case("flat", "must be one array of")
    np.save(folder / "routing.npy", np.load(folder / "routing.npy").reshape(-1))
    folder = case("alone", "routing_meta.parquet is missing")
    (folder / "routing_meta.parquet").unlink()
    folder = case("broken", "not a complete Parquet file")
    (folder / "routing_meta.parquet").write_bytes(b"PAR1")
    folder = case("column", "lacks the column 'position'")
    pl.read_parquet(folder / "routing_meta.parquet").drop("position").write_parquet(folder / "routing_meta.parquet")
    cases.append((str(bank(tmp_path / "twice", routing_idx=np.zeros(160, dtype=np.int64))), "duplicates"))
    cases.append((str(bank(tmp_path / "order", position=np.zeros(160, dtype=np.int16))), "must be sorted by round"))
    cases.append((str(bank(tmp_path / "empty", category=[None] * 160)), "rows have no 'category'"))
    cases.append((str(tmp_path / "nowhere.npy"), "no such file"))
    cases.append((f"code={good}", "the categories of a bank are in its"))
    for spec, message in cases:
        with pytest.raises(RoutingError, match=message):
            count(open_captures([spec]), experts=8, longest_run=4)


def test_captures_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((20, 3, 2), dtype=np.uint8))
    np.save(tmp_path / "b.npy", np.zeros((20, 4, 2), dtype=np.uint8))
    with pytest.raises(RoutingError, match="captures of one profile must be of one model"):
        open_captures([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other/1"}, "schema"),
        ({"extra": 1}, "extra"),
        ({"experts": 0}, "experts"),
        ({"layers": 3}, "cannot be decoded"),
    ],
)
def test_wrong_profiles_are_refused_by_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    counts = count(open_captures([str(bank(tmp_path / "bank"))]), experts=8, longest_run=4)
    text = as_text(build_profile(counts, name="mine", pool=POOL, provenance="test"))
    with pytest.raises(RoutingError, match=message):
        parse_routing(json.dumps(json.loads(text) | change), "mine.routing.json")


# --- the command line ---


def test_profile_plan_and_coverage_go_together(tmp_path: Path) -> None:
    folder, target = bank(tmp_path / "bank", rounds=400), tmp_path / "mine.routing.json"
    result = payload("profile", "routing", str(folder), "--experts", "8", "-o", str(target))
    assert result["schema"] == "specmargin.profile-routing/1"
    assert set(result["categories"]) == {"code", "prose"}
    assert target.is_file()
    again = run("profile", "routing", str(folder), "--experts", "8", "-o", str(target), code=2)
    assert "give --force" in again.err
    assert "give the captured model" in run("profile", "routing", str(folder), code=2).err
    wrong = run("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--routing", str(target), code=2)
    assert "is of a model with 8 experts, 2 per token" in wrong.err
    model = run("profile", "routing", str(folder), "--model", "qwen3.6-35b-a3b", code=2)
    assert "has 2 layers with 2 experts per token" in model.err


def test_coverage_shows_skew_depth_and_amdahl(tmp_path: Path) -> None:
    figure = tmp_path / "coverage.svg"
    arguments = ("coverage", "qwen3.6-35b-a3b", "--positions", "1,2,16,32", "--gpu", "h100", "--plot", str(figure))
    result = payload(*arguments)
    by_positions = {row["positions"]: row for row in result["positions"]}
    assert by_positions[1]["depth"] == pytest.approx(8.0)
    assert by_positions[16]["depth"] < by_positions[16]["width"] < by_positions[16]["uniform"]
    assert [row["extrapolated"] for row in result["positions"]] == [False, False, False, True]
    split = result["amdahl"]
    assert split["predicted_ratio"] == pytest.approx(
        split["expert_share"] * split["expert_ratio"] + 1 - split["expert_share"]
    )
    assert figure.read_text().startswith("<svg")
    layer = payload("coverage", "qwen3.6-35b-a3b", "--positions", "1,16", "--layer", "3")
    assert layer["positions"][1]["depth"] != pytest.approx(by_positions[16]["depth"])


def test_the_plan_says_what_routing_changes() -> None:
    result = payload("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--batch", "1,4,16")
    for row in result["routing_effect"]:
        assert row["goodput_gain"] > 0.0
        assert row["loss_by_uniform"] >= 0.0
    shown = run("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--batch", "1,4,16", "--explain").out
    assert "compared with uniform routing, the routing profile" in shown
    uniform = payload("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "1", "--routing", "uniform")
    assert uniform["routing_effect"] is None


def test_more_refusals_of_the_command_line(tmp_path: Path) -> None:
    folder = bank(tmp_path / "bank")
    other = run("profile", "routing", str(tmp_path / "wide.npy"), "--experts", "8", code=2)
    assert "no such file" in other.err
    np.save(tmp_path / "wide.npy", np.full((64, 2, 2), 99, dtype=np.uint8))
    wide = run("profile", "routing", str(tmp_path / "wide.npy"), "--experts", "8", code=2)
    assert "expert id 99 is out of range" in wide.err
    assert "has 40 layers" in run("coverage", "deepseek-v3", "--layer", "50", code=2).err
    np.save(tmp_path / "one.npy", np.zeros((1, 2, 2), dtype=np.uint8))
    one = run("profile", "routing", str(tmp_path / "one.npy"), "--experts", "8", code=2)
    assert "no runs of two positions" in one.err
    text = bank(tmp_path / "text", prompt_idx=["a"] * 160)
    assert "must hold whole numbers" in run("profile", "routing", str(text), "--experts", "8", code=2).err
    target = tmp_path / "mine.routing.json"
    run("profile", "routing", str(folder), "--experts", "8", "-o", str(target))
    assert (
        "no category has a weight"
        in run("coverage", "qwen3.6-35b-a3b", "--routing", f"{target}:code=0,prose=0", code=2).err
    )


def test_sampled_runs_have_the_full_length_of_most_rounds(tmp_path: Path) -> None:
    """A thousand rounds of four and one of eight: the long one does not decide the length of the sampled runs."""
    folder = bank(tmp_path / "bank", rounds=1000)
    experts, meta = np.load(folder / "routing.npy"), pl.read_parquet(folder / "routing_meta.parquet")
    tail = meta.tail(4).with_columns(routing_idx=pl.int_range(4000, 4004), position=pl.int_range(4, 8).cast(pl.Int16))
    pl.concat([meta, tail.select(meta.columns)], how="vertical_relaxed").write_parquet(folder / "routing_meta.parquet")
    np.save(folder / "routing.npy", np.concatenate([experts, experts[-4:]]))
    counts = count(open_captures([str(folder)]), experts=8, longest_run=16)
    assert counts["code"].sampled_runs.shape[0] + counts["prose"].sampled_runs.shape[0] == 1000
