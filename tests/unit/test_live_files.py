"""Settings and policy files of a live engine: they round-trip, and mistakes are one-sentence errors."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.cli.main import run
from specmargin.errors import EngineError
from specmargin.files import read_json
from specmargin.live.policy_schema import policy_text, read_policy, schedule_of
from specmargin.live.settings_schema import Mode, Settings, read_settings
from tests.unit.live import DEPTH, built, policy_file, table


def test_short_forms_and_defaults() -> None:
    assert read_settings({}, "x").mode is Mode.OBSERVE
    short = read_settings({"capture": "/tmp/bank"}, "x").capture
    assert short == read_settings({"capture": {"folder": "/tmp/bank"}}, "x").capture
    assert short is not None
    assert short.folder == Path("/tmp/bank")


def test_settings_round_trip_to_the_engine() -> None:
    """The plug-in writes them into vLLM's configuration as JSON, and the scheduler and the worker read that."""
    values = {
        "mode": "schedule",
        "schedule": [[1, 4, 3], [5, 64, 0]],
        "classes": {"chat": [[1, 8, 1]]},
        "capture": {"folder": "bank", "rounds_per_second": 10, "routing": False},
        "candidates": [0, 2],
        "board": "folder",
    }
    settings = read_settings(values, "x")
    assert read_settings(json.loads(json.dumps(settings.model_dump(mode="json"))), "x") == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "adaptve"}, "mode must be 'observe', 'schedule' or 'adaptive', got 'adaptve'"),
        (
            {"mode": "adaptive"},
            "mode adaptive needs 'policy': the file that `specmargin plan MODEL --gpu GPU --policy FILE",
        ),
        ({"mode": "schedule"}, "mode schedule needs 'schedule': [[first, last, depth], …], or a 'policy'"),
        ({"classes": {"a": [[1, 2, 3]]}}, "'classes' needs mode schedule"),
        ({"polici": "x"}, "polici is not a known field"),
        ({"schedule": [[1, 2]]}, "schedule.0.2 is missing"),
        ({"schedule": [[1, 2, -1]]}, "schedule.0.2 must be at least 0, got -1"),
        ({"schedule": []}, "schedule: needs at least one range"),
        ({"schedule": [[2, 8, 1]]}, "schedule: the first range must begin at batch 1, not 2"),
        ({"schedule": [[1, 8, 1], [8, 9, 0]]}, "schedule: the ranges that hold batch 8 overlap"),
        ({"schedule": [[1, 4, 1], [9, 8, 0]]}, "schedule: the range [9, 8, 0] must end in 9..65536"),
        ({"schedule": [[1, 10**12, 1]]}, "must end in 1..65536"),
        ({"mode": "schedule", "schedule": [[1, 8, 1]], "classes": {"a": []}}, "classes.a: needs at least one range"),
        ({"capture": {"folder": "x", "rounds_per_second": 0}}, "capture.rounds_per_second must be above 0, got 0"),
        ({"capture": {}}, "capture.folder is missing"),
        ({"faults_in_a_row": 0}, "faults_in_a_row must be at least 1, got 0"),
        ({"slowest_decision_seconds": float("nan")}, "slowest_decision_seconds must be a finite number"),
        ("observe", "the file must be a table of names and values, got 'observe'"),
        (None, "the file must be a table of names and values"),
    ],
)
def test_wrong_settings_are_one_sentence(values: object, message: str) -> None:
    with pytest.raises(EngineError) as caught:
        read_settings(values, "additional_config['specmargin']")
    assert str(caught.value).startswith("additional_config['specmargin']: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "value error" not in str(caught.value)


def test_settings_files(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"mode": "observe"}')
    assert read_settings(read_json(file, EngineError), str(file)) == Settings()
    file.write_text("{mode: observe}")
    with pytest.raises(EngineError, match="not valid JSON"):
        read_json(file, EngineError)
    with pytest.raises(EngineError, match=r"cannot be read \(no such file\)"):
        read_json(tmp_path / "nothing.json", EngineError)


# --- policies ---


def test_a_policy_file_round_trips(tmp_path: Path) -> None:
    file, path = policy_file(), tmp_path / "a.policy.json"
    path.write_text(policy_text(file))
    policy = read_policy(path)
    assert policy == file
    prices = table()
    for name in ("rest_seconds", "draft_seconds", "expert_seconds", "effective_by_depth"):
        np.testing.assert_allclose(getattr(policy.table.table, name), getattr(prices, name), rtol=5e-6)
    assert policy.table.table.by_pass == prices.by_pass
    assert (policy.table.table.max_batch, policy.table.table.max_depth) == (8, DEPTH)
    assert policy.logistic is not None
    assert policy.gate is not None
    assert len(policy.gate.gain_by_batch) == 9
    assert set(policy.gate.graph_depths) <= set(range(DEPTH + 1))
    ungated = policy_file(gated=False)
    assert (ungated.logistic, ungated.gate) == (None, None)


def _changed(text: str, **parts: Any) -> str:
    return json.dumps(json.loads(text) | parts)


def test_wrong_policies_are_one_sentence(tmp_path: Path) -> None:
    text = policy_text(policy_file())
    whole = json.loads(text)
    wrong = {
        "not JSON at all": "is not valid JSON",
        _changed(text, schema="specmargin.policy/9"): "schema must be 'specmargin.policy/3'",
        _changed(text, survival=[0.5, 1.5]): "survival.1 must be at most 1, got 1.5",
        _changed(text, survival=[]): "survival must not be empty",
        _changed(text, schedule=[]): "schedule: needs at least one range",
        _changed(text, table=whole["table"] | {"effective_by_depth": [1.0, 2.0]}): "each as long as effective_by_depth",
        _changed(
            text, table=whole["table"] | {"expert_seconds": [-1.0, 2.0]}
        ): "table.expert_seconds.0 must be at least 0",
        _changed(text, more=1): "more is not a known field",
    }
    for content, message in wrong.items():
        path = tmp_path / "a.policy.json"
        path.write_text(content)
        with pytest.raises(EngineError) as caught:
            read_policy(path)
        assert message in str(caught.value), content[:60]
        assert "`specmargin plan MODEL --gpu GPU --policy FILE` writes one" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match="cannot be read"):
        read_policy(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match=r"policy .*bytes"):
        read_policy(tmp_path / "bytes")


