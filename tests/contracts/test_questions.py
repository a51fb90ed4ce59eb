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
from specmargin.errors import ParallelismError
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


ANSWER = r"^(Yes|Mostly yes|Only if|No|Uncertain|Not yet)\b[^:\n]*: "
TREES = r"trees are not priced, only chains of draft tokens"
LLAMA = r"llama\.cpp flags .*--spec-type draft-\w+ .*--spec-draft-n-max \d"

#: What runs where.
MACHINES = {
    "gpt-oss-20b with llama.cpp on a 4090": (
        "plan gpt-oss-20b --gpu rtx-4090 --engine llamacpp --drafter eagle",
        (ANSWER, RANGE, r"^Draft( to try)?: \d+ tokens?", LLAMA, r"one depth for all batches"),
    ),
    "DeepSeek-V3.2 with DP attention and EP on 8 B200 in SGLang": (
        "plan deepseek-v3.2 --gpu b200 --gpus 8 --parallel dp-ep --engine sglang",
        (
            ANSWER,
            RANGE,
            r"8 × b200 \(dp-ep\)",
            r"--speculative-algorithm EAGLE --speculative-num-steps \d",
            r"one depth",
        ),
    ),
    "topk 1 or 4": (
        "plan deepseek-v3 --gpu h200 --gpus 8 --engine sglang --batch 1,8",
        (r"--speculative-eagle-topk 1 ", TREES),
    ),
    "the YAML of TensorRT-LLM for Kimi-K2": (
        "plan kimi-k2 --gpu b200 --gpus 8 --engine trtllm --drafter eagle --batch 1,8,64",
        (
            ANSWER,
            r"decoding_type: Eagle3",
            r"max_draft_len: \d",
            r"draft_len_schedule: \{\d+: \d",
            TREES,
            r"1\.3\.0rc8",
        ),
    ),
    "an M4 Max, whatever runs there": (
        "plan qwen3-30b-a3b --gpu m4-max --weights q4_k_m",
        (
            ANSWER,
            r"Apple M4 Max",
            r"llama\.cpp",
            r"^Largest uncertainty: .*; narrow it with specmargin measure llamacpp\.",
        ),
    ),
    "the batch from which on Mixtral on A100s should not speculate": (
        "plan mixtral-8x7b --gpu a100 --gpus 2 --drafter eagle",
        (ANSWER, r"2 × a100", r"num_speculative_tokens_per_batch_size.*\[\d+, \d+, 0\]\]"),
    ),
    "contexts of 64k with DeepSeek-V4-Flash": (
        "plan deepseek-v4-flash --gpu h200 --gpus 4 --context 64k",
        (ANSWER, RANGE, r"context 65,536", VLLM),
    ),
    "Qwen3-Next FP8 at concurrency 8, on the two H100 that it needs": (
        "plan qwen3-next-80b-a3b --weights fp8 --gpu h100 --gpus 2 --concurrency 8 --isl 1000 --osl 300",
        (ANSWER, r"at concurrency 8", r"2 × h100", r"TTFT", VLLM),
    ),
}

