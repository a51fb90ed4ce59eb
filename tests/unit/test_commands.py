"""Commands that serve a plan and check it: only options that the engines declare, and the numbers of the plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from specmargin.formats import ENGINES
from specmargin.hardware.layout import Layout
from specmargin.verbs.plan.commands import check_json, serve_json, served_model
from specmargin.verbs.plan.drafter_plan import drafter_plans, row_and_range
from specmargin.verbs.plan.request_schema import PlanRequest
from tests.sglang_source import source

# tensorrt_llm/commands/serve.py and serve/scripts/benchmark_serving.py (1.3), llama.cpp common/arg.cpp (August 2026)
# and tools/server/bench/speed-bench/speed_bench.py.
DECLARED = {
    "trtllm": {"--tp_size", "--ep_size", "--extra_llm_api_options", "--model", "--dataset-name", "--dataset-path"}
    | {"--num-prompts", "--max-concurrency", "--request-rate"},
    "llamacpp": {"--spec-type", "--spec-draft-n-max", "--spec-draft-p-min", "--spec-draft-model", "--url", "--bench"}
    | {"--osl", "--concurrency", "--spec-ngram-simple-size-m"},
    # mlx_vlm/server/cli.py (August 2026), mlx_lm/server.py (0.32) and benchmarks/server_benchmark.py of mlx-lm
    "mlx": {"--model", "--draft-model", "--draft-kind", "--draft-block-size", "--num-draft-tokens"}
    | {"--url", "--concurrency", "--max-tokens"},
}


def planned(**changes: object):  # type: ignore[no-untyped-def]
    fields = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws", **changes}
    return drafter_plans(PlanRequest.model_validate(fields))[0]


def commands(answer, batch: int = 16) -> tuple[dict[str, Any], dict[str, Any]]:  # type: ignore[no-untyped-def]
    return serve_json(answer), check_json(answer, *row_and_range(answer, batch))


def flags(command: object) -> set[str]:
    return set(re.findall(r"(?<!\S)--[a-z][\w-]*", str(command)))


SIZES: dict[tuple[int, str], dict[str, Any]] = {
    (1, "tp"): {},
    (8, "tp"): {"tp": 8},
    (8, "ep"): {"tp": 8, "ep": True},
    (8, "dp-ep"): {"dp": 8, "ep": True},
}
LAYOUTS = list(SIZES)


@pytest.mark.parametrize(
    ("engine", "gpus", "parallel"),
    [(name, *at) for name, form in ENGINES.items() for at in LAYOUTS if form.refuses(Layout.of(**SIZES[at])) is None],
)
def test_commands_are_one_line_with_the_flags_of_the_plan(engine: str, gpus: int, parallel: str) -> None:
    answer = planned(engine=engine, gpus=gpus, parallel=parallel)
    serve, check = commands(answer)
    for command in (serve["command"], check["command"]):
        assert "\n" not in str(command) and shlex.split(str(command))
    everything = f"{serve['command']}\n{serve['file_text']}"
    assert answer.config.text in everything
    assert ("8" in str(serve["command"])) or gpus == 1
    if engine in DECLARED:
        assert flags(serve["command"]) | flags(check["command"]) <= DECLARED[engine]


@pytest.mark.parametrize("parallel", ["tp", "dp-ep"])
@pytest.mark.parametrize("qps", [None, 2.0])
def test_sglang_declares_every_option(parallel: str, qps: float | None) -> None:
    load = {} if qps is None else {"qps": qps, "isl": 500, "osl": 100}
    changes = {"weights": "fp8", "kv_cache": "fp8", "memory_utilization": 0.8}
    serve, check = commands(planned(engine="sglang", gpus=2, parallel=parallel, **changes, **load))
    server = "\n".join(path.read_text() for path in _sources(source("srt/server_args.py")))
    benchmark = source("benchmark/serving.py").read_text()
    for flag in flags(serve["command"]):
        field = flag[2:].replace("-", "_")
        assert f'"{flag}"' in server or re.search(rf"\b{field}: A\[", server), flag
    for flag in flags(check["command"]):
        assert f'"{flag}"' in benchmark, flag
    assert '"speed-bench"' in benchmark


def _sources(server_args: Path) -> list[Path]:
    return [*sorted((server_args.parent / "arg_groups").rglob("*.py")), server_args]


def test_the_prediction_is_the_plans() -> None:
    answer = planned()
    row, sure = row_and_range(answer, 16)
    _, check = commands(answer)
    assert check["metric"] == "Median TPOT (ms)"
    assert check["predicted"] == pytest.approx(row.tpot_seconds * 1e3)
    assert check["ratio"] == pytest.approx(row.speedup)
    assert (check["ratio_low"], check["ratio_high"]) == pytest.approx((sure.low, sure.high))
    assert "--max-concurrency 16" in str(check["command"])
    _, llamacpp = commands(planned(engine="llamacpp"))
    assert llamacpp["metric"] == "avg_pred_t/s" and llamacpp["predicted"] > llamacpp["predicted_without_speculation"]


def test_at_a_rate_the_range_of_the_benchmark_is_that_of_the_verdict() -> None:
    answer = planned(model="qwen3-30b-a3b", drafter="eagle", qps=4.0, isl=200, osl=50)
    check = check_json(answer, *answer.headline)
    shown = (answer.service.speedup, *answer.service_range)
    assert (check["ratio"], check["ratio_low"], check["ratio_high"]) == pytest.approx(shown)


@pytest.mark.parametrize(("engine", "noted"), [("vllm", True), ("sglang", True), ("trtllm", False)])
def test_a_benchmark_of_equal_lengths_is_said_to_be_one(engine: str, noted: bool) -> None:
    """The prompts for TensorRT-LLM are the reader's own."""
    load = {"engine": engine, "concurrency": 4, "isl": 500, "osl": 20}
    _, varied = commands(planned(**load))
    _, equal = commands(planned(**load, range_ratio=0))
    _, decoding = commands(planned(engine=engine))
    assert (varied["note"] is not None) is noted
    assert equal["note"] is None and decoding["note"] is None
    assert "range-ratio" not in varied["command"]  # an option for generated prompts, ignored for SPEED-Bench


