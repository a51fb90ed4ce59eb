"""`simulate` and `sweep` from the command line: keys, files, figures, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specmargin.cli.main import run
from specmargin.errors import InputError
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed
from tests.conftest import ROOT

MODEL = ["qwen3.6-35b-a3b", "--gpu", "h200"]
QUICK = ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "datasheet", "--qps", "8", "--requests", "40", "--osl", "30"]
QUICK += ["--range-ratio", "0"]


def json_of(capsys: pytest.CaptureFixture[str], verb: str, *arguments: str) -> Any:
    assert run(verb, [*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_simulate_prints_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    payload = json_of(
        capsys, "simulate", *QUICK, "--policy", "fixed:2,none", "--tpot-slo", "50", "--gpu-hour-price", "3"
    )
    for key in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert set(payload[key]) == {"p50", "p90", "p99", "mean"}
    assert payload["drafted"] >= payload["verified"] >= payload["accepted"] > 0
    # Every committed token is an accepted draft token or a token of the target: one per round, one per prompt.
    cut = payload["wasted"] - (payload["drafted"] - payload["accepted"])
    assert 0 <= cut < 3 * 40
    assert payload["committed"] == 40 * 30
    assert payload["requests"] == payload["finished"] == 40
    assert payload["goodput_tokens_per_second"] > 0
    assert [row["policy"] for row in payload["policies"]] == ["fixed:2", "none"]
    assert payload["slo_attainment"] == 1.0
    assert payload["cost"] > 0
    assert payload["sources"]["rounds"].startswith("rounds drawn from")
    total = sum(payload["seconds_by_component"].values())
    assert total == pytest.approx(payload["busy_seconds"], rel=1e-6)


def test_a_table_for_people_names_policies_time_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", [*QUICK, "--policy", "none"]) == 0
    text = capsys.readouterr().out
    for part in ("40 of 40 requests served", "busy time by component", "routed experts", "sources"):
        assert part in text


def test_ranks_behind_a_router(capsys: pytest.CaptureFixture[str]) -> None:
    """By default with the vote and the best static depth; the time of their steps adds up as that of one engine."""
    asked = [*QUICK, "--dp", "4", "--ep", "--depth", "2", "--router", "least-requests"]
    payload = json_of(capsys, "simulate", *asked)
    assert [row["policy"] for row in payload["policies"]] == ["vote", "best-fixed", "none"]
    for row in payload["policies"]:
        assert row["ranks"] == 4 and row["finished"] == 40
        assert row["goodput_per_gpu"] == pytest.approx(row["goodput_tokens_per_second"] / 4)
        assert 0.0 < row["imbalance_share"] + row["padding_share"] < 1.0
        assert sum(row["seconds_by_component"].values()) == pytest.approx(row["busy_seconds"], rel=1e-6)
    assert run("simulate", asked) == 0
    assert "4 ranks, least-requests; shares of their busy time" in capsys.readouterr().out
    with pytest.raises(InputError, match="--policy controller decides for one engine"):
        run("simulate", [*asked, "--policy", "controller"])


def test_requests_steps_and_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / name for name in ("requests.parquet", "steps.parquet", "day.svg")}
    flags = ["--save-requests", paths["requests.parquet"], "--save-steps", paths["steps.parquet"]]
    payload = json_of(
        capsys, "simulate", *QUICK, "--policy", "fixed:1", *map(str, flags), "--plot", str(paths["day.svg"])
    )
    requests, steps = pl.read_parquet(paths["requests.parquet"]), pl.read_parquet(paths["steps.parquet"])
    assert requests.height == 40
    assert steps["committed"].sum() == payload["committed"] == requests["output_tokens"].sum()
    assert steps.height == payload["steps"]
    assert paths["day.svg"].read_text().startswith("<svg")
    with pytest.raises(InputError, match="exists; give --force"):
        run("simulate", [*QUICK, "--save-steps", str(paths["steps.parquet"])])
    assert run("simulate", [*QUICK, "--policy", "none,fixed:2", "--plot", str(tmp_path / "two.svg")]) == 0


def test_a_scenario_file_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples" / "day.toml").read_text()
    hours = text.replace("hours = [0, 3, 6, 8, 10, 11.5, 13, 15, 17, 19, 21, 24]", "hours = [0, 0.02]")
    start = hours.index("hourly_qps = ")
    short = hours[:start] + "hourly_qps = [1, 2]" + hours[hours.index("\n", start) :]
    (tmp_path / "short.toml").write_text(short)
    one = json_of(capsys, "simulate", str(tmp_path / "short.toml"), "--policy", "schedule")
    two = json_of(capsys, "simulate", str(tmp_path / "short.toml"), "--policy", "schedule", "--seed", "0")
    assert one == two
    assert one["options"]["categories"][0]["name"] == "cpp"
    assert 60 < one["requests"] < 160


def test_a_sweep_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        '[base]\nmodel = "qwen3.6-35b-a3b"\ngpu = "h200"\nprices = "datasheet"\nrequests = 20\nosl = 20\n'
        '[grid]\npolicy = ["none", "fixed:2"]\nqps = [2, 20]\n'
    )
    flags = ["--workers", "1", "--table", str(tmp_path / "t.parquet"), "--plot", str(tmp_path / "p.svg")]
    payload = json_of(capsys, "sweep", str(grid), *flags)
    assert (payload["cells"], payload["ran"], payload["failed"]) == (4, 4, 0)
    assert pl.read_parquet(tmp_path / "t.parquet")["policy"].to_list() == ["none", "none", "fixed:2", "fixed:2"]
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    assert run("sweep", [str(grid), "--workers", "1"]) == 0
    assert "4 cells, 0 run now" in capsys.readouterr().out


def test_options_override_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of the scenario and the load override the file; the rest is the file's."""
    day = str(ROOT / "examples" / "day.toml")
    load = ["--concurrency", "4", "--requests", "8", "--isl", "64", "--osl", "16"]
    options = ["--gpu", "b200", "--gpus", "2", "--parallel", "ep", "--off-ms", "1", "--policy", "off"]
    used, file = json_of(capsys, "simulate", day, *load, *options)["options"], tomllib.loads(Path(day).read_text())
    assert (used["gpu"], used["gpus"], used["parallel"], used["off_ms"]) == ("b200", 2, "ep", 1.0)
    assert (used["concurrency"], used["hours"], used["hourly_qps"]) == (4, None, None)
    assert (used["isl"], used["osl"]) == (64, 16)
    for key in ("model", "depth", "max_num_batched_tokens"):
        assert used[key] == file[key]


