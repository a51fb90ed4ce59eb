"""The study of the controller's numbers: what it varies, and one number on one replay."""

from __future__ import annotations

import numpy as np
import pytest
from lab.studies import sensitivity
from lab.studies.sensitivity import NAMES, Change, Scenes, changes, scaled

from specmargin.policies.kernel.tuning import Tuning


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(tmp_path_factory.mktemp("sensitivity"))


def test_every_number_can_be_halved_and_doubled() -> None:
    for name in NAMES:
        value = getattr(Tuning(), name)
        assert value != 0
        for factor in sensitivity.FACTORS:
            other = scaled(name, factor)
            assert getattr(other, name) == pytest.approx(value * factor)
            assert {one for one in NAMES if getattr(other, one) != getattr(Tuning(), one)} == {name}


def test_one_number(scenes: Scenes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that a replay uses moves it; one that it does not use changes nothing, and its cells are empty."""
    monkeypatch.setattr(sensitivity, "SWING_CYCLES", 2)
    found = changes({"swing": scenes.swing}, ["probe_cost", "guard_rest"], seeds=2)
    assert found["probe_cost", "swing", 0.5].is_used
    assert not found["guard_rest", "swing", 2.0].is_used
    printed = capsys.readouterr().out
    assert "| `probe_cost` | 0.005 |" in printed
    assert "| `guard_rest` | 200 |  |  |" in printed


def test_all_replays_start_near_the_best_fixed_depth(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "GATE_LOADS", (4, 64))
    monkeypatch.setattr(sensitivity, "SWING_CYCLES", 4)
    for name, play in scenes.by_name.items():
        logs = play(Tuning(), 0)
        assert np.isfinite(logs).all(), name
        assert np.exp(logs.mean()) > 0.9, name


def test_a_change_has_the_error_of_its_seeds() -> None:
    change = Change(by_seed=np.array([0.01, 0.02, 0.03]))
    assert str(change) == "+2.00 ± 0.58"
    assert str(Change(by_seed=np.zeros(3))) == ""
