"""What vLLM's CPU build lacks for data-parallel ranks with expert parallelism: two collectives, and experts that skip
tokens of other ranks' experts. A plug-in (`rank_server.py`), so that every process has it. All else is vLLM's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DEPTHS = "SPECMARGIN_TEST_DEPTHS"  # names a folder: draft passes of every step, by rank
BROKEN_RANK = 1  # whose policy raises as soon as a file named `break` is in that folder


def register() -> None:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts  # noqa: PLC0415

    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv
    CPUUnquantizedExperts.process_weights_after_loading = lambda _self, _layer: None
    CPUUnquantizedExperts.apply = _apply
    if DEPTHS in os.environ:
        _record(Path(os.environ[DEPTHS]))


def _record(folder: Path) -> None:
    """What the drafter really ran, in steps with requests and without: ranks must agree on every line."""
    from vllm.v1.engine.core import DPEngineCoreProc  # noqa: PLC0415
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer  # noqa: PLC0415

    propose, dummy_run = SpecDecodeBaseProposer.propose, SpecDecodeBaseProposer.dummy_run
    synchronise = DPEngineCoreProc._has_global_unfinished_reqs

    def write(drafter: Any, kind: str, passes: int) -> None:
        with (folder / f"passes-{drafter.dp_rank}.txt").open("a") as out:
            out.write(f"{kind} {passes}\n")

    def proposing(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        write(self, "drafts", num_speculative_tokens)
        return propose(self, num_speculative_tokens, *args, **kwargs)

    def dummy(self: Any, *args: Any, **kwargs: Any) -> Any:
        write(self, "dummy", self.num_speculative_tokens)
        return dummy_run(self, *args, **kwargs)

    def synchronising(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.dp_rank == BROKEN_RANK and (folder / "break").exists() and self.scheduler._driver is not None:
            self.scheduler._driver.policy.draft = self.scheduler._driver.policy.observe = _raise
        return synchronise(self, *args, **kwargs)

    SpecDecodeBaseProposer.propose, SpecDecodeBaseProposer.dummy_run = proposing, dummy
    DPEngineCoreProc._has_global_unfinished_reqs = synchronising


def _raise(*_: Any) -> Any:
    raise ZeroDivisionError("injected")


def _all_gatherv(self: Any, given: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    if isinstance(given, list):
        return [_all_gatherv(self, one, dim, sizes) for one in given]
    import torch  # noqa: PLC0415

    rows = sizes or [given.shape[0]] * self.world_size
    padded = given.new_zeros((max(rows), *given.shape[1:]))
    padded[: given.shape[0]] = given
    parts = [torch.empty_like(padded) for _ in rows]
    torch.distributed.all_gather(parts, padded, group=self.device_group)
    return torch.cat([part[:size] for part, size in zip(parts, rows, strict=True)])


def _reduce_scatterv(self: Any, given: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:  # noqa: ARG001
    import torch  # noqa: PLC0415

    rows = sizes or [given.shape[0] // self.world_size] * self.world_size
    total = given.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    first = sum(rows[: self.rank_in_group])
    return total[first : first + rows[self.rank_in_group]].contiguous()


def _apply(
    _self: Any,
    output: Any,
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    *_: Any,
    **given: Any,
) -> None:
    """Gated SiLU of each local expert for the tokens that chose it."""
    from torch.nn.functional import silu  # noqa: PLC0415

    places = given["expert_map"]
    output.zero_()
    for expert in topk_ids.unique().tolist():
        local = expert if places is None else int(places[expert])
        if local < 0:
            continue
        tokens, choices = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (hidden_states[tokens] @ w1[local].T).chunk(2, dim=-1)
        part = (silu(gate) * up) @ w2[local].T
        output.index_add_(0, tokens, part * topk_weights[tokens, choices].unsqueeze(1).to(part.dtype))
