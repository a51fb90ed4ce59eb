"""The SGLang plug-in in SGLang's own loader: found, switched off, other releases, nothing heavy imported."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from specmargin.live.sglang.plugin import register
from tests.sglang_engine import PARAMS, sglang


def test_sglang_finds_it_and_replaces_the_class_everywhere() -> None:
    with sglang() as engine:
        own = import_module(PARAMS).AdaptiveSpeculativeParams
        importer = sys.modules["sglang.srt.importer"] = type(sys)("sglang.srt.importer")
        importer.AdaptiveSpeculativeParams = own  # type: ignore[attr-defined]
        engine.load_plugins()
        replaced = import_module(PARAMS).AdaptiveSpeculativeParams
        assert issubclass(replaced, own)
        assert replaced is not own
        assert importer.AdaptiveSpeculativeParams is replaced


def test_a_list_of_other_plug_ins_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "none")
    with sglang() as engine:
        own = import_module(PARAMS).AdaptiveSpeculativeParams
        engine.load_plugins()
        assert import_module(PARAMS).AdaptiveSpeculativeParams is own


@pytest.mark.parametrize("version", ["0.5.20", "0.5.230", "0.6.0", "1.0", "unknown"])
def test_the_number_of_a_release_decides_nothing(version: str, caplog: pytest.LogCaptureFixture) -> None:
    with sglang(version) as engine:
        own = import_module(PARAMS).AdaptiveSpeculativeParams
        engine.load_plugins()
        assert issubclass(import_module(PARAMS).AdaptiveSpeculativeParams, own)
    assert not caplog.records


def test_without_sglang_registering_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    register()
    assert "SGLang runs without the plug-in" in caplog.text


def test_importing_the_entry_point_loads_nothing_heavy() -> None:
    import subprocess  # noqa: PLC0415

    code = (
        "import sys, specmargin.live.sglang.plugin; "
        "print([name for name in ('numba', 'prometheus_client', 'sglang') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
