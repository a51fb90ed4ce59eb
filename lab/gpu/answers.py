"""Greedy answers of vLLM with the plug-in in every gate mode, compared with two runs of vLLM without it.

    python -m lab.gpu.serving REFERENCE FOLDER                what the machine needs, made beforehand
    python -m lab.gpu.answers run FOLDER RESULT.json [--dtype float32] [--seconds 220] [--eager] [--engines A,B]
                                                                     [--requests 64] [--tokens 96]
    python -m lab.gpu.answers gaps FOLDER RESULT.json         logits where answers differ, on a CPU in float64

One engine per mode, all side by side on one GPU; each answers the same prompts in two orders of arrival. In float32
TF32 is off in cuBLAS, PyTorch and Triton; vLLM's attention is then Triton's, which adaptive verification supports.
Rounding depends on which sequences share a step, so that two runs of vLLM may differ too: answers are compared with
those of vLLM in the first order, beside vLLM in the second order. Each engine also serves sampled and structured
requests, in one batch with greedy ones.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.gpu.serving import (
    GATING_POLICY,
    POLICY,
    WITHOUT_TF32,
    Serving,
    arguments,
    count_budgets,
    top_k_is_served,
)

REQUESTS, TOKENS, ORDERS = 64, 96, 2
BASELINE = "vllm"
# Name: gate setting and policy.
MODES: dict[str, tuple[str, str]] = {
    "gate off": ("off", POLICY),
    "gate native": ("native", POLICY),
    "gate on": ("on", POLICY),
    "gate auto": ("auto", POLICY),
    "gate auto that gates": ("auto", GATING_POLICY),
}
SAMPLED = [
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.0, "top_p": 0.9, "seed": 2},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "presence_penalty": 0.5},
    {"temperature": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0.6, "logprobs": 2},
]
CHOICES, PATTERN = ["yes", "no", "perhaps"], r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
SERVED_TOKENS = 48
LOGGED = ("Specmargin", "backend", "drafts are", "Model Runner", "adaptive")


# --- one engine ---


def run_engine(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    serving = Serving(job["engine"])
    prompts = json.loads((Path(job["folder"]) / "prompts.json").read_text())[: job["requests"]]
    steps = count_budgets(serving.manager)
    result: dict[str, Any] = {"engine": serving.description()}
    result["answers"] = [_greedy(serving, prompts, order, job["tokens"]) for order in range(ORDERS)]
    result["steps"] = len(steps)
    result["drafts"], result["verified"] = sum(step[1] for step in steps), sum(step[2] for step in steps)
    result["faults"] = serving.faults()
    Path(result_file).write_text(json.dumps(result))
    try:
        result["served"] = _served(serving, prompts)
    except Exception as error:  # the answers above stay
        result["served"] = {"failure": f"{type(error).__name__}: {error}"[:500]}
    result["faults"] = serving.faults()
    Path(result_file).write_text(json.dumps(result))
    print("DONE", job["name"], flush=True)
    os._exit(0)  # skips the engine's shutdown


def _greedy(serving: Serving, prompts: list[list[int]], order: int, tokens: int) -> list[list[int]]:
    """Each request joins at a step of its own; the second order has other steps and other neighbours."""
    chance = random.Random(order)
    waiting = list(range(len(prompts)))
    chance.shuffle(waiting)
    answers: dict[str, list[int]] = {}
    until = time.monotonic() + 120.0
    while waiting or serving.busy:
        for _ in range(min(chance.choice((0, 0, 0, 1, 1, 4)), len(waiting))):
            number = waiting.pop()
            serving.add(f"{order}-{number}", prompts[number], temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for output in serving.step() if serving.busy else ():
            answers[output.request_id] = list(output.outputs[0].token_ids)
        if time.monotonic() > until:
            raise TimeoutError(f"{len(waiting)} of {len(prompts)} requests wait after two minutes")
    return [answers[f"{order}-{number}"] for number in range(len(prompts))]


def _served(serving: Serving, prompts: list[list[int]]) -> dict[str, Any]:
    """Sampled, structured and greedy requests in one batch."""
    from vllm.sampling_params import StructuredOutputsParams

    for number, given in enumerate(SAMPLED):
        parameters = {name: value for name, value in given.items() if name != "top_k" or top_k_is_served()}
        serving.add(f"sampled {number}", prompts[number], max_tokens=SERVED_TOKENS, ignore_eos=True, **parameters)
    structured = {"choice": StructuredOutputsParams(choice=CHOICES), "regex": StructuredOutputsParams(regex=PATTERN)}
    for name, wanted in structured.items():
        serving.add(name, prompts[7], max_tokens=SERVED_TOKENS, temperature=0.0, structured_outputs=wanted)
    for number in range(4):
        serving.add(f"greedy {number}", prompts[number], max_tokens=SERVED_TOKENS, temperature=0.0, ignore_eos=True)
    last = {output.request_id: output.outputs[0] for output in serving.drain(60.0)}
    lengths = {name: len(output.token_ids) for name, output in last.items() if name not in structured}
    texts = {name: last[name].text for name in structured}
    return {
        "sampled_complete": sum(n == SERVED_TOKENS for name, n in lengths.items() if name.startswith("sampled")),
        "sampled": len(SAMPLED),
        "greedy_complete": sum(n == SERVED_TOKENS for name, n in lengths.items() if name.startswith("greedy")),
        "choice": texts["choice"],
        "choice_valid": texts["choice"] in CHOICES,
        "regex": texts["regex"],
        "regex_valid": re.fullmatch(PATTERN, texts["regex"]) is not None,
    }


# --- all of them ---


def jobs(folder: Path, dtype: str, *, eager: bool) -> dict[str, dict[str, Any]]:
    engines: dict[str, dict[str, Any] | None] = {BASELINE: None}
    for name, (gate, policy) in MODES.items():
        settings = {"mode": "adaptive", "policy": str(folder / policy), "gate": gate, "log_seconds": 5.0}
        engines[name] = settings | {"slowest_decision_seconds": 20.0}  # many engines share few cores
    return {
        name: {
            "name": name,
            "folder": str(folder),
            "engine": arguments(folder, dtype=dtype, settings=settings, eager=eager),
        }
        for name, settings in engines.items()
    }


def run(folder: Path, result_file: Path, options: dict[str, str], flags: set[str]) -> None:
    dtype, limit = options.get("dtype", "float32"), float(options.get("seconds", "220"))
    chosen = jobs(folder.resolve(), dtype, eager="eager" in flags)
    if "engines" in options:
        chosen = {name: chosen[name] for name in options["engines"].split(",")}
    sizes = {key: int(options.get(key, default)) for key, default in (("requests", REQUESTS), ("tokens", TOKENS))}
    scratch = result_file.with_suffix("")
    scratch.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + limit
    started = {name: _start(job | sizes, scratch, dtype) for name, job in chosen.items()}
    while time.monotonic() < until and any(process.poll() is None for process in started.values()):
        time.sleep(0.2)
    for process in started.values():
        _end(process)
    engines = {name: _collected(scratch, name) for name in chosen}
    result = {"what": __doc__, "dtype": dtype, **sizes, "engines": engines}
    result["seconds"] = round(limit - (until - time.monotonic()), 1)
    result["differences"] = differences({name: one["answers"] for name, one in engines.items() if "answers" in one})
    result_file.write_text(json.dumps(result))
    show(result)


def _file(scratch: Path, name: str, suffix: str) -> Path:
    return scratch / f"{re.sub('[^a-z]+', '-', name)}.{suffix}"


def _start(job: dict[str, Any], scratch: Path, dtype: str) -> subprocess.Popen[bytes]:
    """In a process of its own, with compile caches of its own: engines that start together would write to the same."""
    name = job["name"]
    _file(scratch, name, "job.json").write_text(json.dumps(job))
    _file(scratch, name, "json").unlink(missing_ok=True)
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "3", "PYTHONUNBUFFERED": "1"}
    environment |= {"VLLM_CACHE_ROOT": str(_file(scratch, name, "cache").resolve())}
    environment |= {"TRITON_CACHE_DIR": str((scratch / f"triton-{dtype}").resolve())}
    environment |= WITHOUT_TF32 if dtype == "float32" else {}
    command = [sys.executable, "-m", "lab.gpu.answers", "engine", str(_file(scratch, name, "job.json"))]
    with _file(scratch, name, "log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(_file(scratch, name, "json"))],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def _collected(scratch: Path, name: str) -> dict[str, Any]:
    path, log = _file(scratch, name, "json"), _file(scratch, name, "log").read_text(errors="replace")
    said = [line[-300:] for line in log.splitlines() if any(word in line for word in LOGGED)]
    if not path.exists():
        return {"failure": log[-3000:], "log": said[-20:]}
    return {**json.loads(path.read_text()), "log": said[-20:]}


# --- comparison ---


def differences(answers: dict[str, list[list[list[int]]]]) -> list[dict[str, Any]]:
    """Of every run against the baseline's first: which answers differ, and from which token on."""
    if BASELINE not in answers:
        return []
    first = answers[BASELINE][0]
    rows = []
    for name, runs in answers.items():
        for order, run in enumerate(runs):
            if (name, order) == (BASELINE, 0):
                continue
            places = {number: place for number, place in enumerate(map(_first_difference, first, run)) if place >= 0}
            rows.append({"engine": name, "order": order, "answers": len(run), "differ": len(places), "from": places})
    return rows


