"""The command line: JSON keys, tables of 80 columns, and one clear sentence for every kind of bad input."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from specmargin.answers.numbers_schema import parse_numbers
from specmargin.modes import ENGINES
from specmargin.show import terminal
from specmargin.verbs import verb_names
from tests.command_line import payload, run


@pytest.mark.parametrize("verb", sorted(verb_names()))
def test_every_verb_teaches(verb: str) -> None:
    shown = run(*verb.split(), "--help").out
    assert "Usage: specmargin" in shown


def _options(page: str) -> list[str]:
    return [line.split()[0] for line in page.splitlines() if line.startswith("  -")]


def test_help_shows_twelve_options_and_help_all_the_rest() -> None:
    short, whole = (_options(run("plan", option).out) for option in ("--help", "--help-all"))
    assert len(short) == 12 + len(["--help", "--help-all"])
    assert {"--gpu", "--drafter", "--acceptance", "--engine", "--batch", "--concurrency"} <= set(short)
    assert set(short) - {"--help-all"} < set(whole)
    assert {"--draft-pass-ms", "--min-gain", "--json"} <= set(whole)


@pytest.mark.parametrize("verb", sorted(verb_names()))
def test_no_help_page_is_longer_than_a_few_screens(verb: str) -> None:
    assert len(_options(run(*verb.split(), "--help").out)) <= 20


def test_root() -> None:
    assert all(verb in run("--help").out for verb in verb_names())
    assert run("--version").out.startswith("specmargin ")
    assert "no verb 'plam'; nearest: plan" in run("plam", code=2).err


def test_plan_json_has_the_documented_keys() -> None:
    shared = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "1,8,64", "--routing", "uniform")
    result = payload(*shared, "--contexts", "1k,32k")
    assert result["schema"] == "specmargin.plan/2"
    for key in ("model", "gpu", "engine", "drafter", "sources", "rows", "config"):
        assert key in result
    row_keys = {"batch", "depth", "speedup", "goodput_tokens_per_second", "no_spec_tokens_per_second", "hurdle"}
    row_keys |= {"break_even_acceptance", "distinct_experts", "bound_by"}
    assert [row["batch"] for row in result["rows"]] == [1, 8, 64]
    for row in result["rows"]:
        assert row_keys <= set(row)
    assert result["config"].startswith("--speculative-config '")
    assert [entry["context"] for entry in result["by_context"]] == [1024, 32768]
    assert any("datasheet" in source for source in result["sources"].values())
    assert result["weakest_source"].startswith("assumed")


def test_plan_by_expert_parallelism_shows_the_communication_share() -> None:
    shared = ("plan", "deepseek-v3", "--gpu", "h200", "--gpus", "8", "--batch", "1,64")
    ep = payload(*shared, "--parallel", "ep")
    tp = payload(*shared, "--parallel", "tp")
    assert all(0 < row["communication_share"] < 1 for row in ep["rows"])
    assert ep["rows"][0]["distinct_experts"] < tp["rows"][0]["distinct_experts"]  # a rank's own experts
    assert "comm" in run(*shared, "--parallel", "ep", "--explain").out


def test_plan_ranks_drafters() -> None:
    result = payload("plan", "qwen3.6-35b-a3b", "--gpu", "b200", "--drafter", "all", "--batch", "1,64")
    gains = [entry["mean_speedup"] for entry in result["ranking"]]
    assert gains == sorted(gains, reverse=True)
    assert {entry["drafter"] for entry in result["ranking"]} == {"mtp", "eagle", "dflash", "ngram"}
    assert result["drafter"] == result["ranking"][0]["drafter"]


def test_plan_from_a_request_rate_and_as_money() -> None:
    arguments = ["plan", "qwen3-30b-a3b", "--gpu", "h200", "--qps", "8", "--isl", "1000", "--osl", "300"]
    result = payload(*arguments, "--tpot-slo", "20", "--gpu-hour-price", "3")
    load = result["load"]
    assert load["speculating"]["batch"] <= load["no_spec"]["batch"]
    assert load["speculating"]["meets_target"] is True
    batch = load["speculating"]["batch"]
    scheduled = next(depth for first, last, depth in result["schedule"] if first <= batch <= last)
    assert load["speculating"]["depth"] == scheduled  # the flags', not another best depth
    row = result["rows"][0]
    assert row["cost_per_million_tokens"] == pytest.approx(3 * row["gpu_hours_per_million_tokens"])
    assert row["currency"] == "USD"
    assert row["no_spec_cost_per_million_tokens"] == pytest.approx(3e6 / 3600 / row["no_spec_tokens_per_second"])
    assert row["gpu_hours_per_million_tokens"] == pytest.approx(1e6 / row["goodput_tokens_per_second"] / 3600)


@pytest.mark.parametrize("engine", ENGINES)
def test_plan_writes_every_engine(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "setting.txt"
    run("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--engine", engine, "-o", str(file))
    assert file.read_text().strip()
    again = run("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--engine", engine, "-o", str(file), code=2)
    assert "exists; give --force" in again.err


def test_price_json() -> None:
    result = payload("price", "deepseek-v4-flash", "--gpu", "b200", "--batch", "8", "--depth", "2")
    for component in result["components"]:
        assert {"name", "seconds", "bytes", "flops", "marginal_seconds", "source"} <= set(component)
    assert sum(c["seconds"] for c in result["components"]) == pytest.approx(result["total_seconds"])
    assert sum(c["seconds"] for c in result["draft"]["components"]) == pytest.approx(result["draft"]["total_seconds"])
    assert result["round_seconds"] == pytest.approx(result["total_seconds"] + result["draft"]["total_seconds"])


def test_price_and_plan_agree() -> None:
    shared = ("qwen3.6-35b-a3b", "--gpu", "h200")
    survival = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
    acceptance = ",".join(map(str, survival))
    row = payload("plan", *shared, "--batch", "8", "--drafter", "mtp", "--acceptance", acceptance)["rows"][0]
    assert row["depth"] > 0
    price = payload("price", *shared, "--batch", "8", "--depth", str(row["depth"]), "--drafter", "mtp")
    assert row["tpot_seconds"] * row["goodput_tokens_per_second"] == pytest.approx(8)
    assert price["distinct_experts"] == pytest.approx(row["distinct_experts"])
    committed = row["goodput_tokens_per_second"] * price["round_seconds"] / 8
    assert committed == pytest.approx(1 + sum(survival[: row["depth"]]))


def test_coverage_json() -> None:
    result = payload("coverage", "deepseek-v4-flash", "--positions", "1,53")
    assert round(result["half_coverage_positions"], 1) == 29.2
    assert round(result["experts_over_k"]) == 43
    first = result["positions"][0]
    assert {"width", "depth", "skew", "uniform", "uniform_stdev"} <= set(first)
    assert first["width"] == pytest.approx(6)


def test_duel_json() -> None:
    result = payload("duel", "qwen3.6-35b-a3b", "--gpu", "h100", "--batch", "1", "--alpha", "0.9")
    for side in ("width", "depth"):
        assert {"goodput_tokens_per_second", "distinct_experts", "step_seconds"} <= set(result[side])
    assert result["winner"] == "width"
    assert result["turning_alpha"] > 0.9


def test_lists() -> None:
    models = payload("models")["models"]
    assert len(models) >= 40
    assert {"name", "hub_id", "parameters", "active_parameters", "source"} <= set(models[0])
    assert len(payload("gpus")["gpus"]) >= 20
    assert "qwen3.6-35b-a3b" in run("models", "qwen3.6").out
    assert [entry["name"] for entry in payload("models", "GLM-4.6V")["models"]] == ["glm-4.5-air"]


def test_a_device_file_is_printed_or_written(tmp_path: Path) -> None:
    text = run("gpus", "h20", "--template").out
    assert text.startswith("# Your own GPU, with the figures of h20:")
    file = tmp_path / "mine.toml"
    assert run("gpus", "h20", "--template", "-o", str(file)).out == ""
    assert file.read_text() == text
    assert "exists; give --force" in run("gpus", "h20", "--template", "-o", str(file), code=2).err
    assert "must end in .toml" in run("gpus", "--template", "-o", str(tmp_path / "mine.csv"), code=2).err
    assert "--json: the answer is a file by itself" in run("gpus", "--template", "--json", code=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "qwen3.6-35b-a3b", "--gpu", "h200"],
        ["plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--gpu-hour-price", "3"],
        ["plan", "deepseek-v3", "--gpu", "h200", "--gpus", "8", "--parallel", "ep", "--contexts", "1k,8k,64k"],
        ["plan", "qwen3.6-35b-a3b", "--gpu", "b200", "--drafter", "all"],
        ["price", "deepseek-v4-flash", "--gpu", "b200", "--batch", "8", "--depth", "2"],
        ["coverage", "deepseek-v4-flash"],
        ["duel", "qwen3.6-35b-a3b", "--gpu", "h100", "--alpha", "0.9"],
        ["models"],
        ["gpus"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_tables_fit_100_columns(arguments: list[str]) -> None:
    lines = run(*arguments).out.splitlines()
    wide = [line for line in lines if len(line) > 100 and not line.startswith("--")]  # flags paste as one line
    assert wide == []


PLAN = ["plan", "qwen3.6-35b-a3b", "--gpu", "h200"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plan", "nope", "--gpu", "h200"], "'nope' is neither a bundled model"),
        (["plan", "nope.json", "--gpu", "h200"], "nope.json: no such file"),
        (["plan", ".", "--gpu", "h200"], "no config.json here"),
        (["plan", "qwen3.6-35b-a3b", "--gpu", "h3000"], "unknown GPU 'h3000'; nearest: "),
        ([*PLAN, "--gpus", "3"], "do not divide over 3 GPUs"),
        ([*PLAN, "--gpus", "0"], "--gpus must be at least 1"),
        (["plan", "deepseek-v3", "--gpu", "h100"], "does not fit"),
        (["plan", "llama-3.1-8b", "--gpu", "h100", "--gpus", "2", "--parallel", "ep"], "has no experts"),
        ([*PLAN, "--acceptance", "1.2"], "acceptance must lie in 0..1"),
        ([*PLAN, "--acceptance", "0.5,0.6"], "cannot rise"),
        ([*PLAN, "--acceptance", "good"], "is not understood"),
        ([*PLAN, "--depth", "99"], "--depth must be at most 64, got 99"),
        ([*PLAN, "--batch", "0"], "batch must lie in"),
        ([*PLAN, "--batch", "x"], "--batch: 'x' is neither a number"),
        ([*PLAN, "--batch", "8-1"], "is empty"),
        ([*PLAN, "--context", "9999999"], "beyond"),
        ([*PLAN, "--drafter", "magic"], "unknown drafter 'magic'"),
        ([*PLAN, "--engine", "magic"], "unknown engine 'magic'"),
        ([*PLAN, "--routing", "magic"], "unknown routing profile 'magic'"),
        ([*PLAN, "--prices", "magic"], "unknown prices 'magic'"),
        ([*PLAN, "--weights", "fp3"], "unknown precision 'fp3'; nearest: "),
        ([*PLAN, "--min-gain", "2"], "--min-gain"),
        ([*PLAN, "--qps", "1"], "--qps needs --isl and --osl"),
        ([*PLAN, "--isl", "1"], "add --concurrency or --qps"),
        ([*PLAN, "--qps", "-1", "--isl", "1", "--osl", "1"], "--qps must be above 0, got -1"),
        ([*PLAN, "--memory-utilization", "7"], "--memory-utilization must be at most 1, got 7"),
        ([*PLAN, "--context", "-1"], "--context"),
        (["plan", "qwen3.6-35b-a3b"], "Missing option '--gpu'"),
        ([*PLAN, "--parallel", "xx"], "--parallel"),
        ([*PLAN, "--step-ms", "inf"], "--step-ms must be a finite number"),
        ([*PLAN, "--layer-us", "1e308"], "--layer-us must be below 1,000,000,000"),
        ([*PLAN, "--gpu-hour-price", "nan"], "--gpu-hour-price"),
        ([*PLAN, "--max-batch", "100000000"], "--max-batch"),
        ([*PLAN, "--batch", "1-65536"], "at most 4096 values"),
        ([*PLAN, "--contexts", "1-5000"], "at most 32 values"),
        ([*PLAN, "--qps", "1", "--isl", "9", "--osl", "9", "--batch", "1"], "leave out --batch"),
        ([*PLAN, "-o", "/nonexistent/x"], "cannot be written"),
        ([*PLAN, "--drafter", "ngram:5"], "takes nothing after the colon"),
        (["price", "deepseek-v3", "--gpu", "rtx-4090"], "does not fit"),
        (["coverage", "deepseek-v3", "--positions", "1-100000"], "at most 1024 values"),
        (["price", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "-3"], "--batch must be at least 1, got -3"),
        (["price", "qwen3.6-35b-a3b", "--gpu", "h200", "--drafter", "all"], "name one drafter"),
        (["coverage", "llama-3.1-8b"], "is dense"),
        (["coverage", "deepseek-v3", "--layer", "99"], "--layer must lie in 0..57"),
        (["duel", "qwen3.6-35b-a3b", "--gpu", "h100", "--alpha", "2"], "--alpha must be at most 1, got 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], complaint: str) -> None:
    done = run(*arguments, code=2)
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_numbers_and_ranges() -> None:
    assert parse_numbers("1,4-6,2k") == (1, 4, 5, 6, 2048)
    assert parse_numbers("1m") == (1_048_576,)
    with pytest.raises(ValueError, match="neither a number nor a range"):
        parse_numbers("")


def test_closed_and_full_outputs_end_quietly() -> None:
    command = f"{sys.executable} -m specmargin.cli.main models"
    for redirect, code in ((">&-", 1), ("> /dev/full", 1)):
        done = subprocess.run(f"{command} {redirect}", shell=True, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, code)
    piped = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True, check=False)
    assert piped.returncode == 0
    assert piped.stderr == ""


def test_a_terminal_without_unicode_shows_something_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specmargin.cli.main", *PLAN],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_names_with_brackets_are_not_markup(tmp_path: Path) -> None:
    device = tmp_path / "mine.toml"
    device.write_text(
        """
        title = "[/red] card"
        memory_bytes = 141e9
        bandwidth_bytes_per_second = 1e12
        operations_per_second = { bf16 = 100e12 }
        link_bytes_per_second = 32e9
        link_latency_seconds = 15e-6
        gpus_per_node = 2
        source = "[bold]its datasheet"
        """
    )
    shown = run("plan", "qwen3.6-35b-a3b", "--gpu", str(device), "--explain").out
    assert "[/red] card" in shown
    assert "[bold]its datasheet" in shown


def test_a_setting_that_falls_short_names_the_better_depth() -> None:
    """One depth for all batches under data parallelism; a column says where another would gain more than --min-gain."""
    arguments = ["plan", "kimi-k2", "--gpu", "b200", "--gpus", "8", "--parallel", "dp-ep", "--batch", "1,64,1024"]
    result = payload(*arguments)
    assert len({row["depth"] for row in result["rows"]}) == 1
    (short,) = [row for row in result["rows"] if row["better_depth"] is not None]
    assert short["batch"] == 1024
    assert short["better_speedup"] > 1.02 * short["speedup"]
    assert f"{short['better_depth']}: {short['better_speedup']:.2f}×" in run(*arguments).out
    assert "better" not in run(*arguments, "--min-gain", "0.5").out


def test_an_accept_length_is_repeated_as_understood_and_needs_its_depth() -> None:
    arguments = ["plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "1", "--acceptance"]
    shown = run(*arguments, "length:2.4@3").out
    assert "acceptance: length:2.4@3: 1.40 accepted drafts per round, 0.66 per token" in shown
    assert payload(*arguments, "length:2.4@3")["rows"] == payload(*arguments, "accepted:1.4@3")["rows"]
    refused = run(*arguments, "length:2.4", code=2)
    assert "length:2.4 needs the draft depth at which it was measured: length:2.4@3 for drafts of 3" in refused.err


@pytest.mark.parametrize(
    ("scenario", "limit"),
    [
        ("kimi-k2 --gpu b200 --gpus 8 --parallel dp-ep", "vLLM ignores others under data parallelism"),
        ("qwen3.6-35b-a3b --gpu h200 --engine llamacpp", "one depth for all batches"),
        ("qwen3.6-35b-a3b --gpu h200 --engine sglang --drafter dspark", "with --sps-table, SGLang verifies less"),
        (
            "qwen3.6-35b-a3b --gpu h200 --engine trtllm --engine-version 1.2.1",
            "1.3.0rc9 is the first with others for mtp",
        ),
    ],
)
def test_what_an_engine_cannot_express_is_said_below_its_flags(scenario: str, limit: str) -> None:
    lines = run("plan", *scenario.split()).out.splitlines()
    flags = next(i for i, line in enumerate(lines) if " flags (for " in line)
    assert any(limit in line for line in lines[flags:])
    assert len(lines) <= 30


@pytest.mark.parametrize("more", [(), ("--explain",), ("--gpu-hour-price", "2.5"), ("--contexts", "1k,64k")])
def test_plans_fit_80_columns(more: tuple[str, ...]) -> None:
    for scenario in ("kimi-k2 --gpu b200 --gpus 8 --parallel dp-ep", "deepseek-v3 --gpu h200 --gpus 8 --engine trtllm"):
        lines = run("plan", *scenario.split(), *more).out.splitlines()
        copied = ("--speculative", "vllm ", "trtllm-", "python")  # flags and commands stay on one line
        wide = [line for line in lines if len(line.rstrip()) > 80 and not line.startswith(copied)]
        assert wide == []
        assert len(lines) <= 30 or more


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "acceptance"), [("gpt-oss-120b", "h100", "2", "0.8"), ("deepseek-v3", "h200", "16", "0.7")]
)
def test_the_flags_reach_as_far_as_sequences_fit(model: str, gpu: str, gpus: str, acceptance: str) -> None:
    """With the depths that they set, not with a deeper one that would be best at some batch."""
    given = ("--gpu", gpu, "--gpus", gpus, "--prices", "laws", "--acceptance", acceptance)
    plan = payload("plan", model, *given, "--json")
    assert plan["largest_batch"] > 512
    assert plan["schedule"][-1][1] == plan["largest_batch"]
    assert f"{plan['largest_batch']}, 0]]" in plan["config"]


def test_costs_have_a_currency() -> None:
    assert "$/Mtok" in run("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--gpu-hour-price", "2.5").out


def test_the_verdict_names_where_the_flags_lose() -> None:
    """One depth for 1,856 sequences that fit: beyond the engine's CUDA graphs it is slower than plain decoding."""
    arguments = ["plan", "kimi-k2", "--gpu", "b200", "--gpus", "8", "--parallel", "dp-ep"]
    result = payload(*arguments)
    ((first, last),) = result["loses_at_batches"]
    assert f"It loses at batch {first:,}–{last:,}: 0." in " ".join(result["verdict_details"])
    assert result["pays_at_batches"] == [[1, first - 1]]


def test_long_work_is_announced_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_PATIENCE_SECONDS", 0.05)
    for is_terminal, seconds, announced in ((True, 0.5, True), (True, 0.0, False), (False, 0.5, False)):
        monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
        with terminal.waiting("working on it"):
            time.sleep(seconds)
        shown = capsys.readouterr()
        assert ("working on it" in shown.err) is announced
        assert shown.out == ""


def test_debug_shows_the_traceback_of_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specmargin.cli import main as cli  # noqa: PLC0415

    def broken(arguments: list[str]) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(cli, "_dispatch", broken)
    monkeypatch.setattr(sys, "argv", ["specmargin", "plan"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 70
    assert "this is a bug (ZeroDivisionError: oops)" in capsys.readouterr().err
    monkeypatch.setenv("SPECMARGIN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()