def test_ranges_at_other_batches_are_those_of_a_plan_for_them() -> None:
    alone = planned(batch=(20,))
    row, sure = row_and_range(planned(), 20)
    assert row.speedup == pytest.approx(alone.plan.rows[0].speedup)
    assert (sure.low, sure.high) == pytest.approx((alone.ranges[0].low, alone.ranges[0].high))


def test_nothing_to_configure_is_served_plainly() -> None:
    answer = planned(acceptance="0.01")
    serve, _ = commands(answer)
    assert serve["command"] == "vllm serve Qwen/Qwen3.6-35B-A3B"


@pytest.mark.parametrize(
    ("model", "weights", "engine", "expected"),
    [
        ("qwen3-0.6b", None, "vllm", ("Qwen/Qwen3-0.6B", None)),
        ("qwen3-0.6b", "fp8-block", "vllm", ("Qwen/Qwen3-0.6B-FP8", None)),
        ("qwen3.6-35b-a3b", "fp8", "vllm", ("Qwen/Qwen3.6-35B-A3B", "fp8")),
        ("qwen3-0.6b", "nvfp4", "trtllm", ("<Qwen/Qwen3-0.6B in nvfp4>", None)),
        ("some-org/some-model", None, "sglang", ("some-org/some-model", None)),
    ],
)
def test_what_the_engine_loads(model: str, weights: str | None, engine: str, expected: tuple[str, str | None]) -> None:
    assert served_model(model, weights, engine) == expected


def test_a_model_on_this_machine_is_named_without_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert served_model(str(folder), None, "vllm") == ("mine", None)
    assert served_model(str(folder / "config.json"), None, "vllm") == ("mine", None)


@pytest.mark.parametrize(
    ("engine", "layout", "said", "noted"),
    [
        ("vllm", {"dp": 16, "ep": True}, "--data-parallel-size-local 8 --data-parallel-address $HEAD", "$((8 * NODE))"),
        ("vllm", {"tp": 16}, "--nnodes 2 --node-rank 0 --master-addr $HEAD", "--node-rank $NODE --headless"),
        ("sglang", {"dp": 16, "ep": True}, "--nnodes 2 --node-rank $NODE --dist-init-addr $HEAD:5000", "on every node"),
        (
            "trtllm",
            {"dp": 16, "ep": True},
            "srun --nodes 2 --ntasks 16 --mpi=pmix trtllm-llmapi-launch trtllm-serve",
            "",
        ),
    ],
)
def test_two_nodes_are_started_together(engine: str, layout: dict[str, Any], said: str, noted: str) -> None:
    serve = serve_json(planned(model="deepseek-v3", engine=engine, gpus=16, **layout))
    assert said in serve["command"]
    assert noted in " ".join(serve["notes"])
    one_node = serve_json(
        planned(model="deepseek-v3", engine=engine, gpus=8, **{name: 8 for name in layout if name != "ep"})
    )
    assert "node" not in one_node["command"] and not one_node["notes"]
