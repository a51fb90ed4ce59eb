"""Forced drafts: random tokens touch independent experts, repeats of one token touch the same experts.

vLLM loads `ForcedDrafts` by name (`method: custom_class`). No drafter runs, so a step contains only verification, and
the depth may change from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLASS_PATH = "specmargin.measure.vllm.forced.ForcedDrafts"


@dataclass(slots=True)
class Wanted:
    """The drafts of the next steps: set by the probe, read by the proposer in the engine."""

    depth: int = 0
    repeated: bool = False
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


WANTED = Wanted()


class ForcedDrafts:
    """The proposer that vLLM calls after every step."""

    def __init__(self, vllm_config: Any) -> None:
        self._vocabulary = int(vllm_config.model_config.get_vocab_size())

    def load_model(self, *_: Any, **__: Any) -> None:
        """No model to load."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [self._draft(tokens) if tokens else [] for tokens in sampled_token_ids]

    def _draft(self, tokens: list[int]) -> list[int]:
        if WANTED.repeated:
            return [int(tokens[-1])] * WANTED.depth
        drawn: list[int] = WANTED.random.integers(0, self._vocabulary, WANTED.depth).tolist()
        return drawn
