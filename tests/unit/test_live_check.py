"""`specmargin live-check`: the release, its features, and an exit code; nothing of an engine is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import specmargin
from specmargin.live.parts import Part, Use, parts_list
from tests.command_line import payload, run


def unpacked(folder: Path, engine: str = "sglang", release: str = "9.9.0") -> Path:
    """Sources with every part of the list, and nothing else."""
    listed = parts_list(engine)
    modules: dict[str, dict[str, list[str]]] = {}
    for part in listed.parts:
        modules.setdefault(part.module, {}).setdefault(part.owner, []).append(_defined(part))
    for module, owners in modules.items():
        text = "".join(owners.pop("", []))
        for owner, members in owners.items():
            text += f"class {owner}:\n{''.join(members)}    pass\n"
        path = folder.joinpath(*module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").write_text(text)
    (folder / listed.package / "version.py").write_text(f'__version__ = "{release}"\n')
    return folder


def _defined(part: Part) -> str:
    indent, first = ("    ", ["self"]) if part.owner else ("", [])
    if part.use in (Use.ADDS, Use.EXTENDS):
        return ""
    if part.use in (Use.READS, Use.WRITES, Use.NAMES):
        return f"{indent}{part.name} = 0\n"
    given = [name for name in part.parameters if name != "..."]
    named = ["*", *(name[:-1] for name in given if name.endswith("="))]
    every = [*first, *(name for name in given if not name.endswith("=")), *(named if len(named) > 1 else [])]
    decorator = f"{indent}@classmethod\n" if part.use is Use.REPLACES else ""
    return f"{decorator}{indent}def {part.name}({', '.join(every)}): ...\n"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_release_with_every_part_runs_tested_or_not(tmp_path: Path, engine: str) -> None:
    unpacked(tmp_path, engine)
    out = run("live-check", "--path", str(tmp_path)).out
    title, count = parts_list(engine).title, len(parts_list(engine).parts)
    text = " ".join(out.split())
    assert text.startswith(f"{title} 9.9.0 (not tested; tested: ")
    assert f"every feature runs, all {count} parts found." in text
    assert [line.split()[0] for line in out.splitlines() if " yes " in line] == [
        "depth" if feature == "depth" else str(feature) for feature in parts_list(engine).features
    ]


def test_a_lost_feature_is_exit_code_1_and_named(tmp_path: Path) -> None:
    file = unpacked(tmp_path, release="0.5.23") / "sglang" / "srt" / "speculative" / "adaptive_spec_params"
    text = (file / "__init__.py").read_text()
    (file / "__init__.py").write_text(text.replace("def cuda_graph_bs_for_step(self, step)", "def f(self)"))
    out = " ".join(run("live-check", "--path", str(tmp_path / "sglang"), code=1).out.split())
    assert out.startswith("SGLang 0.5.23 (tested): without depth control; ")
    assert "depth control: AdaptiveSpeculativeParams.cuda_graph_bs_for_step(step, ...) is not there" in out
    assert "depth control: SGLang drafts by its own table, and the plug-in only observes" in out
    values = json.loads(run("live-check", "--path", str(tmp_path), "--json", code=1).out)
    (engine,) = values["engines"]
    assert (engine["engine"], engine["release"], engine["tested"]) == ("sglang", "0.5.23", True)
    features = {row["feature"]: row for row in engine["features"]}
    assert {name: row["runs"] for name, row in features.items()} == {
        "observe": True,
        "schedule": True,
        "depth": False,
        "metrics": True,
    }
    assert len(features["depth"]["missing"]) == 1
    assert features["depth"]["why"] == features["depth"]["missing"][0]
    table = tmp_path / "t.csv"
    run("live-check", "--path", str(tmp_path), "-o", str(table), code=1)
    assert table.read_text().splitlines()[0] == "engine,release,feature,runs,parts,found,why"
    assert specmargin.live_check(path=tmp_path).exit_code == 1


def test_a_missing_module_is_said_once(tmp_path: Path) -> None:
    unpacked(tmp_path)
    (tmp_path / "sglang" / "srt" / "runtime_context" / "__init__.py").unlink()
    out = " ".join(run("live-check", "--path", str(tmp_path), code=1).out.split())
    assert out.count("no module sglang.srt.runtime_context") == 1
    assert "ParallelContext.tp_rank" in out


def test_both_engines_in_one_folder(tmp_path: Path) -> None:
    for engine in ("vllm", "sglang"):
        unpacked(tmp_path, engine)
    assert [one["engine"] for one in payload("live-check", "--path", str(tmp_path))["engines"]] == ["vllm", "sglang"]
    (only,) = payload("live-check", "--path", str(tmp_path), "--engine", "sglang")["engines"]
    assert only["engine"] == "sglang"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "neither vLLM nor SGLang is installed in this environment; run this where your server runs, or give"),
        (("--engine", "vllm"), "vLLM is not installed in this environment"),
        (("--path", "{empty}"), "neither vLLM nor SGLang is in this folder; give the one that holds the package"),
        (("--path", "{empty}/none"), "there is no such folder"),
        (("--engine", "trtllm"), "--engine must be 'vllm' or 'sglang', got 'trtllm'"),
    ],
)  # fmt: skip
def test_no_engine_is_exit_code_2_and_one_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    given = [argument.format(empty=tmp_path) for argument in arguments]
    err = run("live-check", *given, code=2).err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_the_engine_of_the_environment_is_read_and_not_imported(tmp_path: Path) -> None:
    unpacked(tmp_path, "vllm")
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv = ['specmargin', 'live-check', '--json']\n"
        "from specmargin.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert 'vllm' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engines"][0]["release"] == "9.9.0"
