"""What votes need of a worker: it follows the agreed depth in steps without requests too.

vLLM's drafter remembers the depth of its last draft and runs as many passes in a dummy batch: too many, or none after
depth 0, where a real step runs one. Ranks whose passes differ in number wait for each other for ever. So its depth is
set before every step. Until `follow_votes` is called, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specmargin.live.hooks import around


class VotingExtension:
    def follow_votes(self: Any) -> str | None:
        """Called once, before the first vote; returns why this worker cannot follow."""
        runner = self.model_runner
        drafter = getattr(runner, "drafter", None)
        if drafter is None:
            return "votes need vLLM's first model runner (VLLM_USE_V2_MODEL_RUNNER=0) without pipeline parallelism"
        if not hasattr(drafter, "num_speculative_tokens"):
            return f"the depth of {type(drafter).__name__} cannot be set"

        def follow(execute: Callable[..., Any], scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            """A step whose drafts do not fit runs a dummy draft, which takes its depth from the drafter too."""
            _set_passes(runner, scheduler_output.num_spec_tokens_to_schedule)
            return execute(scheduler_output, *args, **kwargs)

        around(runner, "execute_model")(follow)
        return None

    def dummy_batch_of_depth(self: Any, depth: int) -> None:
        _set_passes(self.model_runner, depth)
        self.execute_dummy_batch()


def _set_passes(runner: Any, depth: int) -> None:
    runner.drafter.num_speculative_tokens = max(depth, 1)
