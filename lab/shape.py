"""The size of the package: lines, files, the files that a `plan` enters, and the longest functions.

    python -m lab.shape                      this checkout
    python -m lab.shape --against COMMIT     beside another commit

Signs, not goals: fewer is better only where it reads better.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from lab import ROOT
from lab.checkouts import PLAN, checkout, python
from lab.terminal import console, note, parser, run, table

LONG_FUNCTION, LONG_FILE = 70, 400  # lines
_SHOWN = 10
# Runs `plan` and prints the files whose functions or classes run: a file that is only imported does not count.
_PROBE = """
import contextlib, io, json, sys
entered = set()
def seen(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        entered.add(frame.f_code.co_filename)
sys.argv = ["specmargin", *json.loads(sys.argv[1])]
sys.setprofile(seen)
from specmargin.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
sys.setprofile(None)
print(json.dumps(sorted(entered)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    lines_by_package: dict[str, int]
    files: int
    entered: tuple[str, ...]
    long_files: int
    functions: tuple[Function, ...]  # longest first

    @property
    def lines(self) -> int:
        return sum(self.lines_by_package.values())

    @property
    def long_functions(self) -> int:
        return sum(function.lines > LONG_FUNCTION for function in self.functions)


def shape_of(folder: Path) -> Shape:
    source = folder / "src" / "specmargin"
    texts = {file.relative_to(source): file.read_text(encoding="utf-8") for file in sorted(source.rglob("*.py"))}
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        lines[path.parts[0] if len(path.parts) > 1 else "top level"] += len(text.splitlines())
    functions = (function for path, text in texts.items() for function in functions_of(path, text))
    return Shape(
        lines_by_package=dict(lines),
        files=len(texts),
        entered=entered_files(folder),
        long_files=sum(len(text.splitlines()) > LONG_FILE for text in texts.values()),
        functions=tuple(sorted(functions, key=lambda function: -function.lines)),
    )


def entered_files(folder: Path) -> tuple[str, ...]:
    """Files of the package whose functions or classes run during `specmargin plan`, imports included."""
    source = folder / "src" / "specmargin"
    files = [Path(name) for name in json.loads(python(folder, ["-c", _PROBE, json.dumps(PLAN)]))]
    return tuple(str(file.relative_to(source)) for file in files if file.is_relative_to(source))


def functions_of(path: Path, text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(name=f"{path}: {node.name}", lines=(node.end_lineno or node.lineno) - node.lineno + 1)


# --- the report ---


def _show(out: Console, shapes: dict[str, Shape]) -> None:
    shown = table("The package", ("",), tuple(shapes))
    rows: dict[str, Callable[[Shape], int]] = {
        "lines of Python": lambda shape: shape.lines,
        "files": lambda shape: shape.files,
        "files that a plan enters": lambda shape: len(shape.entered),
        f"files over {LONG_FILE} lines": lambda shape: shape.long_files,
        "functions": lambda shape: len(shape.functions),
        f"functions over {LONG_FUNCTION} lines": lambda shape: shape.long_functions,
    }
    for name in sorted({package for shape in shapes.values() for package in shape.lines_by_package}):
        rows[f"lines: {name}"] = partial(_package_lines, name=name)
    for name, value in rows.items():
        shown.add_row(name, *(f"{value(shape):,}" for shape in shapes.values()))
    out.print(shown)


def _package_lines(shape: Shape, *, name: str) -> int:
    return shape.lines_by_package.get(name, 0)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--against", metavar="COMMIT", help="show another commit too")
    options.add_argument("--entered", action="store_true", help="list the files that a plan enters")
    chosen = options.parse_args()
    shapes = {chosen.against: shape_of(checkout(chosen.against))} if chosen.against else {}
    now = shape_of(ROOT)
    out = console()
    _show(out, {**shapes, "now": now})
    note(out, "longest functions: " + ", ".join(f"{f.name} {f.lines}" for f in now.functions[:_SHOWN]))
    if chosen.entered:
        note(out, "a plan enters: " + ", ".join(now.entered))


if __name__ == "__main__":
    run(main)
