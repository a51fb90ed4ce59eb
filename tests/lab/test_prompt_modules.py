"""Prompts through attention modules: laws are right on models and GPUs that they were not fitted to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lab.fits.prompts import TARGET
from lab.tables.modules import measured_modules
from lab.tables.prompts import prompt_shapes
from lab.validation.prompt_modules import PromptLine, prompt_lines

from specmargin.prices.kernels import store

pytestmark = pytest.mark.skipif(not store.available(), reason="needs the kernel tables")


@pytest.fixture(scope="module")
def lines() -> list[PromptLine]:
    return list(prompt_lines(("h200", "b200")))


def test_laws_beat_the_datasheet_everywhere(lines: list[PromptLine]) -> None:
    for line in lines:
        assert np.median(line.errors["laws"]) < 0.6 * np.median(line.errors["datasheet"]), line.model


@pytest.mark.parametrize(("source", "most"), [("laws", 0.15), ("scaled", 0.2)])
def test_models_and_gpus_left_out(lines: list[PromptLine], source: str, most: float) -> None:
    """`laws`: of other models of the kind. `scaled`: of another GPU."""
    unseen = [line for line in lines if source == "scaled" or not line.fitted]
    assert {line.kind for line in unseen} >= {"dsa", "csa", "hca"}
    assert np.median([np.median(line.errors[source]) for line in unseen]) < most


def test_rows_that_launches_dominate_are_left_out() -> None:
    dsa = next(measured for measured in measured_modules() if measured.table.kind == "dsa")
    parts = list(prompt_shapes("h200_sxm", "vllm", dsa))
    assert all(part.launch_bound for part in parts)
    assert min(part.seconds.min() for part in parts) > 2e-3  # the shortest rows are 1.2 ms, whatever they read


def test_laws_of_mla_were_timed_inside_a_graph() -> None:
    laws = json.loads(TARGET.read_text())["laws"]
    mla = [law for law in laws if law["operation"] == "mla prompts"]
    assert mla
    assert not [law for law in mla if law["evidence"]["note"]]
    assert all(5e-6 < law["fixed_seconds"] < 50e-6 for law in mla)
