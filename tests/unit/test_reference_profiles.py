"""The bundled profiles of the reference MoE: found by name and by model, small, and equal to what its bank gives."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.catalog.drafters import acceptance_profile, find_acceptance, find_drafter
from specmargin.catalog.lookup import find_model
from specmargin.catalog.routing_profiles import captured_routing, find_routing
from specmargin.cli.main import run
from specmargin.errors import AcceptanceError, RoutingError
from specmargin.routing.profile import ModelRouting
from specmargin.routing.schema import CategoryFile, decoded
from specmargin.step import Step
from tests.data import REFERENCE_BANK

NAME = "reference-moe"
TARGET = find_model(NAME)
ROUNDS = {"cpp": 5_874, "prose": 1_734, "python": 9_256}
CATALOG = files("specmargin.catalog")


def _bundled(kind: str) -> dict[str, Any]:
    text = (CATALOG / kind / f"{NAME}.{kind}.json").read_text(encoding="utf-8")
    assert len(text) < 300_000
    values: dict[str, Any] = json.loads(text)
    return values


def _rebuilt(kind: str, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """The profile as `specmargin profile` writes it, with the same name and source."""
    out = folder / f"{NAME}.{kind}.json"
    assert run("profile", [kind, *arguments, "-o", str(out)]) == 0
    values: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return values


def test_acceptance_is_what_the_command_makes(tmp_path: Path) -> None:
    bundled = _bundled("acceptance")
    rebuilt = _rebuilt("acceptance", tmp_path, [str(REFERENCE_BANK), "--source", bundled["source"]])
    for category, values in bundled.pop("categories").items():
        other = rebuilt["categories"][category]
        assert values["rounds"] == other["rounds"]
        assert values["survival"] == pytest.approx(other["survival"], abs=1e-9)
        assert values["survival_stderr"] == pytest.approx(other["survival_stderr"], abs=1e-9)
    # The calibrator is fitted by iteration: its last digits may differ between versions of SciPy.
    assert bundled.pop("calibrator")["weights"] == pytest.approx(
        rebuilt.pop("calibrator")["weights"], rel=1e-2, abs=1e-3
    )
    assert np.array(bundled.pop("sample")) == pytest.approx(np.array(rebuilt.pop("sample")), abs=1e-3)
    assert bundled == {key: value for key, value in rebuilt.items() if key != "categories"}


def test_routing_is_what_the_command_makes(tmp_path: Path) -> None:
    bundled = _bundled("routing")
    rebuilt = _rebuilt("routing", tmp_path, [str(REFERENCE_BANK), "--model", NAME, "--source", bundled["provenance"]])
    for name, values in bundled.pop("categories").items():
        one, other = CategoryFile(**values), CategoryFile(**rebuilt["categories"][name])
        assert (one.rounds, one.positions, one.requests) == (other.rounds, other.positions, other.requests)
        popularity = [decoded(file.popularity, "u2", (6, 64)) for file in (one, other)]
        assert popularity[0] == pytest.approx(popularity[1], abs=1e-4)
        runs = [decoded(file.hit_of_runs, "u1", (8, 6, 64)) for file in (one, other)]
        assert runs[0] == pytest.approx(runs[1], abs=1e-2)  # 8 bits
        assert one.depth.mean == pytest.approx(other.depth.mean, rel=1e-6)
        assert one.width.mean == pytest.approx(other.width.mean, rel=1e-6)
    assert bundled == {key: value for key, value in rebuilt.items() if key != "categories"}


def test_they_say_what_they_were_captured_of() -> None:
    routing, acceptance = captured_routing(NAME), acceptance_profile(NAME)
    assert {name: category.rounds for name, category in routing.categories.items()} == ROUNDS
    counts = {name: category.rounds for name, category in acceptance.categories.items()}
    assert counts == {**ROUNDS, "all": sum(ROUNDS.values())}
    assert acceptance.calibrator is not None
    for text in (routing.provenance, acceptance.source):
        assert "temperature 0.6" in text
        assert "8 drafts" in text


def test_the_model_finds_its_own_routing() -> None:
    profile = find_routing(None, TARGET)
    assert isinstance(profile, ModelRouting)
    assert profile.own.identified
    assert profile.source.kind == "measured"
    run = Step.ragged(depths=np.array([8]), contexts=0)
    distinct = {
        name: float(find_routing(f"{NAME}:{name}", TARGET).mean(TARGET.pools[0], run).mean()) for name in ROUNDS
    }
    assert distinct == pytest.approx({"cpp": 19.95, "prose": 20.68, "python": 21.06}, abs=0.05)
    independent = Step.ragged(depths=np.zeros(9, dtype=np.int64), contexts=0)
    assert float(profile.mean(TARGET.pools[0], independent).mean()) > max(distinct.values())


def test_routing_of_another_shape_and_unknown_categories_are_refused() -> None:
    with pytest.raises(RoutingError, match="64 experts, 4 per token; this one has 128"):
        find_routing(NAME, find_model("qwen3-30b-a3b"))
    with pytest.raises(RoutingError, match="no category 'rust'; it has: cpp, prose, python"):
        find_routing(f"{NAME}:rust", TARGET)


def test_acceptance_is_the_default_of_its_own_pair_and_an_assumption_elsewhere() -> None:
    """Mean accepted of 8: 2.96 (cpp), 1.64 (python), 1.11 (prose), 2.04 of all rounds."""
    own = find_drafter("model:reference-draft", TARGET)
    survival = find_acceptance(None, own, TARGET)
    assert survival.source.kind == "measured"
    assert survival.accepted_by_depth(8)[-1] == pytest.approx(2.04, abs=0.01)
    for category, accepted in {"cpp": 2.957, "python": 1.636, "prose": 1.110}.items():
        curve = find_acceptance(f"{NAME}:{category}", own, TARGET)
        assert curve.accepted_by_depth(8)[-1] == pytest.approx(accepted, abs=0.001)
    other = find_model("qwen3-30b-a3b")
    assert find_acceptance(NAME, find_drafter("eagle", other), other).source.kind == "assumed"
    assert find_acceptance(None, find_drafter("model:qwen3-0.6b", other), other).first_acceptance == 0.7
    with pytest.raises(AcceptanceError, match="no category 'rust'"):
        find_acceptance(f"{NAME}:rust", own, TARGET)
