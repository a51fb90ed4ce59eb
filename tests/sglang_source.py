"""SGLang's own Python files, read from the fetched wheels (`scripts/fetch_engines.py`) and run beside ours."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.engine_files import absent, package

NEWEST = "0.5.23"


def source(relative: str, version: str = NEWEST) -> Path:
    """A file of a fetched release, such as `srt/speculative/adaptive_spec_params.py`."""
    path = package("sglang", version) / relative
    if not path.is_file():
        absent(f"SGLang's {relative} ({version}) is not there")
    return path


def load(relative: str, stubs: dict[str, ModuleType] | None = None, *, version: str = NEWEST) -> ModuleType:
    """That file as a module of its own. What it imports of SGLang and PyTorch is empty, or what `stubs` has."""
    path = source(relative, version)
    replacing = {**_empty_imports(path), **(stubs or {})}
    replaced = {name: sys.modules.get(name) for name in replacing}
    sys.modules.update(replacing)
    try:
        return _load(f"sglang_source_{path.stem}_{version.replace('.', '_')}", path)
    finally:
        for name, module in replaced.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _empty_imports(path: Path) -> dict[str, ModuleType]:
    """Modules of SGLang and PyTorch that the file imports, with functions that do nothing."""
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        wanted = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
        for module in wanted:
            if module.split(".")[0] in ("sglang", "torch"):
                made = modules.setdefault(module, ModuleType(module))
                for name in names:
                    setattr(made, name, lambda *_, **__: None)
    return modules


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module
