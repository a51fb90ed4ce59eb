"""Functions take few parameters: what belongs together is one value, such as a request or a scenario.

Options of a command are fields of its request, from which its parameters are generated. GPU kernels are exempt: they
take plain pointers, sizes and strides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "specmargin"
MOST = 12
EXEMPT = {SOURCE / "measure" / "gpu" / "kernels.py"}

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def parameters(function: Function) -> int:
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return len(named) + (arguments.vararg is not None) + (arguments.kwarg is not None)


def functions(file: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def test_no_function_takes_more_than_twelve_parameters() -> None:
    too_many = [
        f"{file.relative_to(SOURCE)}:{function.lineno} takes {parameters(function)}"
        for file in sorted(set(SOURCE.rglob("*.py")) - EXEMPT)
        for function in functions(file)
        if parameters(function) > MOST
    ]
    assert not too_many


def test_every_kind_of_parameter_is_counted() -> None:
    tree = ast.parse("def f(a, /, b, *c, d=1, **e): ...\nasync def g(a): ...\nh = lambda a, *, b: 0")
    assert [parameters(node) for node in ast.walk(tree) if isinstance(node, Function)] == [5, 1, 2]
