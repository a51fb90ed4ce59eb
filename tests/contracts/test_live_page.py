"""The pages about live engines: their commands run in order, and their settings and metrics are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from specmargin.cli.main import run
from specmargin.live.board import METRICS
from specmargin.live.parts import STANDS_ON, Feature, parts_list
from specmargin.live.policy_schema import read_policy
from specmargin.live.sequences import CLASS_ARGUMENT, DEPTH_ARGUMENT, LiveRequest
from specmargin.live.settings_schema import CaptureSettings, GateSettings, Mode, Settings, read_settings
from specmargin.live.sglang.rounds import SETTINGS, read_config
from tests.conftest import ROOT
from tests.unit.test_live_capture import fill, writer
from tests.unit.test_watch import metrics, serving

VLLM, SGLANG, WATCH = ((ROOT / "docs" / "guide" / f"{page}.md").read_text() for page in ("vllm", "sglang", "watch"))
PLUGIN, METRICS_PAGE = ((ROOT / "docs" / "reference" / f"{page}.md").read_text() for page in ("plugin", "metrics"))
PAGES = VLLM + SGLANG + WATCH + PLUGIN
COMMANDS = [
    command.replace("\\\n", " ")
    for block in re.findall(r"```console\n(.*?)```", PAGES, re.DOTALL)
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
]
OBJECTS = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGES, re.DOTALL)]
FLAGS = [word for command in COMMANDS for word in shlex.split(command) if word.startswith("{")]


def test_the_pages_have_their_parts() -> None:
    assert [command.split()[0] for command in COMMANDS].count("specmargin") == 8
    assert sum("--additional-config" in command for command in COMMANDS) == 2
    assert len(OBJECTS) == 4
    assert all(f"vLLM {version}" in page for version in parts_list("vllm").tested for page in (VLLM, PLUGIN))
    tested = parts_list("sglang").tested
    assert f"SGLang {', '.join(tested[:-1])} and {tested[-1]}" in " ".join(SGLANG.split())
    for step in range(1, 6):
        assert f"\n## {step}. " in VLLM


def _settings() -> list[Any]:
    objects = [value for value in (*OBJECTS, *map(json.loads, FLAGS)) if "specmargin" in value]
    return [value["specmargin"] for value in objects]


def test_settings_on_the_page_are_understood() -> None:
    parsed = [read_settings(values, "the guide") for values in _settings()]
    assert {settings.mode for settings in parsed} == set(Mode)


def test_requests_on_the_page_are_understood() -> None:
    bodies = [value for value in (*OBJECTS, *map(json.loads, FLAGS)) if "vllm_xargs" in value]
    assert len(bodies) == 2
    for body in bodies:
        request = LiveRequest.of("request", body["vllm_xargs"])
        assert request.group == body["vllm_xargs"][CLASS_ARGUMENT]
        assert request.limit == body["vllm_xargs"].get(DEPTH_ARGUMENT, request.limit)


def test_the_main_command_keeps_the_defaults_of_vllm_on_a_gpu() -> None:
    """Async scheduling, the second model runner, graphs and the gate `auto` are what was measured."""
    (served,) = [command for command in COMMANDS if '"adaptive"' in command and command.startswith("vllm serve")]
    assert [word for word in shlex.split(served) if word.startswith("-")] == [
        "--speculative-config",
        "--additional-config",
    ]
    (settings,) = [values for values in _settings() if values.keys() == {"mode", "policy"}]
    assert read_settings(settings, "the guide").gate == GateSettings()


def _rows(page: str, heading: str) -> dict[str, list[str]]:
    table = page.split(f"\n## {heading}\n")[1].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_every_setting_is_listed_with_its_default() -> None:
    rows = _rows(PLUGIN, "Settings")
    whole = Settings().model_dump(mode="json")
    parts = {"gate": GateSettings(), "capture": CaptureSettings(folder=Path("x"))}
    expected = whole | {
        f"{name}.{inside}": value
        for name, part in parts.items()
        for inside, value in part.model_dump(mode="json").items()
    }
    assert list(rows) == list(expected)
    for name, (default, meaning) in rows.items():
        assert default == ("needed" if name == "capture.folder" else f"`{json.dumps(expected[name])}`"), name
        assert meaning


def test_every_feature_is_listed() -> None:
    rows = _rows(PLUGIN, "Releases")
    assert list(rows) == [str(feature) for feature in Feature]
    for feature, row in rows.items():
        assert row[0].strip("`") == str(STANDS_ON.get(Feature(feature), "–"))
        assert all(row[1:])
    assert f"all {len(parts_list('vllm').parts)} parts found" in PLUGIN.replace("\n", " ")


def test_every_setting_for_sglang_is_listed() -> None:
    assert tuple(_rows(SGLANG, "Settings")) == SETTINGS


def test_the_file_for_sglang_is_understood(tmp_path: Path) -> None:
    (whole,) = [value for value in OBJECTS if "1" in value]
    file = tmp_path / "adaptive.json"
    file.write_text(json.dumps(whole))
    settings, policy = read_config(file)
    assert settings.mode is Mode.SCHEDULE
    assert policy is None
    assert {step for key in ("1", "48") for step in whole[key]["candidate_steps"]} == {3, 5}


def test_every_metric_is_listed_with_the_description_in_the_code() -> None:
    rows = _rows(METRICS_PAGE, "On the server's `/metrics`")
    assert set(rows) == {f"specmargin_{m.name}" for m in METRICS} | {
        "specmargin_depth_chosen_total",
        "specmargin_faults_total",
    }
    for metric in METRICS:
        assert rows[f"specmargin_{metric.name}"] == [metric.help]


def test_every_argument_and_mode_is_listed() -> None:
    assert set(_rows(PLUGIN, "Requests")) == {DEPTH_ARGUMENT, CLASS_ARGUMENT}
    assert set(_rows(PLUGIN, "Modes")) == set(Mode)


def _capture(folder: Path) -> None:
    """The captures of step 2: rounds, and routing of a model with 40 layers and 8 of 256 experts per token."""
    bank, generator = writer(folder), np.random.default_rng(0)
    fill(bank, 8, 20, generator)
    bank.close()
    part = folder / "routing-test" / "part-000001"
    part.mkdir(parents=True)
    runs, length = 120, 5
    experts = np.argsort(generator.random((runs * length, 40, 256)), axis=-1)[..., :8].astype(np.uint8)
    np.save(part / "routing.npy", experts)
    run_index = np.repeat(np.arange(runs), length)
    meta = {"routing_idx": np.arange(runs * length), "routing_block_idx": run_index, "request_idx": run_index // 10}
    meta |= {"position": np.tile(np.arange(length), runs), "accepted": np.ones(runs * length, dtype=bool)}
    keys = {"model": "m", "speculator": "s", "config": "k4", "category": "all", "turn": 0}
    frame = pl.DataFrame(meta).with_columns(pl.lit(value).alias(name) for name, value in keys.items())
    frame = frame.with_columns(prompt_idx=pl.col("request_idx"), round_idx=pl.col("routing_block_idx") % 10)
    frame.write_parquet(part / "routing_meta.parquet")


def test_the_commands_work_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _capture(tmp_path / "bank")
    with serving(lambda _: (200, metrics(30))) as url:
        for command in COMMANDS:
            if not command.startswith("specmargin "):
                continue
            _, verb, *arguments = shlex.split(command.replace("http://localhost:8000", url))
            arguments = [{"MODEL": "qwen3.6-35b-a3b", "GPU": "h200"}.get(word, word) for word in arguments]
            if verb == "watch" and len(arguments) == 1:
                arguments.append("--once")
            assert run(verb, arguments) == 0, command
            assert capsys.readouterr().out
    assert json.loads(Path("specmargin-grafana.json").read_text())["panels"]
    assert read_config(Path("mine.sglang.json"))[1] is not None
    adaptive = next(values for values in _settings() if values["mode"] == "adaptive")
    assert read_policy(tmp_path / adaptive["policy"]).gate is not None
