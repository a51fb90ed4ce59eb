"""Experts in main memory: requests, refusals, links and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import specmargin
from specmargin.answers.request_schema import ScenarioRequest, read_request
from specmargin.answers.scenarios import scenario_of, scenarios_of
from specmargin.catalog.entries import template
from specmargin.catalog.lookup import bundled_device, find_device
from specmargin.catalog.processors import as_device, bundled_processors, find_processor
from specmargin.cli.main import run
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError
from specmargin.hardware.link import host_link
from specmargin.prices.work import Component
from specmargin.step import Step

MODEL = "qwen3-30b-a3b"


def scenario(**options: object) -> Scenario:
    asked = {"model": MODEL, "gpu": "rtx-4090", "engine": "llamacpp", "weights": "q4_k_m", "drafter": "ngram"}
    return scenario_of(ScenarioRequest.model_validate(asked | options))[1]


def lines(of: Scenario, positions: int = 1) -> dict[Component, float]:
    price = Pricer(of).verify(Step.uniform(batch=1, depth=positions - 1, context=1024))
    return {line.component: float(line.seconds) for line in price.components}


# --- where experts are ---


def test_layers_are_counted_as_llamacpp_counts_them() -> None:
    """GLM-4.5-Air's first layer has no experts: --n-cpu-moe 1 moves none, 11 moves ten layers."""
    asked = {"model": "glm-4.5-air", "gpu": "4090", "engine": "llamacpp", "weights": "q4_k_m", "drafter": "ngram"}
    one, eleven = (scenario_of(ScenarioRequest.model_validate(asked | {"n_cpu_moe": n}))[1] for n in (1, 11))
    assert one.offload is None
    assert eleven.offload is not None
    assert (eleven.offload.layers, eleven.offload.first_layers) == (10, 11)


def test_a_processor_without_a_placement_moves_the_fewest_layers_that_fit() -> None:
    assert scenario(cpu="9950x").offload is None  # Q4_K_M fits
    tight = scenario(cpu="9950x", weights="q8_0")
    assert tight.offload is not None and tight.offload.chosen
    Pricer(tight).check_memory()
    fewer = scenario(weights="q8_0", n_cpu_moe=tight.offload.first_layers - 1)
    with pytest.raises(InputError, match=f"--n-cpu-moe {tight.offload.first_layers} "):
        Pricer(fewer).check_memory()


def test_a_model_that_does_not_fit_names_the_layers() -> None:
    with pytest.raises(InputError, match=r"gpt-oss-120b does not fit.*--n-cpu-moe \d+ \(with --cpu"):
        specmargin.plan("gpt-oss-120b", gpu="rtx-3090", engine="llamacpp")
    with pytest.raises(InputError, match="try --gpus"):
        specmargin.plan("gpt-oss-120b", gpu="rtx-3090", engine="vllm")


def test_experts_are_priced_where_they_are() -> None:
    half, everything = lines(scenario(n_cpu_moe=24)), lines(scenario(n_cpu_moe=48))
    assert {Component.ROUTED_EXPERTS, Component.HOST_EXPERTS, Component.HOST_LINK} <= half.keys()
    assert Component.ROUTED_EXPERTS not in everything
    assert everything[Component.HOST_EXPERTS] == pytest.approx(2 * half[Component.HOST_EXPERTS])


def test_from_32_positions_on_llamacpp_copies_the_experts_that_are_used() -> None:
    """GGML_OP_OFFLOAD_MIN_BATCH: ggml/src/ggml-cuda/ggml-cuda.cu:5510."""
    of = scenario(n_cpu_moe=48)
    assert of.offload is not None
    step = Step.uniform(batch=1, depth=31, context=1024)
    works = {work.component: work for work in Pricer(of).works(step)}
    moved = float(works[Component.HOST_EXPERTS].bytes) * 48 / of.offload.link.bytes_per_second
    assert lines(of, 32)[Component.HOST_EXPERTS] > moved
    assert lines(of, 31)[Component.HOST_EXPERTS] != pytest.approx(moved, rel=0.1)


