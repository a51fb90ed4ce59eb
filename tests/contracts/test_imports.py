"""The direction of flow, kept by a test: architecture and hardware, prices, routing and acceptance, then decisions."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import LONGEST, ROOT, SLOW

SOURCE = ROOT / "src" / "specmargin"

# Packages in the order of flow. Each may import those before it, unless a narrower rule below says otherwise.
ORDER = (
    "architecture",
    "hardware",
    "routing",
    "acceptance",
    "prices",
    "catalog",
    "decisions",
    "policies",
    "formats",
    "live",
    "measure",
    "simulator",
    "show.figures",
    "answers",
    "validation",
    "verbs",
    "show.explorer",
    "show.site",
    "show",
    "cli",
)
NARROWER = {
    "routing": {"architecture"},
    "acceptance": {"architecture"},
    "prices": {"architecture", "hardware"},
    "decisions": {"architecture", "hardware", "routing", "acceptance", "prices"},
    "policies": {"acceptance", "prices", "decisions"},
    "formats": {"hardware", "decisions"},
    "live": {"acceptance", "policies"},
    "measure": {"architecture", "hardware", "prices"},
    "simulator": {"architecture", "hardware", "routing", "acceptance", "prices", "decisions", "policies"},
    "validation": {
        "architecture",
        "hardware",
        "catalog",
        "routing",
        "acceptance",
        "prices",
        "measure",
        "decisions",
        "formats",
        "simulator",
        "answers",
    },
    "show.figures": set(ORDER[: ORDER.index("show.figures")]) - {"catalog", "formats", "live", "simulator"}
    | {"validation"},
}
#: Verbs that write or serve a page, which shows a plan: they come after the packages of pages.
PAGES = {"verbs/explore.py", "verbs/report.py", "verbs/site.py"}
ALLOWED = {name: NARROWER.get(name, set(ORDER[:index])) for index, name in enumerate(ORDER)}
NOUNS = {
    "caches",
    "compiler",
    "errors",
    "files",
    "limits",
    "modes",
    "phrases",
    "records",
    "releases",
    "schema",
    "sources",
    "step",
    "words",
    "_version",
}


@cache
def _imports(file: Path) -> frozenset[str]:
    """Every module that a file imports, also inside functions and for type checkers alone."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return frozenset(modules)


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(module: str) -> str:
    """The package of the rules that a module belongs to; `show` holds several."""
    first, *rest = module.removeprefix("specmargin").removeprefix(".").split(".")
    nested = f"{first}.{rest[0]}" if rest else first
    return nested if nested in ORDER else first


def _graph() -> dict[str, set[str]]:
    """Modules of Specmargin and those that each imports. Public names in `__init__` are not imports."""
    modules = {_name(file): file for file in _files() if file != SOURCE / "__init__.py"}
    return {name: set(_imports(file) & modules.keys()) - {name} for name, file in modules.items()}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_what_stands_before_them(package: str) -> None:
    wrong = []
    for file in (SOURCE / package.replace(".", "/")).rglob("*.py"):
        if _package(_name(file)) != package:
            continue
        pages = {"show.explorer", "show.site"} if file.relative_to(SOURCE).as_posix() in PAGES else set()
        allowed = NOUNS | {package} | ALLOWED[package] | pages
        for module in _imports(file):
            if not module.startswith("specmargin.") or _package(module) in allowed:
                continue
            wrong.append(f"{file.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_no_import_circle() -> None:
    """Not even a deferred one, or one for type checkers: two modules that need each other are one thought."""
    circle: list[str] = []
    try:
        tuple(TopologicalSorter(_graph()).static_order())
    except CycleError as error:
        circle = error.args[1][::-1]
    assert circle == []


def test_every_package_has_a_rule() -> None:
    packages = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()}
    assert packages == {name.split(".")[0] for name in ALLOWED}


def test_prices_know_nothing_of_routing_or_acceptance() -> None:
    assert "routing" not in ALLOWED["prices"]
    assert "acceptance" not in ALLOWED["prices"]


def test_engines_and_heavy_packages_stay_where_they_belong() -> None:
    """vLLM: live/vllm and measure/vllm. SGLang: live/sglang. torch: live/vllm and measure."""
    wrong = []
    for file in _files():
        path = file.relative_to(SOURCE).as_posix()
        for module in _imports(file):
            top = module.split(".")[0]
            if top == "vllm" and not path.startswith(("live/vllm/", "measure/vllm/")):
                wrong.append(f"{path} imports vllm")
            if top == "sglang" and not path.startswith("live/sglang/"):
                wrong.append(f"{path} imports sglang")
            if top in ("torch", "triton") and not path.startswith(("measure/", "live/vllm/")):
                wrong.append(f"{path} imports {top}")
            if top == "pydantic" and "schema" not in file.name and not path.startswith("verbs/"):
                wrong.append(f"{path} imports pydantic: only schema files and verbs, at the edges, do")
            if top in ("rich", "typer") and not path.startswith(("show/", "cli/")):
                wrong.append(f"{path} imports {top}: answers say what is shown, show/ and cli/ how")
    assert wrong == []


def test_the_package_does_not_import_the_laboratory() -> None:
    wrong = [
        f"{file.relative_to(SOURCE)} imports {module}"
        for file in _files()
        for module in _imports(file)
        if module.split(".")[0] in ("lab", "tests", "scripts")
    ]
    assert wrong == []


def test_the_laboratory_does_not_import_tests() -> None:
    """What both use lies in lab/live."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted((ROOT / "lab").rglob("*.py"))
        for module in _imports(file)
        if module.split(".")[0] == "tests"
    ]
    assert wrong == []


def test_tests_of_the_package_do_not_import_the_laboratory() -> None:
    """But for the stand-in of an engine that live tests and benchmarks share, in lab/live."""
    of_the_laboratory = ("lab/", "published/", "live/")  # evidence, and engines that only the live environment has
    wrong = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = file.relative_to(ROOT / "tests").as_posix()
        modules = {module for module in _imports(file) if module.split(".")[0] == "lab"}
        if not path.startswith(of_the_laboratory):
            wrong += [f"{path} imports {module}" for module in modules if not module.startswith("lab.live")]
    assert wrong == []


def test_files_stay_readable() -> None:
    long = [f"{f.relative_to(SOURCE)}: {n}" for f in _files() if (n := len(f.read_text().splitlines())) > 450]
    assert long == []


def test_files_that_conftest_names_exist() -> None:
    """A file that moved would lose its place in the order, or its mark."""
    assert [name for name in (*LONGEST, *SLOW) if not (ROOT / "tests" / name).is_file()] == []
