"""The cache of a pricer, shared with other pricers where it stays valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specmargin.decisions.scenario import Scenario
from specmargin.prices.drafters import DraftPricing
from specmargin.prices.memory import MemoryBudget
from specmargin.routing.profile import shared_counter
from specmargin.sources import Source
from specmargin.step import ExpertCounter, FloatArray

Point = tuple[float, float]  # batch and context
Row = tuple[FloatArray, FloatArray]  # by depth: seconds of a step without launches, and seconds of drafting
_MAX_ROWS = 20_000


@dataclass(slots=True, kw_only=True)
class Memo:
    """Shared by pricers whose scenarios differ in acceptance, context or launches: nothing here depends on those.

    Several threads may fill it at once. Entries are stored whole and never changed, so at worst two threads compute the
    same one.
    """

    count_experts: ExpertCounter
    drafting: DraftPricing
    row_by_point: dict[Point, Row] = field(default_factory=dict)
    price_sources_by_context: dict[float, dict[str, Source]] = field(default_factory=dict)
    budget: MemoryBudget | None = None
    under_uniform_routing: Memo | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Memo:
        count = shared_counter(
            scenario.routing,
            scenario.layout.expert_ranks,
            scenario.placement,
            scenario.layout.redundant_experts,
            0 if scenario.offload is None else scenario.offload.gpu_experts,
        )
        drafting = DraftPricing(
            model=scenario.prices,
            layout=scenario.layout.stage,  # drafters run on the last one
            kv=scenario.kv_precision,
            count_experts=count,
            scope=scenario.scope,
            engine_time=scenario.engine_time,
            measured=scenario.draft_time,
        )
        return cls(count_experts=count, drafting=drafting)

    def rows(
        self, points: Sequence[Point], max_depth: int, price: Callable[[Sequence[Point]], dict[Point, Row]]
    ) -> dict[Point, Row]:
        """Cached rows that reach `max_depth`; the others are priced and cached.

        The result does not refer to the cache: another thread may clear it meanwhile.
        """
        cache = self.row_by_point
        hits = {point: row for point in points if (row := cache.get(point)) is not None and row[0].size > max_depth}
        missing = [point for point in dict.fromkeys(points) if point not in hits]
        priced = price(missing) if missing else {}
        if len(cache) + len(priced) > _MAX_ROWS:
            cache.clear()
        cache.update(priced)
        return hits | priced
