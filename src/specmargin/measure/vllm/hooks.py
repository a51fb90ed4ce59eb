"""What the probe listens to inside an engine: experts touched, graphs used, time spent drafting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class ExpertCounter:
    """Distinct experts of a step, per layer, from the routers' own choices.

    The hook only writes into a buffer that stays where it is, so it is captured with a CUDA graph and replayed with it.
    It costs one small kernel a layer: a run that counts is not the run whose times are kept, unless the engine has no
    graphs and the hook can be switched off.
    """

    def __init__(self) -> None:
        self.listening = True
        self._hits: torch.Tensor | None = None

    def attach(self, model: Any) -> int:
        """Layers that route; 0 for a dense model or one whose routers cannot be listened to."""
        routers = [m.router for m in model.modules() if hasattr(getattr(m, "router", None), "set_capture_fn")]
        routers = list(dict.fromkeys(routers))
        if not routers:
            return 0
        device = next(model.parameters()).device
        experts = max(int(router.global_num_experts) for router in routers)
        self._hits = torch.zeros((len(routers), experts), dtype=torch.int32, device=device)
        for layer, router in enumerate(routers):
            router.set_capture_fn(partial(self._heard, layer))
        return len(routers)

    def _heard(self, layer: int, chosen: torch.Tensor) -> None:
        if self.listening and self._hits is not None:
            self._hits[layer].index_fill_(0, chosen.reshape(-1).long(), 1)

    def reset(self) -> None:
        if self._hits is not None:
            self._hits.zero_()

    def distinct(self) -> float | None:
        """Mean over layers since the last reset; None where nothing was heard."""
        if self._hits is None:
            return None
        return float(self._hits.sum(dim=1).double().mean())


class GraphMode:
    """Which kind of CUDA graph the target's last step ran in: full, piecewise or none."""

    def __init__(self, runner: Any) -> None:
        self.last = "none"
        dispatcher = getattr(runner, "cudagraph_dispatcher", None)
        if dispatcher is not None:
            dispatcher.dispatch = self._wrapped(dispatcher.dispatch)

    def _wrapped(self, dispatch: Callable[..., Any]) -> Callable[..., Any]:
        def listened(*arguments: Any, **named: Any) -> Any:
            found = dispatch(*arguments, **named)
            self.last = str(found[0].name).lower()
            return found

        return listened


class DraftClock:
    """Seconds of the last draft, with the device's work waited for on both sides."""

    def __init__(self, runner: Any, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._original = runner.propose_draft_token_ids
        runner.propose_draft_token_ids = self._timed

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
