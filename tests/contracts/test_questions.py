"""Questions of a working engineer, as commands, with what a good answer must contain."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import specmargin
from specmargin.catalog.lookup import bundled_model
from specmargin.cli.main import run
from tests.verdict_form import RANGE

VLLM = r"--speculative-config '\{.*\}'"


def ask(command: str) -> str:
    out = io.StringIO()
    verb, *arguments = command.split()
    with contextlib.redirect_stdout(out):
        run(verb, arguments)
    return out.getvalue()


def asked(command: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(f"{command} --json"))
    return answer


QUESTIONS = {
    "DeepSeek-V3.2 on 8 H200 at concurrency 64, 4k in and 1k out": (
        "plan deepseek-v3.2 --gpu h200 --gpus 8 --parallel ep --concurrency 64 --isl 4096 --osl 1024",
        (r"^(Yes|No|Uncertain): .* at concurrency 64 \(80% range.* tok/s\.", r"per GPU", r"TTFT", VLLM, RANGE),
    ),
    "gpt-oss-120b with EAGLE-3 on one H100 at 1 to 8": (
        "plan gpt-oss-120b --gpu h100 --drafter eagle --batch 1,2,4,8",
        (r"\n +8 ", VLLM, RANGE),
    ),
    "Qwen3-235B FP8 on 4 H100 with experts spread": (
        "plan Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --gpu h100 --gpus 4 --parallel ep --drafter eagle",
        (r"4 × h100", r"experts|eagle", VLLM),
    ),
    "Kimi-K2 NVFP4 on 8 B200 dp-ep, and where it loses": (
        "plan kimi-k2 --weights nvfp4 --gpu b200 --gpus 8 --parallel dp-ep",
        (r"8 × b200", r"^Yes|^Uncertain|^Only", r"over all GPUs"),
    ),
    "Llama-3.3-70B with a 1B draft on 2 A100": (
        "plan meta-llama/Llama-3.3-70B-Instruct --gpu a100 --gpus 2 --drafter model:llama-3.2-1b",
        (r"2 × a100", r"draft", VLLM),
    ),
    "GLM-4.5-Air on one RTX PRO 6000": (
        "plan glm-4.5-air --weights nvfp4 --gpu rtx-pro-6000",
        (r"glm-4\.5-air", r"rtx-pro-6000"),
    ),
    "a Mac Studio with llama.cpp": (
        "plan qwen3-30b-a3b --gpu m3-ultra --engine llamacpp --weights q4_k_m --drafter eagle",
        (r"llama\.cpp", r"m3-ultra|M3 Ultra"),
    ),
    "my accept length is 2.4 at K = 3": (
        "plan qwen3-30b-a3b --gpu h200 --drafter eagle --acceptance length:2.4@3 --batch 1,16,64 --explain",
        (r"1\.40 accepted drafts per round, 0\.66 per token", r"accept length", r"break-even"),
    ),
    "64k contexts": (
        "plan qwen3.6-35b-a3b --gpu h200 --contexts 1k,8k,64k",
        (r"by context, with the same flags", r"65,536|64,000"),
    ),
    "cost at $2.5 per GPU-hour": (
        "plan qwen3-30b-a3b --gpu h100 --drafter eagle --gpu-hour-price 2.5",
        (r"\$/Mtok plain \$", r"0\.\d{3} +0\.\d{3}"),
    ),
    "flags for SGLang": (
        "plan qwen3-30b-a3b --gpu h200 --drafter eagle --engine sglang",
        (r"--speculative-", r"SGLang"),
    ),
    "flags for TensorRT-LLM": (
        "plan deepseek-v3 --gpu b200 --gpus 8 --parallel ep --engine trtllm",
        (r"decoding_type", r"max_draft_len", r"TensorRT-LLM"),
    ),
    "what does verification cost at all": (
        "plan qwen3.6-35b-a3b --gpu h200 --batch 1,16,64 --compare unverified",
        (r"upper bound", r"never recommended"),
    ),
    "what does a step cost, and why": (
        "price deepseek-v4-flash --gpu b200 --batch 8 --depth 2",
        (r"routed experts", r"one more position", r"unverified"),
    ),
    "one more sequence or one more draft token": (
        "duel qwen3.6-35b-a3b --gpu h100 --batch 1 --alpha 0.9",
        (r"wins", r"above an acceptance of|does not win"),
    ),
    "5 requests per second for ten minutes under three policies": (
        "simulate qwen3.6-35b-a3b --gpu h200 --qps 5 --requests 3000 --policy controller,fixed:2,none",
        (r"3,000 of 3,000 requests served|3000 of 3000 requests served", r"controller", r"fixed:2", r"TTFT"),
    ),
    "how sure are you?": (
        "plan mixtral-8x7b --gpu h100 --gpus 2 --drafter eagle",
        (RANGE, r"Largest unknown: \w+ \(\w+\); run specmargin (profile|measure)"),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_has_what_the_question_needs(question: str) -> None:
    command, needed = QUESTIONS[question]
    text = ask(command)
    flat = re.sub(r"\s+", " ", text)
    for pattern in needed:
        assert re.search(pattern, text) or re.search(pattern, flat), f"{pattern!r} is missing in:\n{text}"


def test_a_fine_tune_folder_with_its_quantization(tmp_path: Path) -> None:
    entry = Path(specmargin.__file__).parent / "catalog" / "models" / "qwen3-30b-a3b.json"
    config = json.loads(entry.read_text())["config"]
    quantized = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    plan = asked(f"plan {tmp_path} --gpu h100 --drafter eagle --batch 1,8")
    assert "fp8" in json.dumps(plan["weights"])
    assert plan["rows"][0]["speedup"] > 0


def test_three_lines_of_python_say_what_the_command_line_says() -> None:
    plan = specmargin.plan("qwen3.6-35b-a3b", gpu="h200")
    theirs = asked("plan qwen3.6-35b-a3b --gpu h200")
    assert plan.to_frame().height == len(theirs["rows"])
    assert [row["speedup"] for row in plan.to_dict()["rows"]] == [row["speedup"] for row in theirs["rows"]]
    assert bundled_model("qwen3.6-35b-a3b").is_moe


def test_a_csv(tmp_path: Path) -> None:
    target = tmp_path / "plan.csv"
    ask(f"plan qwen3-30b-a3b --gpu h200 --drafter eagle --batch 1,8 -o {target}")
    header, *rows = target.read_text().splitlines()
    assert {"batch", "depth", "speedup"} <= set(header.split(","))
    assert len(rows) == 2
