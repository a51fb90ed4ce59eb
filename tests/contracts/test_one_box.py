"""What owners of one machine type first: numbers near published ones, and nothing that they cannot act on."""

from __future__ import annotations

import json

import pytest

from tests.command_line import run

#: Command, and plain tokens per second that others published for it or for what is nearest to it.
ASKED = {
    # 25.6 with all experts on a Core i9-14900K (gokawiil.com/article/74814); here 9 of 36 layers are on the GPU
    "gpt-oss-120b --gpu rtx-3090 --cpu ryzen-9950x --host-memory 64": (22.0, 50.0),
    # a sanity range: every published figure that was found is of a source that is held out
    "qwen3-30b-a3b --gpu rtx-4090 --weights q4_k_m": (130.0, 260.0),
    # 80 to 130 in llama.cpp and MLX (issue 33); 113.3 in MLX with 4 bits (mlx-lm, BENCHMARKS.md)
    "qwen3-30b-a3b --gpu m4-max --weights q4_k_m": (70.0, 130.0),
    "qwen3-30b-a3b --gpu m4-max --weights 4bit": (90.0, 140.0),
    # a sanity range: no published figure was found
    "qwen3-next-80b-a3b --gpu rtx-3090 --gpus 2 --weights q4_k_m --cpu ryzen-9950x": (60.0, 200.0),
    # 51.8 tok/s for gpt-oss-120b's 5.1 billion active weights (kyuz0/amd-strix-halo-toolboxes), 12 billion here
    "glm-4.5-air --gpu strix-halo --weights q4_k_m": (15.0, 30.0),
}
ENGINES = {"4bit": "mlx"}  # all others: llama.cpp


@pytest.mark.parametrize("question", ASKED)
def test_the_first_question_of_an_owner(question: str) -> None:
    plan = json.loads(run("plan", *question.split(), "--batch", "1", "--json").out)
    low, high = ASKED[question]
    assert low < plan["rows"][0]["no_spec_tokens_per_second"] < high
    assert plan["engine"] == ENGINES.get(question.rsplit(maxsplit=1)[-1], "llamacpp")
    assert plan["config_supported"] is True


@pytest.mark.parametrize("question", ASKED)
def test_nothing_is_said_that_an_owner_cannot_act_on(question: str) -> None:
    shown = run("plan", *question.split(), "--batch", "1")
    for words in ("no measured", "measure gpu", "vllm", "unknown", "warning"):
        assert words not in (shown.out + shown.err).lower()


def test_experts_in_main_memory_are_in_the_command() -> None:
    question = "gpt-oss-120b --gpu rtx-3090 --cpu ryzen-9950x --host-memory 64 --batch 1 --explain"
    assert " --n-cpu-moe 2" in run("plan", *question.split()).out
