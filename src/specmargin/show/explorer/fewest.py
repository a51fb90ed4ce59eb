"""The fewest GPUs on which a model serves more than a handful of requests."""

from __future__ import annotations

from functools import lru_cache

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.lookup import find_device
from specmargin.decisions.pricer import Pricer
from specmargin.errors import InputError, ParallelismError

GPU_COUNTS = (1, 2, 4, 8, 16, 32)
_ROOM = (32, 4096)  # sequences, and tokens of each, for which GPUs are counted
_DEPTH = 8  # of drafts, for which there is memory too


@lru_cache(maxsize=64)  # engines ask one after the other
def enough_gpus(model: str, gpu: str, drafter: str, prices: str | None = None) -> int:
    """The fewest GPUs with room for a small service; else the fewest that hold the weights at all."""
    sequences, tokens = _ROOM
    holding: int | None = None
    engine = engines_of(find_device(gpu))[0]
    for gpus in GPU_COUNTS:
        request = ScenarioRequest(
            model=model, gpu=gpu, gpus=gpus, engine=engine, drafter=drafter, context=512, prices=prices
        )
        try:
            pricer = Pricer(scenario_of(request)[1])
            longest = pricer.scenario.architecture.max_context or tokens
            room = pricer.with_context(float(min(tokens, longest))).largest_batch(_DEPTH)
            pricer.grid([1], 0)  # a layout may have no price: no network between nodes
        except InputError:
            continue
        if room >= sequences:
            return gpus
        holding = holding or (gpus if room else None)
    if holding is None:
        counts = f"{GPU_COUNTS[0]} to {GPU_COUNTS[-1]}"
        raise ParallelismError(f"{model} fits on no number of {gpu} GPUs that has a price ({counts} were tried)")
    return holding
