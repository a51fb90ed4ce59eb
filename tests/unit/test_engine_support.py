"""Which engines run where: defaults by GPU, and combinations that no one can run."""

from __future__ import annotations

import pytest

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import engine_of
from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.lookup import bundled_device, device_names
from specmargin.modes import ENGINES
from tests.command_line import ended, payload, run

MOE = "qwen3-30b-a3b"


def test_every_engine_has_a_statement_of_its_own() -> None:
    support = read_bundled("engine_support.toml")
    assert list(support) == list(ENGINES)
    assert all(entry["source"] for entry in support.values())
    assert all("elsewhere" in entry for name, entry in support.items() if name != "llamacpp")


@pytest.mark.parametrize("name", device_names())
def test_every_gpu_has_an_engine(name: str) -> None:
    assert "llamacpp" in engines_of(bundled_device(name))


@pytest.mark.parametrize(
    ("gpu", "engines"),
    [
        ("m4-max", ("llamacpp", "mlx")),
        ("gtx-1080-ti", ("llamacpp",)),
        ("v100", ("llamacpp",)),
        ("t4", ("vllm", "sglang", "llamacpp", "mlx")),
        ("h200", ENGINES),
        ("mi300x", ("vllm", "sglang", "llamacpp")),
        ("rx-7900-xtx", ("vllm", "llamacpp")),
        ("arc-pro-b60", ("vllm", "sglang", "llamacpp")),
    ],
)
def test_engines_by_gpu(gpu: str, engines: tuple[str, ...]) -> None:
    assert engines_of(bundled_device(gpu)) == engines
    assert engine_of(ScenarioRequest(model=MOE, gpu=gpu)).name == engines[0]


def test_the_default_engine_is_the_gpus() -> None:
    plan = payload("plan", MOE, "--gpu", "m4-max", "--weights", "q4_k_m", "--batch", "1")
    assert (plan["engine"], plan["options"]["engine"]) == ("llamacpp", "llamacpp")
    shown = run("plan", MOE, "--gpu", "m4-max", "--weights", "q4_k_m", "--explain").out
    assert "llama-server" in shown
    for word in ("CUDA", "measure vllm", "vllm serve"):
        assert word not in shown


REFUSED = {
    "--gpu m4-max --engine trtllm": "TensorRT-LLM does not run on Apple M4 Max (40-core GPU): it is for NVIDIA GPUs",
    "--gpu m4-max --engine vllm": "vLLM-Metal",
    "--gpu mi300x --engine trtllm": "use --engine vllm or --engine sglang or --engine llamacpp",
    "--gpu a100 --engine trtllm --weights fp8": "no fp8 matrix units, and TensorRT-LLM has no other kernels",
    "--gpu m4-max --graph-limit 512": "--graph-limit: there are no CUDA graphs on Apple M4 Max",
    "--gpu m4-max --ignore-graph-limit": "--ignore-graph-limit: there are no CUDA graphs on Apple M4 Max",
    "--gpu h200 --parallel dp-ep": "--parallel dp-ep: one GPU has nothing to be parallel with; add --gpus N",
    "--gpu h200 --gpus 2 --parallel dp-ep --engine llamacpp": "llama.cpp only splits a model; use --parallel tp",
    "--gpu h200 --engine trtllm --policy p.json": "--policy: there is no plug-in for TensorRT-LLM",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_no_one_can_run_is_refused(options: str) -> None:
    done = ended("plan", MOE, *options.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert REFUSED[options] in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gpu a100", "no fp8 matrix units on a100: vLLM multiplies fp8 weights in bf16 (Marlin)"),
        ("--gpu h200 --engine llamacpp", "llama.cpp has no fp8 weights (GGUF)"),
        ("--gpu m4-max --engine mlx", "MLX has no fp8 weights: name what you serve, such as --weights 8bit"),
    ],
)
def test_fp8_without_fp8_units_names_its_kernels(options: str, words: str) -> None:
    plan = payload("plan", MOE, "--weights", "fp8", "--batch", "1", *options.split())
    assert any(words in warning for warning in plan["warnings"])


@pytest.mark.parametrize("engine", ["sglang", "llamacpp"])
def test_a_draft_model_needs_the_targets_tokenizer(engine: str) -> None:
    asked = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "1", "--engine", engine, "--acceptance", "0.95")
    other = payload(*asked, "--drafter", "model:qwen3-0.6b")
    assert (other["config"], other["config_supported"]) == ("", False)
    assert "model:qwen3-0.6b has another tokenizer than qwen3.6-35b-a3b" in other["config_notes"][0]
    same = payload("plan", "qwen3-32b", *asked[2:], "--drafter", "model:qwen3-0.6b")
    assert same["config"] and same["config_supported"]


@pytest.mark.parametrize(
    ("engine", "drafter", "said"),
    [("sglang", "mtp", True), ("trtllm", "eagle", True), ("trtllm", "mtp", False), ("vllm", "mtp", False)],
)
def test_trees_are_said_to_be_unpriced(engine: str, drafter: str, said: bool) -> None:
    asked = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--batch", "1", "--engine", engine, "--drafter", drafter)
    assert ("(trees are not priced, only chains of draft tokens" in " ".join(run(*asked).out.split())) is said
    assert any("are not priced" in note for note in payload(*asked)["config_notes"]) is said


def test_fp8_with_fp8_units_warns_of_nothing() -> None:
    plan = payload("plan", MOE, "--weights", "fp8", "--batch", "1", "--gpu", "h200")
    assert not any("fp8 matrix units" in warning for warning in plan["warnings"])


@pytest.mark.parametrize(
    ("acceptance", "known"), [(None, 3), ("0.85,0.7,0.6,0.5", 4), ("length:2.6@3", 3), ("0.8", None)]
)
def test_drafts_beyond_what_acceptance_is_known_for_are_said(acceptance: str | None, known: int | None) -> None:
    """One value is meant for every depth; EAGLE's borrowed curve has three."""
    given = [] if acceptance is None else ["--acceptance", acceptance]
    plan = payload("plan", "qwen3-8b", "--gpu", "h200", *given)
    deepest = max(depth for _, _, depth in plan["schedule"])
    said = f"acceptance beyond depth {known} is extrapolated; drafts go to {deepest}"
    assert deepest > 4 and plan["warnings"] == ([] if known is None else [said])
    assert payload("plan", "qwen3-8b", "--gpu", "h200", *given, "--depth", "3")["warnings"] == []
