"""What the largest CUDA graph costs under a load, in one sentence with the option that captures larger ones."""

from __future__ import annotations

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.formats import find_engine

LEAST_SHARE = 0.05  # of the decode time, or of its speed: less is not worth a restart of the server


def beyond_graphs(pricer: Pricer, *, share: float, positions: int) -> str | None:
    """Of steps that decode up to so many positions: the share of the decode time in which the graph is too small."""
    limit = pricer.scenario.engine_time.graph_limit
    if limit is None or share <= LEAST_SHARE:
        return None
    fix = find_engine(pricer.scenario.engine).larger_graphs(positions=positions, batch=positions)
    return f"steps are larger than the largest CUDA graph ({limit} positions) in {share:.0%} of the decode time: {fix}"


def held_by_graphs(pricer: Pricer, *, batch: int, depth: int, max_depth: int) -> str | None:
    """Of a depth that was chosen to stay inside the graphs, if a deeper one would be faster with a graph of its own."""
    limit = pricer.scenario.engine_time.graph_limit
    if limit is None or depth >= max_depth:
        return None
    grid = pricer.with_every_graph().grid([batch], max_depth)
    deeper = int(Setting(max_depth=max_depth).best_depths(grid)[0])
    gain, positions = grid.goodput[0, deeper] / grid.goodput[0, depth] - 1.0, grid.positions_per_rank[0]
    if deeper <= depth or positions[depth + 1] <= limit or gain <= LEAST_SHARE:
        return None
    fix = find_engine(pricer.scenario.engine).larger_graphs(positions=positions[deeper], batch=batch)
    held = f"holds drafts at depth {depth}" if depth else "has no room for drafts"
    return (
        f"the largest CUDA graph ({limit} positions) {held} at batch {batch}; depth {deeper} would decode {gain:.0%} "
        f"faster: {fix}"
    )
