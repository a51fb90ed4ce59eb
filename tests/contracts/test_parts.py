"""The lists of parts are complete: code of a plug-in that uses an engine's name that is not listed fails here.

What can be seen without running the engine: imports, hooks, subclasses with their methods, and every attribute whose
name is not Specmargin's own, NumPy's, PyTorch's or Python's. An attribute of the engine that shares its name with one
of those is not found by this test.
"""

from __future__ import annotations

import ast
import collections
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specmargin.live.parts import Part, Use, parts_list
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "specmargin"
ENGINES = ("vllm", "sglang")
PYTHON = {
    name
    for owner in (str, list, dict, set, tuple, int, float, collections.deque, Path, logging.Logger)
    for name in dir(owner)
} | {name for module in (np, np.ndarray, json, logging, math, os, shutil, time) for name in dir(module)}
#: Of PyTorch, Polars, Pydantic and the standard library.
OTHERS = {
    *("Tensor", "clamp", "clamp_", "clone", "copy_", "cpu", "cummin", "div_", "fill_", "modules", "mul_", "new_tensor"),
    *("numel", "numpy", "sigmoid", "softmax", "tensor", "zero_"),
    *("all_gather", "distributed"),
    *("DataFrame", "write_parquet", "NDArray"),
    *("model_copy", "model_dump", "model_dump_json", "model_fields"),
    *("__func__", "args", "kwargs", "hexdigest", "sha256", "mkdtemp", "partial", "register", "value", "wraps"),
}


def files(engine: str) -> list[Path]:
    found = sorted((SOURCE / "live" / engine).rglob("*.py"))
    assert found
    return found


def nodes(engine: str) -> Iterator[tuple[Path, ast.AST]]:
    for file in files(engine):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, node


def own_names() -> set[str]:
    """Functions, classes, fields and attributes that Specmargin defines."""
    names: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if getattr(node.value, "id", "") == "self" else set()
    return names


def named(parts: tuple[Part, ...]) -> set[str]:
    return {name for part in parts for name in (part.name, part.owner)}


def _text(call: ast.Call, place: int) -> str | None:
    given = call.args[place] if len(call.args) > place else None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


@pytest.mark.parametrize("engine", ENGINES)
def test_every_import_of_the_engine_is_listed(engine: str) -> None:
    parts = parts_list(engine).parts
    listed = {(part.module, part.owner or part.name) for part in parts}
    modules = {part.module for part in parts}
    imported = [
        (node.module, alias.name)
        for _, node in nodes(engine)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == engine
        for alias in node.names
    ]
    assert imported
    assert [one for one in imported if one not in listed and ".".join(one) not in modules] == []
    plain = [a.name for _, node in nodes(engine) if isinstance(node, ast.Import) for a in node.names]
    assert [name for name in plain if name.split(".")[0] == engine] == []


def test_every_hook_is_listed() -> None:
    hooked = [_text(node, 1) for _, node in nodes("vllm") if isinstance(node, ast.Call) and _called(node) == "around"]
    listed = {part.name for part in parts_list("vllm").parts if part.use is Use.OVERRIDES}
    assert len(hooked) >= 12
    assert set(hooked) <= listed


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_attribute_is_listed(engine: str) -> None:
    known = named(parts_list(engine).parts) | own_names() | PYTHON | OTHERS
    used: dict[str, set[str]] = {}
    for file, node in nodes(engine):
        if isinstance(node, ast.Attribute):
            used.setdefault(node.attr, set()).add(file.name)
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr", "setattr"):
            used.setdefault(_text(node, 1) or "", set()).add(file.name)
    unknown = {name: sorted(where) for name, where in used.items() if name and name not in known}
    assert unknown == {}, "list these in parts.toml, or in OTHERS if they are no engine's"


@pytest.mark.parametrize("engine", ENGINES)
def test_methods_that_pass_on_what_they_are_given_are_listed_so(engine: str) -> None:
    """A subclass's or mixin's method of a listed name: `...` in the list if, and only if, it takes *args."""
    overrides = [part for part in parts_list(engine).parts if part.use is Use.OVERRIDES]
    seen = set()
    for file, node in nodes(engine):
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
                continue
            parts = [part for part in overrides if part.name == method.name]
            assert not parts or any(_agrees(method, part) for part in parts), f"{file.name}: {method.name}"
            seen |= {part.name for part in parts}
    assert len(seen) >= {"vllm": 10, "sglang": 3}[engine]


def _agrees(method: ast.FunctionDef, part: Part) -> bool:
    takes_all = method.args.vararg is not None and method.args.kwarg is not None
    given = [one.arg for one in method.args.args[1:]]
    return takes_all == ("..." in part.parameters) and given == [*part.parameters[: len(given)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_part_is_listed_twice(engine: str) -> None:
    parts = parts_list(engine).parts
    keys = [(part.feature, part.module, part.owner, part.use, part.name) for part in parts]
    assert sorted(key for key, count in collections.Counter(keys).items() if count > 1) == []
