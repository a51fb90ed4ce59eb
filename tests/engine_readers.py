"""The depth that an engine drafts at a batch, read from its setting by the rules of the engine's own code.

They follow the engines (August 2026), not Specmargin: vLLM `vllm/v1/spec_decode/dynamic/utils.py`, SGLang
`adaptive_spec_params.py`, TensorRT-LLM `llm_args.py`, llama.cpp `common/arg.cpp`.
"""

from __future__ import annotations

import bisect
import json
import shlex

import yaml

from specmargin.formats.base import EngineConfig
from specmargin.formats.sglang import graph_batch_sizes


def vllm_depth(config: EngineConfig, batch: int) -> int:
    """Inclusive ranges from 1, sorted, without overlap; gaps and the tail carry the last K; clamped to the maximum."""
    flag, text = shlex.split(config.text)
    assert flag == "--speculative-config"
    settings = json.loads(text)
    max_depth = settings["num_speculative_tokens"]
    assert max_depth > 0
    table = settings.get("num_speculative_tokens_per_batch_size")
    if table is None:
        return int(max_depth)
    assert table[0][0] == 1
    previous_end, depth = 0, None
    for first, last, k in table:
        assert first > previous_end
        assert last >= first
        assert k >= 0
        previous_end = last
        if batch >= first:
            depth = k
    assert depth is not None
    return int(min(depth, max_depth))


def sglang_depth(config: EngineConfig, batch: int) -> int:
    """Pad to a captured batch size, then the slot with the largest key not above it; one candidate is no choice."""
    steps = int(_flag(config.text, "--speculative-num-steps"))
    assert int(_flag(config.text, "--speculative-num-draft-tokens")) == steps + 1
    if config.file_text is None:
        return steps
    slots = {int(key): value for key, value in json.loads(config.file_text).items() if key.isdigit()}
    union = {step for slot in slots.values() for step in slot["candidate_steps"]}
    assert steps in union  # the server refuses to start otherwise
    assert max(union) == steps  # buffers are sized by the largest
    sizes = graph_batch_sizes(512)
    index = bisect.bisect_left(sizes, batch)
    padded = sizes[index] if index < len(sizes) else batch
    keys = sorted(slots)
    slot = slots[keys[max(0, bisect.bisect_right(keys, padded) - 1)]]
    assert len(slot["candidate_steps"]) == 1
    return int(slot["candidate_steps"][0])


def trtllm_depth(config: EngineConfig, batch: int) -> int:
    """Keys are upper bounds; above the last, 0. The smallest key must map to max_draft_len and none may exceed it."""
    settings = yaml.safe_load(config.text)["speculative_config"]
    schedule: dict[int, int] | None = settings.get("draft_len_schedule")
    if schedule is None:
        return int(settings["max_draft_len"])
    assert schedule[min(schedule)] == settings["max_draft_len"]
    assert max(schedule.values()) <= settings["max_draft_len"]
    for bound in sorted(schedule):
        if batch <= bound:
            return schedule[bound]
    return 0


def llamacpp_depth(config: EngineConfig, batch: int) -> int:
    """Look-up drafts take their length from their own flag (common/arg.cpp), the others from --spec-draft-n-max."""
    del batch
    lookup = _flag(config.text, "--spec-type") == "ngram-simple"
    return int(_flag(config.text, "--spec-ngram-simple-size-m" if lookup else "--spec-draft-n-max"))


READERS = {"vllm": vllm_depth, "sglang": sglang_depth, "trtllm": trtllm_depth, "llamacpp": llamacpp_depth}


def _flag(text: str, name: str) -> str:
    words = shlex.split(text)
    return words[words.index(name) + 1]