def _first_difference(one: list[int], other: list[int]) -> int:
    """−1: they are equal."""
    if one == other:
        return -1
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def show(result: dict[str, Any]) -> None:
    for name, one in result["engines"].items():
        if "failure" in one:
            print(f"{name}: FAILED\n{one['failure'][-1500:]}", flush=True)
            continue
        print(f"{name}: {one['engine']}")
        share = one["verified"] / one["drafts"] if one["drafts"] else float("nan")
        print(f"  gated steps {one['steps']}, verified {share:.2f} of drafts; faults {one['faults']}")
        print(f"  {one.get('served')}")
    print(f"Answers of {result['tokens']} tokens that differ from the first run of vLLM ({result['dtype']}):")
    for row in result["differences"]:
        print(f"  {row['engine']:24} order {row['order']}: {row['differ']} of {row['answers']} {row['from'] or ''}")
    print("seconds", result["seconds"], flush=True)


def gaps(folder: Path, result_file: Path) -> None:
    """Where answers differ: the two tokens' logits in float64. A tiny gap is rounding; a large one would be a fault."""
    import torch
    from transformers import AutoModelForCausalLM

    result = json.loads(result_file.read_text())
    prompts = json.loads((folder / "prompts.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float64)
    first = result["engines"][BASELINE]["answers"][0]
    for row in result["differences"]:
        other = result["engines"][row["engine"]]["answers"][row["order"]]
        for number, place in ((int(n), p) for n, p in row["from"].items()):
            known = prompts[number] + first[number][:place]
            with torch.inference_mode():
                logits = model(torch.tensor([known])).logits[0, -1]
            one, two = (float(logits[tokens[number][place]]) for tokens in (first, other))
            best = float(logits.max())
            print(f"{row['engine']}, order {row['order']}, answer {number}, token {place}: "
                  f"{best - one:.2e} and {best - two:.2e} below the best logit")  # fmt: skip


def main(given: list[str]) -> None:
    places, options, flags = [], {}, set()
    rest = iter(given)
    for one in rest:
        if one == "--eager":
            flags.add("eager")
        elif one.startswith("--"):
            options[one.removeprefix("--")] = next(rest)
        else:
            places.append(one)
    match places:
        case ["engine", job_file, result_file]:
            run_engine(job_file, result_file)
        case ["run", folder, result_file]:
            run(Path(folder), Path(result_file), options, flags)
        case ["gaps", folder, result_file]:
            gaps(Path(folder), Path(result_file))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
