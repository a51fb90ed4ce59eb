"""The check of a release against the vLLM that is installed: what it finds in the files is there when they are run."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from specmargin.live.parts import Part, Use, check_installed, parts_list
from tests.live.conftest import Result

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch and vLLM, while they are imported


def test_this_release_has_all_of_it() -> None:
    report = check_installed("vllm")
    assert list(map(str, (*report.problems, *report.unneeded))) == []
    assert report.is_tested


@pytest.mark.parametrize("module", sorted({part.module for part in parts_list("vllm").parts}))
def test_the_parts_are_those_of_the_imported_classes(module: str) -> None:
    loaded = import_module(module)
    for part in parts_list("vllm").parts:
        if part.module == module:
            _check(getattr(loaded, part.owner) if part.owner else loaded, part)


def _check(owner: Any, part: Part) -> None:
    if part.use in (Use.CALLS, Use.OVERRIDES, Use.REPLACES):
        names = list(inspect.signature(getattr(owner, part.name)).parameters.values())
        known = {one.name for one in names} | {one.name for one in names if one.kind is one.VAR_KEYWORD}
        wanted = {name.removesuffix("=") for name in part.parameters if name != "..."}
        assert wanted <= known, part.title
    elif part.use is Use.NAMES:
        assert hasattr(owner, part.name), part.title
    elif part.use in (Use.READS, Use.WRITES) and dataclasses.is_dataclass(owner):
        fields = {field.name for field in dataclasses.fields(owner)}
        assert part.name in fields or hasattr(owner, part.name), part.title


# --- engines of releases that lack a part ---

Run = Callable[..., Result]


def test_depths_are_chosen_without_the_gate(run_engine: Run, policy: Path) -> None:
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, without="gate")
    assert "Specmargin: no gate: " in result.log
    assert "mode adaptive; depth by learned acceptance; drafts are verified in full" in result.log
    assert result.metric("specmargin_steps_total") > 0
    assert result.metric("specmargin_faults_total") == 0


def test_without_depth_control_it_only_observes(run_engine: Run, policy: Path) -> None:
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, without="depth")
    assert "this is 9.9.0, " in result.log
    assert "and the plug-in only observes" in result.log
    assert "mode observe; no policy, so it only observes" in result.log
    assert result.metric("specmargin_steps_total") > 0
    assert result.metric("specmargin_faults_total") == 0


def test_without_what_it_observes_by_it_is_inert(run_engine: Run, policy: Path) -> None:
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, without="observe")
    assert "EngineArgs.create_engine_config(...) is not there; the plug-in does nothing" in result.log
    assert "The server starts with the plug-in disabled." in result.log
    assert result.metric("specmargin_enabled") == 0