def test_kept_experts_overlap_with_the_processor() -> None:
    asked = {"engine": "sglang", "weights": "int4-g128", "experts_on": "cpu", "cpu": "epyc-9654"}
    without, kept = (lines(scenario(**asked, gpu_experts=n)) for n in (0, 64))
    assert kept[Component.HOST_EXPERTS] + kept[Component.ROUTED_EXPERTS] < without[Component.HOST_EXPERTS]


def test_a_uniform_profile_hits_in_proportion() -> None:
    asked = {"engine": "sglang", "weights": "int4-g128", "experts_on": "cpu", "routing": "uniform"}
    of = scenario(**asked, gpu_experts=32)
    load = Pricer(of).count_experts(of.architecture.pools, Step.uniform(batch=4))
    assert np.allclose(load.kept_pairs_by_group[0] / load.pairs_by_group[0], 32 / 128)


# --- refused ---


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "vllm", "experts_on": "cpu"}, "vLLM does not compute experts on the processor; use --engine"),
        ({"engine": "sglang", "weights": None, "n_cpu_moe": 4}, "SGLang keeps the experts of all layers"),
        ({"experts_on": "cpu", "gpu_experts": 8}, "llama.cpp keeps whole layers on the GPU"),
        ({"gpu_experts": 8}, "--gpu-experts 8: only with --experts-on cpu"),
        ({"experts_on": "cpu", "n_cpu_moe": 4}, "give one of the two|give one"),
        ({"model": "qwen3-8b", "n_cpu_moe": 4}, "qwen3-8b has no experts; leave it out"),
        ({"gpu": "strix-halo", "n_cpu_moe": 4}, "is main memory already; leave it out"),
        ({"gpu": "m4-max", "experts_on": "cpu"}, "is main memory already; leave it out"),
        ({"gpu": "9950x", "cpu": "9950x"}, "--cpu: AMD Ryzen 9 9950X is the only processor here"),
        ({"weights": "bf16", "n_cpu_moe": 48, "host_memory": 20}, "use --host-memory 62 if it has as much"),
        ({"n_cpu_moe": 4, "cpu": "ryzen-9999"}, "--cpu ryzen-9999: not a known processor"),
        ({"n_cpu_moe": 4, "pcie": "6x16"}, "--pcie 6x16: give generation"),
        ({"gpu": "9950x", "engine": "vllm"}, "use --engine llamacpp"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        scenario(**options)
    assert "\n" not in str(refusal.value)


def test_wrong_numbers_name_the_option() -> None:
    for field, value in (("n_cpu_moe", -1), ("host_memory", 0), ("gpu_experts", -2)):
        with pytest.raises(InputError, match=field):
            read_request(ScenarioRequest, {"model": MODEL, "gpu": "rtx-4090", field: value})


# --- processors and links ---


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    text = template("processor", "ryzen-9950x")
    path.write_text(text)
    assert find_processor(str(path)).cores == 16
    assert find_device(str(path)).processor == find_processor(str(path))
    slow = path.with_name("slow.toml")
    slow.write_text(text + "\nmeasured_bytes_per_second = 20e9\n")
    assert lines(scenario(n_cpu_moe=48, cpu=str(slow))) != lines(scenario(n_cpu_moe=48, cpu=str(path)))
    path.write_text(text.replace("cores = 16", 'cores = "many"'))
    with pytest.raises(InputError, match=r"box\.toml: cores"):
        find_processor(str(path))
    path.write_text(text.replace("avx512-vnni", "avx1024"))
    with pytest.raises(InputError, match=r"box\.toml: instructions"):
        find_processor(str(path))


@pytest.mark.parametrize("name", sorted(bundled_processors()))
def test_every_processor_prices_a_model_alone_and_beside_a_gpu(name: str) -> None:
    processor = find_processor(name)
    assert find_device(name).processor == processor == as_device(processor).processor
    assert all(value > 0 for value in lines(scenario(gpu=name)).values())
    assert lines(scenario(n_cpu_moe=48, cpu=name))[Component.HOST_EXPERTS] > 0


def test_names_as_people_type_them() -> None:
    for given, name in (("14900K", "i9-14900k"), ("Intel Core i9-14900K", "i9-14900k"), ("EPYC 9654", "epyc-9654")):
        assert find_processor(given).name == name
    assert find_device("Ryzen 9 7950X").name == "ryzen-7950x"
    assert find_device("AMD Ryzen AI Max+ 395").processor is None  # its GPU; the processor is strix-halo-cpu


def test_the_older_of_two_generations_counts() -> None:
    old, new = find_processor("5950x"), find_processor("9950x")
    assert host_link(bundled_device("rtx-5090"), new, None).bytes_per_second == 56.3e9
    assert host_link(bundled_device("rtx-5090"), old, None).bytes_per_second == 25e9
    assert host_link(bundled_device("rtx-4090"), new, None).bytes_per_second == 25e9
    assert host_link(bundled_device("rtx-4090"), new, "4x8").bytes_per_second == 12.5e9


# --- what is said ---


def test_explain_and_json_show_distinct_experts(capsys: pytest.CaptureFixture[str]) -> None:
    words = [MODEL, "--gpu", "rtx-4090", "--engine", "llamacpp", "--n-cpu-moe", "40", "--cpu", "9950x", "--batch", "1"]
    assert run("plan", [*words, "--weights", "q4_k_m", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "experts in main memory, read per step at batch 1" in shown
    assert "experts of 40 of 48 MoE layers" in shown
    assert run("plan", [*words, "--weights", "q4_k_m", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["main_memory"]
    assert (said["processor"], said["layers"], said["n_cpu_moe"]) == ("ryzen-9950x", 40, 40)
    read = [entry["read_bytes"] for entry in said["by_depth"]]
    assert read == sorted(read) and read[-1] > 1.5 * read[0]


def test_ranges_include_the_processor() -> None:
    answer = specmargin.plan(MODEL, gpu="rtx-4090", engine="llamacpp", weights="q4_k_m", n_cpu_moe=48, cpu="9950x")
    inputs = answer.values()["inputs"]
    parts = [part["name"] for entry in inputs for part in entry["parts"]]
    assert "experts on cpu" in parts


def test_all_drafters_share_one_placement() -> None:
    asked = {"model": MODEL, "gpu": "rtx-3090", "engine": "llamacpp", "cpu": "9950x", "drafter": "all"}
    found = scenarios_of(ScenarioRequest.model_validate(asked))
    assert len({each.offload for _, each in found}) == 1


def test_servers_are_started_with_the_placement(capsys: pytest.CaptureFixture[str]) -> None:
    words = [MODEL, "--gpu", "rtx-4090", "--cpu", "9950x", "--batch", "1", "--json"]
    commands = []
    for options in (
        ["--engine", "llamacpp", "--weights", "q4_k_m", "--n-cpu-moe", "40"],
        ["--engine", "sglang", "--weights", "int4-g128", "--experts-on", "cpu", "--gpu-experts", "8"],
    ):
        assert run("plan", [*words, *options]) == 0
        commands.append(json.loads(capsys.readouterr().out)["serve"]["command"])
    assert "-ngl all --n-cpu-moe 40" in commands[0]
    assert "--kt-cpuinfer 16 --kt-num-gpu-experts 8" in commands[1]
    assert run("plan", [MODEL, "--gpu", "9950x", "--weights", "q4_k_m", "--batch", "1", "--json"]) == 0
    assert "-ngl" not in json.loads(capsys.readouterr().out)["serve"]["command"]
