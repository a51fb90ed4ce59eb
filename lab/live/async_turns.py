"""Throughput with and without async scheduling, for vLLM's speculation and for the plug-in's, on this GPU.

    python -m lab.live.async_turns TARGET --draft DRAFT [--policy FILE] [--set load_format=dummy]

Confidence gating needs async scheduling off. Every contestant is a separate engine, and all of them run at the same
time. They take turns with the same prompts, and ratios are computed within a turn. Greedy outputs are compared too.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from lab.live.talking import Child

_SCHEDULING = {"async": True, "sync": False}


def contestant(name: str, options: argparse.Namespace, log: Path) -> Child:
    """`none`, `fixed` (vLLM's speculation) or `adaptive` (the plug-in's), with or without async scheduling."""
    kind, scheduling, *runner = name.split()
    arguments: dict[str, Any] = {"model": options.target, "async_scheduling": _SCHEDULING[scheduling], **options.set}
    if kind != "none":
        draft = {"method": "draft_model", "model": options.draft, "num_speculative_tokens": options.depth}
        arguments["speculative_config"] = draft
    if kind == "adaptive":
        arguments["additional_config"] = {"specmargin": {"mode": "adaptive", "policy": options.policy}}
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"} if runner == ["v1"] else {}
    job = arguments | {"disable_log_stats": False}
    return Child("lab.live.turns", job, log=log, environment=environment)


def main() -> None:
    options = _options()
    folder = options.logs
    folder.mkdir(parents=True, exist_ok=True)
    started = {
        name: contestant(name, options, folder / f"{name.replace(' ', '-')}.log") for name in options.contestants
    }
    ready = {name: child for name, child in started.items() if child.read() is not None}
    for name in started.keys() - ready.keys():
        print(f"{name}: did not start, see {started[name].log.name}")
    if not ready:
        sys.exit("No engine started.")
    answers: dict[str, dict[int, list[dict[str, Any]]]] = {
        name: {batch: [] for batch in options.batches} for name in ready
    }
    shuffled = random.Random(options.seed)
    try:
        for turn in range(options.turns + 1):  # the first warms up
            for batch in options.batches:
                prompts = [_prompt(options, shuffled) for _ in range(batch)]
                for name in shuffled.sample(list(ready), len(ready)):
                    answer = ready[name].ask({"prompts": prompts, "tokens": options.tokens})
                    if turn:
                        answers[name][batch].append(answer)
    finally:
        for child in started.values():
            child.close()
    print(report(answers, options))
    if options.output is not None:
        options.output.write_text(json.dumps(answers))


def _prompt(options: argparse.Namespace, shuffled: random.Random) -> list[int]:
    if options.prompts is not None:
        return list(shuffled.choice(options.prompts))
    return [shuffled.randrange(100, 4000) for _ in range(64)]


def report(answers: dict[str, dict[int, list[dict[str, Any]]]], options: argparse.Namespace) -> str:
    """Markdown: tokens per second, their ratio to the first contestant, and the number of equal outputs."""
    first = next(iter(answers))
    lines = [
        "| engine | "
        + " | ".join(f"{batch} sequences" for batch in options.batches)
        + " | outputs equal to the first |"
    ]
    lines += ["| --- |" + " ---: |" * (len(options.batches) + 1)]
    for name, by_batch in answers.items():
        cells = []
        same = total = 0
        for batch, turns in by_batch.items():
            rates = [batch * options.tokens / turn["seconds"] for turn in turns]
            base = [batch * options.tokens / turn["seconds"] for turn in answers[first][batch]]
            logs = [math.log(a / b) for a, b in zip(rates, base, strict=True)]
            half = 2.0 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
            cells.append(f"{statistics.median(rates):,.0f} ({math.exp(statistics.fmean(logs)):.3f} ±{half:.3f})")
            for own, reference in zip(turns, answers[first][batch], strict=True):
                same += sum(a == b for a, b in zip(own["tokens"], reference["tokens"], strict=True))
                total += batch
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {same} of {total} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="the model, as vLLM takes it")
    parser.add_argument("--draft", required=True, help="its draft model")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--policy", help="for `adaptive`: a policy file (plan --policy)")
    parser.add_argument("--prompts", type=Path, help="JSON: lists of token ids by category; default: random tokens")
    parser.add_argument("--contestants", type=lambda text: text.split(","), default=["fixed async", "fixed sync"])
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], help="NAME=JSON, an argument of vLLM's LLM"
    )
    parser.add_argument("--logs", type=Path, default=Path("/tmp/live-async"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.set = dict(options.set)
    if options.prompts is not None:
        options.prompts = [prompt for prompts in json.loads(options.prompts.read_text()).values() for prompt in prompts]
    return options


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


if __name__ == "__main__":
    main()
