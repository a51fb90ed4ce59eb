"""Several GPUs in llama.cpp: layers one GPU after another by default, every tensor split where that is asked for.

`--split-mode layer` is the default, and one token gets no parallelism from it (docs/multi-gpu.md, llama.cpp pull
request 22729). Measured: 14.8 tok/s by layers and 19.8 by tensors for a 27B model on an RTX 4070 and an RTX 3060
(github.com/GenerelSchwerz/llama.cpp/pull/58).
"""

from __future__ import annotations

import pytest

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import pricer_of
from specmargin.decisions.pricer import Pricer
from specmargin.step import Step
from tests.command_line import ended, run

MODEL = {"model": "qwen3.6-27b", "gpu": "rtx-3090", "weights": "q4_k_m", "engine": "llamacpp"}


def pricer(**changes: object) -> Pricer:
    return pricer_of(ScenarioRequest.model_validate({**MODEL, **changes}))


def seconds(of: Pricer) -> float:
    return float(of.verify(Step.uniform(batch=1, context=1024.0)).total_seconds)


def test_a_second_gpu_adds_memory_but_no_speed() -> None:
    one, two = pricer(), pricer(gpus=2)
    assert seconds(two) == pytest.approx(seconds(one))
    assert two.memory.usable_bytes == pytest.approx(2.0 * one.memory.usable_bytes)
    assert two.largest_batch(1) > 2 * one.largest_batch(1)


def test_split_tensors_are_faster() -> None:
    layers, tensors = pricer(gpus=2), pricer(tp=2, gpus=2)
    assert 1.1 < seconds(layers) / seconds(tensors) < 2.0


def test_the_command_says_which() -> None:
    words = [
        "plan",
        "qwen3.6-27b",
        "--gpu",
        "rtx-3090",
        "--weights",
        "q4_k_m",
        "--batch",
        "1",
        "--explain",
        "--gpus",
        "2",
    ]
    layers, tensors = run(*words).out, run(*words, "--tp", "2").out
    assert "layers in turn" in layers and "-sm tensor" not in layers
    assert "-sm tensor" in tensors


def test_what_does_not_fit_names_all_memory() -> None:
    done = ended("plan", "gpt-oss-120b", "--gpu", "rtx-3090", "--gpus", "2", "--engine", "llamacpp")
    assert "2 × NVIDIA GeForce RTX 3090 have 48 GB to use" in done.err