def test_plan_writes_a_policy_that_a_driver_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "qwen.policy.json"
    shared = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--max-batch", "64", "--depth", "4"]
    assert run("plan", [*shared, "--policy", str(path)]) == 0
    assert "policy of the live controller" in capsys.readouterr().out
    policy = read_policy(path)
    assert (policy.model, policy.table.table.max_batch, policy.table.table.max_depth) == ("qwen3.6-35b-a3b", 64, 4)
    assert path.stat().st_size < 100_000
    driver = built(tmp_path, {"mode": "adaptive", "policy": str(path)})
    driver.add("a", None)
    assert driver.draft_depth(["a"]) in range(1, 5)  # it pays at one sequence


def test_plan_prints_the_server_that_reads_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a table of depths: the plug-in leaves a given one as it is, and adds a larger one itself."""
    path = tmp_path / "a policy.json"
    shared = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--max-batch", "64", "--batch", "1,64"]
    assert run("plan", [*shared, "--policy", str(path)]) == 0
    *_, heading, command = capsys.readouterr().out.rstrip().splitlines()
    assert "specmargin live-check" in heading
    program, verb, model, *flags = shlex.split(command)
    assert (program, verb, model) == ("vllm", "serve", "Qwen/Qwen3.6-35B-A3B")
    options = {flags[i]: json.loads(flags[i + 1]) for i in range(0, len(flags), 2)}
    assert options["--speculative-config"].keys() == {"method", "num_speculative_tokens"}
    settings = read_settings(options["--additional-config"]["specmargin"], "the plan")
    assert (settings.mode, settings.policy) == (Mode.ADAPTIVE, path)


def test_a_plan_that_does_not_pay_starts_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--max-batch", "8", "--acceptance", "0.01"]
    assert run("plan", [*shared, "--policy", str(tmp_path / "never.policy.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No")
    assert "start the server" not in shown and "--additional-config" not in shown


# --- schedules ---


def as_vllm(ranges: list[tuple[int, int, int]], largest: int) -> list[int]:
    """In the words of vLLM 0.32: inclusive ranges; "gaps and the tail carry the previous K"."""
    depths, previous = [], 0
    for batch in range(1, largest + 1):
        previous = next((depth for first, last, depth in ranges if first <= batch <= last), previous)
        depths.append(previous)
    return depths


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 7)), min_size=1, max_size=6), st.data())
def test_schedules_mean_what_vllm_means(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Each step: the gap before a range, its length and its depth; ranges are given in any order."""
    ranges, end = [], 0
    for gap, length, depth in steps:
        first = end + 1 + (gap if end else 0)
        end = first + length
        ranges.append((first, end, depth))
    shuffled = data.draw(st.permutations(ranges))
    read = read_settings({"mode": "schedule", "schedule": shuffled}, "x").schedule
    assert read is not None
    schedule = schedule_of(read)
    assert [schedule.draft(batch).depth for batch in range(1, end + 20)] == as_vllm(ranges, end + 19)


def test_a_gap_carries_the_depth_before_it() -> None:
    """The example in vLLM's source: (1, 16, 3), (32, 128, 2) gives 3 for 17 to 31."""
    schedule = schedule_of([(32, 128, 2), (1, 16, 3)])
    assert [schedule.draft(batch).depth for batch in (1, 16, 17, 31, 32, 128, 129, 4096)] == [3, 3, 3, 3, 2, 2, 2, 2]
