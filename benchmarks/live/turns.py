"""One engine in its own process that answers a batch at a time: commands come as JSON lines, answers go back so."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the engine prints is not an answer


def main() -> None:
    from vllm import LLM, SamplingParams  # noqa: PLC0415 (the environment comes first)

    engine = LLM(**json.loads(sys.stdin.readline()))
    _answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        parameters = SamplingParams(temperature=0.0, max_tokens=command["tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in command["prompts"]]
        before, started = _counters(engine), time.perf_counter()
        found = engine.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - started
        counted = {name: value - before.get(name, 0.0) for name, value in _counters(engine).items()}
        _answer({"seconds": seconds, "tokens": [list(one.outputs[0].token_ids) for one in found], **counted})


def _counters(engine: Any) -> dict[str, float]:
    """vLLM's own and ours, where they are."""
    wanted = (
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
    )
    found = {metric.name: metric for metric in engine.get_metrics()}
    return {name.removeprefix("vllm:"): float(found[name].value) for name in wanted if name in found}


def _answer(found: object) -> None:
    OUT.write(json.dumps(found) + "\n")
    OUT.flush()


if __name__ == "__main__":
    main()
