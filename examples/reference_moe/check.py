"""Serve what the recipe made in vLLM, and hold it against the recipe's own mathematics.

    python check.py reference-moe        # needs vLLM

Loads target/ and draft/ (as its draft model), generates greedily in float32, and compares every token and its log
probability with what `model.py` computes: implementations that agree to 1e-3 have the same weights in the same places.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # starts in seconds
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_DRAFTS, _NEW_TOKENS, _PROMPTS = 3, 24, 4
_TOLERANCE = 1e-3


def main(out: Path) -> int:
    try:
        texts = [text for found in json.loads((out / "prompts.json").read_text()).values() for text in found][:_PROMPTS]
        served = _served(out, texts)
    except (OSError, ValueError, ImportError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 1
    worst, same = _compared(out, served)
    print(json.dumps({"prompts": len(texts), "same_tokens": same, "largest_difference": worst}))
    return 0 if same and worst < _TOLERANCE else 1


def _served(out: Path, texts: list[str]) -> list[Any]:
    from vllm import LLM, SamplingParams  # noqa: PLC0415 (slow)

    engine = LLM(
        model=str(out / "target"),
        dtype="float32",
        enforce_eager=True,
        disable_log_stats=True,
        speculative_config={
            "method": "draft_model",
            "model": str(out / "draft"),
            "num_speculative_tokens": _DRAFTS,
        },
    )
    wanted = SamplingParams(temperature=0.0, max_tokens=_NEW_TOKENS, logprobs=0, ignore_eos=True)
    found: list[Any] = engine.generate(texts, wanted, use_tqdm=False)
    return found


def _compared(out: Path, served: list[Any]) -> tuple[float, bool]:
    """The largest difference of log probabilities, and whether every token is the same."""
    import torch  # noqa: PLC0415
    from folders import read_model  # noqa: PLC0415

    model = read_model(out / "target")
    worst, same = 0.0, True
    for answer in served:
        prompt, new = list(answer.prompt_token_ids), list(answer.outputs[0].token_ids)
        with torch.no_grad():
            ours = model.logits(model(torch.tensor([prompt + new]))[0])[0].log_softmax(-1)[len(prompt) - 1 : -1]
        same = same and ours.argmax(-1).tolist() == new
        theirs = [found[token].logprob for found, token in zip(answer.outputs[0].logprobs, new, strict=True)]
        mine = ours.gather(1, torch.tensor(new)[:, None])[:, 0]
        worst = max(worst, float((mine - torch.tensor(theirs)).abs().max()))
    return worst, same


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python check.py DIR")
    sys.exit(main(Path(sys.argv[1])))