QUESTIONS = MACHINES | {
    "DeepSeek-V3.2 on 8 H200 at concurrency 64, 4k in and 1k out": (
        "plan deepseek-v3.2 --gpu h200 --gpus 8 --parallel ep --concurrency 64 --isl 4096 --osl 1024",
        (r"^(Yes|No|Uncertain): .* at concurrency 64 with mtp, likely ", r"per GPU", r"TTFT", VLLM, RANGE),
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
        (r"glm-4\.5-air", r"RTX PRO 6000"),
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
    "three GPUs in one table, with what each costs": (
        "plan qwen3.6-35b-a3b --gpu h100,h200,b200 --gpu-hour-price h100=2.5,h200=3.5,b200=5",
        (
            r"^Cheapest: \w+, \$0\.\d{3} per million tokens at batch 16",
            r"gpu +batch +draft +speed-up +80% range +tok/s +ms/token +\$/Mtok +plain \$",
            r"\nh100 +16 +\(?\d",
            r"\nh200 +16 +\d +\d\.\d\d× \d\.\d\d–\d\.\d\d",
            r"\nb200 +16 +\d",
            r"h100 at batch 16 \(parentheses\): 2 sequences fit with drafts of 4",
        ),
    ),
    "four H100 or eight H200 for DeepSeek-V3": (
        "plan deepseek-v3 --gpu 4xh100,8xh200:ep,8xb200:ep --batch 64",
        (r"4 × h100: deepseek-v3 does not fit", r"\n8 × h200 ep +64 +\d", r"Fastest per GPU: 8 × b200 ep"),
    ),
    "cost for GLM-4.5-Air at $3": (
        "plan glm-4.5-air --gpu h100 --gpus 4 --gpu-hour-price 3 --batch 8,64",
        (r"\$/Mtok plain \$", r"\n +64 +\d .* \d\.\d{3} +\d\.\d{3}\n"),
    ),
    "bytes that drafts cost on an H100": (
        "plan qwen3.6-35b-a3b --gpu h100 --explain",
        (
            r"memory of each GPU, at a context of 1,024",
            r"recurrent states +64\.4 MB +321\.9 MB \+257\.6 MB \(5\.0×\)",
            r"one sequence +\d+\.\d MB +\d+\.\d MB \+\d+\.\d MB \(4\.0×\)",
            r"sequences that fit +31 +2 +-29",
        ),
    ),
    "20 requests per second with a target of 50 ms": (
        "plan qwen3-30b-a3b --gpu h200 --qps 20 --isl 1k --osl 300 --tpot-slo 50",
        (
            r"^(Yes|Uncertain): .*20 requests/s",
            r"likely \d\.\d\d–\d\.\d\d×",
            r"20 requests/s of 1,024 input and 300 output tokens",
            r"no speculation +6,000 .*\nwith these flags +6,000 ",
            r"target of 50 ms per token: met with these flags \(\d+\.\d ms\) and without \(\d+\.\d ms\)",
        ),
    ),
    "a drafter twice as good": (
        "plan qwen3.6-35b-a3b --gpu h200 --batch 1,8,64 --compare acceptance:x2",
        (
            r"the same drafter, twice as good: half as many rejections at every position",
            r"batch +plan +tok/s +this +tok/s +gain",
            r"\n +64 +\d \d\.\d\d× +[\d,]+ \d \d\.\d\d× +[\d,]+ \+\d+%",
            r"0\.78 for the first token.*0\.89 for the first token",
        ),
    ),
    "a drafter for Qwen3.6-35B-A3B on an L40S": (
        "plan qwen3.6-35b-a3b --gpu l40s --weights fp8 --drafter all",
        (r"drafters, best first", r"\nmtp +\d", r"\ndflash +\d", r"\nngram +\d", VLLM),
    ),
    "an L40S that cannot hold it in bf16": (
        "plan qwen3.6-35b-a3b --gpu l40s,2xl40s",
        (r"The model cannot be served by l40s\.", r"try --gpus 2, or smaller --weights", r"2 × l40s +\d+"),
    ),
    "a small model of the family as drafter for Qwen3-235B": (
        "plan qwen3-235b-a22b --gpu 8xh200 --drafter all --batch 1,16",
        (r"model:qwen3-0\.6b +\(?\d", r"model:qwen3-1\.7b +\(?\d"),
    ),
    "MTP or EAGLE": (
        "plan qwen3.6-35b-a3b --gpu h200 --drafter mtp,eagle --batch 1,16",
        (r"\nmtp +\d \d\.\d\d×", r"\neagle +\d \d\.\d\d×"),
    ),
    "how sure are you?": (
        "plan mixtral-8x7b --gpu h100 --gpus 2 --drafter eagle",
        (RANGE, r"^Largest uncertainty: [\w ]+; narrow it with specmargin (profile|measure)"),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_has_what_the_question_needs(question: str) -> None:
    command, needed = QUESTIONS[question]
    text = ask(command)
    flat = re.sub(r"\s+", " ", text)
    for pattern in needed:
        assert re.search(pattern, text, re.MULTILINE) or re.search(pattern, flat), f"{pattern!r} is missing in:\n{text}"


def test_a_fine_tune_folder_with_its_quantization(tmp_path: Path) -> None:
    entry = Path(specmargin.__file__).parent / "catalog" / "models" / "qwen3-30b-a3b.json"
    config = json.loads(entry.read_text())["config"]
    quantized = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    plan = asked(f"plan {tmp_path} --gpu h100 --drafter eagle --batch 1,8")
    assert "fp8" in json.dumps(plan["weights"])
    assert plan["rows"][0]["speedup"] > 0


def test_qwen3_next_fp8_does_not_fit_on_one_h100() -> None:
    with pytest.raises(ParallelismError, match=r"weights need 82 GB; one NVIDIA H100 .* 72 GB to use; try --gpus 2"):
        ask("plan qwen3-next-80b-a3b --weights fp8 --gpu h100 --concurrency 8 --isl 1000 --osl 300")


def test_a_gpu_file_and_a_quantized_configuration_of_ones_own(tmp_path: Path) -> None:
    card = tmp_path / "card.toml"
    card.write_text(ask("gpus h100 --template").replace("NVIDIA H100 80GB SXM", "my H100").replace("80e9", "94e9"))
    entry = Path(specmargin.__file__).parent / "catalog" / "models" / "qwen3-30b-a3b.json"
    quantized = {"quant_method": "awq", "bits": 4, "group_size": 128}
    config = json.loads(entry.read_text())["config"] | {"quantization_config": quantized}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mine = asked(f"plan {tmp_path} --gpu {card} --drafter eagle --batch 1,8")
    assert (mine["gpu"], mine["engine"]) == ("card", "vllm")
    assert "int4-g128" in mine["weights"]
    assert mine["rows"][0]["speedup"] > 0
    roomy = asked(f"plan {tmp_path} --gpu h100 --drafter eagle --batch 1,8")
    assert mine["largest_batch"] > roomy["largest_batch"]  # 94 GB instead of 80


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


def test_a_csv_of_batch_and_depth(tmp_path: Path) -> None:
    target = tmp_path / "grid.csv"
    ask(f"plan qwen3.6-35b-a3b --gpu h100 --batch 1,4,16 --depth 4 --grid -o {target}")
    header, *rows = target.read_text().splitlines()
    assert {"batch", "depth", "speedup", "tokens_per_second", "tpot_seconds", "round_seconds", "fits"} <= set(
        header.split(",")
    )
    assert len(rows) == 3 * 5


def test_a_data_frame_and_a_png(tmp_path: Path) -> None:
    frame = specmargin.plan("qwen3.6-35b-a3b", gpu="h100,h200,b200", gpu_hour_price={"h200": 3.5}).to_frame()
    assert frame["gpu"].to_list() == ["h100", "h200", "b200"]
    assert {"speedup", "speedup_low", "speedup_high", "cost_per_million_tokens"} <= set(frame.columns)
    picture = tmp_path / "gpus.png"
    ask(f"plan qwen3.6-35b-a3b --gpu h100,h200,b200 --plot {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
