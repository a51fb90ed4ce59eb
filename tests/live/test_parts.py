"""The check of a release against the vLLM that is installed: what it finds in the files is there when they are run."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from typing import Any

import pytest

from specmargin.live.parts import Part, Use, check_installed, parts_list

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
