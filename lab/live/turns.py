"""An engine in its own process that generates one batch at a time; commands and replies are JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lab.live.talking import serve


def start(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    from vllm import LLM, SamplingParams  # noqa: PLC0415 (the environment comes first)

    engine = LLM(**arguments)

    def answer(command: dict[str, Any]) -> object:
        parameters = SamplingParams(temperature=0.0, max_tokens=command["tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in command["prompts"]]
        before, started = _counters(engine), time.perf_counter()
        outputs = engine.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - started
        counted = {name: value - before.get(name, 0.0) for name, value in _counters(engine).items()}
        return {"seconds": seconds, "tokens": [list(output.outputs[0].token_ids) for output in outputs], **counted}

    return answer


def _counters(engine: Any) -> dict[str, float]:
    """Counters of vLLM's speculation, if it is configured."""
    names = (
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
    )
    metrics = {metric.name: metric for metric in engine.get_metrics()}
    return {name.removeprefix("vllm:"): float(metrics[name].value) for name in names if name in metrics}


if __name__ == "__main__":
    serve(start)
