"""SGLang's own Python files, read from the fetched wheel (`scripts/fetch_sglang.py`) and run beside ours."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def source(relative: str) -> Path:
    """A file of the fetched release, such as `srt/speculative/adaptive_spec_params.py`."""
    path: Path = _load("fetch_sglang", ROOT / "scripts" / "fetch_sglang.py").package() / relative
    if not path.is_file():
        _absent(f"SGLang's {relative} is not there")
    return path


def load(relative: str, stubs: dict[str, ModuleType] | None = None) -> ModuleType:
    """That file as a module of its own; stubs replace what it imports, for as long as it is loaded."""
    path = source(relative)
    replaced = {name: sys.modules.get(name) for name in stubs or {}}
    sys.modules.update(stubs or {})
    try:
        return _load(f"sglang_source_{path.stem}", path)
    finally:
        for name, module in replaced.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module


def _absent(what: str) -> None:
    """Where CI is set nothing may be missing; on other machines the tests say what they lack."""
    message = f"{what}: run `python scripts/fetch_sglang.py`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