def test_none_in_python_keeps_the_files_value(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "m"\ngpu = "h200"\nqps = 3\nbank = "rounds"\n')
    request, folder = completed(SimulateRequest(model=str(file), bank=None, concurrency=None, gpus=2))
    assert (request.qps, request.concurrency, request.bank, request.gpus) == (3.0, None, "rounds", 2)
    assert folder == tmp_path


def test_sessions_cancelled_requests_and_priorities_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "qwen3-30b-a3b"\ngpu = "h200"\nconcurrency = 4\nturns = 3\nthink_seconds = 0.1\nshared_prefix = 64\n'
        'requests = 24\nisl = 100\nosl = 20\ncancel_share = 0.3\ncancel_tokens = 5\nscheduling = "priority"\n'
        'policy = "none"\n[[categories]]\nname = "chat"\npriority = 1\n[[categories]]\nname = "agent"\npriority = 0\n'
    )
    run("simulate", [str(file)])
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("from the prefix cache", "requests cancelled by their clients", "by priority", "by block hashes"):
        assert words in shown
    run("simulate", [str(file), "--no-prefix-cache", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["cancelled"] > 0 and "prefix_hits" not in said
    assert [each["priority"] for each in said["by_priority"]] == [0, 1]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("simulate", ["qwen3.6-35b-a3b", "--qps", "1"], "name a device with --gpu"),
        ("simulate", ["qwen3.6-35b-a3b", "--gpu", "h200"], "give one load: --qps, --concurrency or --trace"),
        ("simulate", [*QUICK, "--policy", "fixd:2"], "unknown policy 'fixd:2'; nearest: fixed:K"),
        ("simulate", [*QUICK, "--policy", "fixed:7", "--depth", "4"], "--policy fixed:7 drafts deeper than 4 tokens"),
        ("simulate", [*QUICK, "--trace", "none.csv"], "give one load"),
        ("simulate", [*MODEL, "--qps", "1", "--turns", "3"], "with --turns give --sessions-per-second"),
        ("simulate", [*MODEL, "--trace", "a.csv", "--turns", "3"], "a trace has its own requests; leave out --turns"),
        ("simulate", [*MODEL, "--concurrency", "2", "--cancel-share", "0.1"], "goes with --cancel-tokens or"),
        ("simulate", [*MODEL, "--concurrency", "2", "--cancel-tokens", "9"], "--cancel-share goes with"),
        (
            "simulate",
            [*MODEL, "--concurrency", "2", "--turns", "2", "--prefix-hit", "0.5"],
            "sessions have their own hits",
        ),
        ("simulate", ["no.toml"], "no.toml: cannot be read"),
        ("simulate", ["day.toml", "--gpu", "h200"], "day.toml: cannot be read"),
        ("simulate", [*QUICK, "--policy", "none,off", "--save-steps", "x.parquet"], "need a single policy"),
        ("sweep", ["no.toml"], "no.toml: cannot be read"),
        ("sweep", ["no.toml", "--plot", "x.txt"], "must end in"),
    ],
)
def test_refusals_are_one_sentence(verb: str, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run(verb, arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_is_quick_and_needs_no_numba() -> None:
    code = "import sys; from specmargin.cli.main import run; run('simulate', ['--help']); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")
