"""The depth that an engine drafts at a batch, read from its setting by the rules of the engine's own code.

They follow the engines, not Specmargin: vLLM `vllm/v1/spec_decode/dynamic/utils.py`, SGLang `adaptive_spec_params.py`
and `arg_groups/speculative_hook.py`, TensorRT-LLM `llm_args.py`, llama.cpp `common/arg.cpp`. Where releases differ,
each has its own reader.
"""

from __future__ import annotations

import bisect
import json
import shlex
from functools import lru_cache
from typing import Any

import yaml

from specmargin.formats.base import EngineConfig
from specmargin.formats.sglang import graph_batch_sizes


def vllm_depth(config: EngineConfig, batch: int) -> int:
    """Inclusive ranges from 1, sorted, without overlap; gaps and the tail carry the last K; clamped to the maximum."""
    flag, text = _words(config.text)
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
    if _flag(config.text, "--speculative-algorithm") == "DSPARK":
        block = int(_flag(config.text, "--speculative-dspark-block-size"))
        assert int(_flag(config.text, "--speculative-num-draft-tokens")) == block + 1  # refused otherwise
        return block
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


def sglang_positive_depth(config: EngineConfig, batch: int) -> int:
    """0.5.13: as later, but steps of 0 are refused."""
    assert config.file_text is None or "[0]" not in config.file_text
    return sglang_depth(config, batch)


def trtllm_lower_bound_depth(config: EngineConfig, batch: int) -> int:
    """1.2.0 to 1.3.0rc7: keys are lower bounds, and key 1 must be there and map to max_draft_len."""
    settings = _parsed(config.text)["speculative_config"]
    schedule: dict[int, int] | None = settings.get("draft_len_schedule")
    if schedule is None:
        return int(settings["max_draft_len"])
    assert settings["decoding_type"] in ("NGram", "Draft_Target")  # others ignore it
    assert schedule[1] == settings["max_draft_len"] == max(schedule.values())
    return schedule[max(bound for bound in schedule if bound <= batch)]


def trtllm_depth(config: EngineConfig, batch: int) -> int:
    """Keys are upper bounds; above the last, 0. The smallest key must map to max_draft_len and none may exceed it."""
    settings = _parsed(config.text)["speculative_config"]
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


def mlx_depth(config: EngineConfig, batch: int) -> int:
    """mlx-lm drafts `--num-draft-tokens` (generate.py); mlx-vlm one less than its block, whose first token is known."""
    del batch
    if "--draft-kind" in config.text:
        return int(_flag(config.text, "--draft-block-size")) - 1
    return int(_flag(config.text, "--num-draft-tokens"))


#: The newest releases.
READERS = {
    "vllm": vllm_depth,
    "sglang": sglang_depth,
    "trtllm": trtllm_depth,
    "llamacpp": llamacpp_depth,
    "mlx": mlx_depth,
}
#: Engine, release, and what is written for it as it reads it.
BY_RELEASE = (
    ("vllm", "0.24", vllm_depth),
    ("vllm", "0.32.0", vllm_depth),
    ("sglang", "0.5.13", sglang_positive_depth),
    ("sglang", "0.5.14", sglang_depth),
    ("sglang", "0.5.23", sglang_depth),
    ("trtllm", "1.2.1", trtllm_lower_bound_depth),
    ("trtllm", "1.3.0rc7", trtllm_lower_bound_depth),
    ("trtllm", "1.3.0rc8", trtllm_depth),
    ("trtllm", "1.3.0", trtllm_depth),
)


def _flag(text: str, name: str) -> str:
    words = _words(text)
    return words[words.index(name) + 1]


# A setting is read at hundreds of batches.
_words = lru_cache(shlex.split)
_parsed: Any = lru_cache(yaml.safe_load)
