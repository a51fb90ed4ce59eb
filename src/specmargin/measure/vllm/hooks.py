"""Hooks of the probe inside an engine: distinct experts, CUDA graphs used, time spent drafting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class ExpertCounter:
    """Distinct experts per layer and step, from the choices of the routers.

    The hook only writes into a buffer with a fixed address, so it is captured in CUDA graphs and replayed with them.
    It costs one small kernel per layer. Therefore a run that counts is not a run whose times are used, unless the
    engine has no graphs and the hook can be switched off.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._hits: torch.Tensor | None = None

    def attach(self, model: Any) -> int:
        """Number of MoE layers that are counted; 0 for a dense model or one whose routers have no capture hook."""
        routers = [m.router for m in model.modules() if hasattr(getattr(m, "router", None), "set_capture_fn")]
        routers = list(dict.fromkeys(routers))
        if not routers:
            return 0
        device = next(model.parameters()).device
        experts = max(int(router.global_num_experts) for router in routers)
        self._hits = torch.zeros((len(routers), experts + 1), dtype=torch.int32, device=device)
        for layer, router in enumerate(routers):
            router.set_capture_fn(partial(self._count, layer))
        return len(routers)

    def _count(self, layer: int, chosen: torch.Tensor) -> None:
        if self.enabled and self._hits is not None:
            padding = self._hits.shape[1] - 1  # vLLM names the expert of padded positions −1: a column of its own
            experts = chosen.reshape(-1).long()
            self._hits[layer].index_fill_(0, torch.where(experts < 0, padding, experts), 1)

    def reset(self) -> None:
        if self._hits is not None:
            self._hits.zero_()

    def distinct(self) -> float | None:
        """Distinct experts since the last reset, mean over layers; None if no router is attached."""
        if self._hits is None:
            return None
        return float(self._hits[:, :-1].sum(dim=1).double().mean())


class GraphMode:
    """The kind of CUDA graph of the target's last step: full, piecewise or none."""

    def __init__(self, runner: Any) -> None:
        self.last = "none"
        for name in ("cudagraph_dispatcher", "cudagraph_manager"):  # of the first and of the second model runner
            owner = getattr(runner, name, None)
            if owner is not None:
                owner.dispatch = self._wrapped(owner.dispatch)

    def _wrapped(self, dispatch: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **named: Any) -> Any:
            chosen = dispatch(*arguments, **named)  # a mode and a key, or their description
            mode = chosen.cg_mode if hasattr(chosen, "cg_mode") else chosen[0]
            self.last = str(mode.name).lower()
            return chosen

        return recorded


class DraftClock:
    """Seconds of the last draft, with a device synchronization on both sides.

    The first model runner drafts in a method of its own, the second in its speculator.
    """

    def __init__(self, runner: Any, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._clock = clock
        if hasattr(runner, "propose_draft_token_ids"):
            self._original = runner.propose_draft_token_ids
            runner.propose_draft_token_ids = self._timed
        elif getattr(runner, "speculator", None) is not None:
            self._original = runner.speculator.propose
            runner.speculator.propose = self._timed
        else:
            raise RuntimeError(f"{type(runner).__module__}: this model runner has no drafter that can be timed")

    def _timed(self, *arguments: Any, **named: Any) -> Any:
        wait_for_device()
        start = self._clock()
        drafts = self._original(*arguments, **named)
        wait_for_device()
        self.seconds = self._clock() - start
        return drafts


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
