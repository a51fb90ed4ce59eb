"""A scenario by names, as the command line and the web page give them, and the scenario that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specmargin.architecture.precision import precision_named
from specmargin.catalog.drafters import DraftChoice, available_drafters, find_acceptance, find_drafter
from specmargin.catalog.engine_times import NO_ENGINE_TIME, find_engine_time
from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.prices import find_prices
from specmargin.catalog.routing_profiles import find_routing
from specmargin.decisions.scenario import Scenario
from specmargin.errors import CatalogError, ScenarioError
from specmargin.formats import find_engine
from specmargin.hardware.layout import Layout, Parallel
from specmargin.prices.measured import MeasuredPrices
from specmargin.prices.model import EngineTime, PriceModel
from specmargin.prices.roofline import RooflineForm
from specmargin.routing.placement import Placement
from specmargin.sources import Source, SourceKind

_LONGEST_SECONDS = 1e3  # anything longer is a typing mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """The shared options, as given."""

    model: str
    gpu: str
    gpus: int = 1
    parallel: Parallel = Parallel.TP
    drafter: str | None = None
    acceptance: str | None = None
    routing: str | None = None
    placement: Placement = Placement.CONTIGUOUS
    context: int = 1024
    weights: str | None = None
    kv_cache: str | None = None
    prices: str | None = None
    form: RooflineForm = RooflineForm.PER_COMPONENT
    engine: str = "vllm"
    engine_time: str | None = None
    graph_limit: int | None = None
    step_ms: float | None = None
    sequence_ms: float | None = None
    position_us: float | None = None
    layer_us: float | None = None
    off_ms: float | None = None
    memory_utilization: float = 0.9

    def choices(self) -> list[tuple[DraftChoice, Scenario]]:
        """One scenario, or one for every drafter at hand with `--drafter all`."""
        target = find_model(self.model, weights=precision_named(self.weights) if self.weights else None)
        if self.drafter == "all":
            picked = available_drafters(target)
        else:
            default = "mtp" if target.draft_head is not None else "eagle"
            picked = [find_drafter(self.drafter or default, target)]
        device = find_device(self.gpu)
        engine = find_engine(self.engine)
        prices = find_prices(self.prices, device, engine.name, self.form)
        layout = Layout(gpus=self.gpus, parallel=self.parallel)
        steps = prices if isinstance(prices, MeasuredPrices) else None
        if steps is not None:
            steps.check(target, layout)
        engine_time = self._engine_time(prices, engine.name)
        limit = engine.position_limit(device) if steps is None else steps.engine_time.captured_positions
        engine_time = replace(engine_time, captured_positions=limit if self.graph_limit is None else self.graph_limit)
        return [
            (
                choice,
                Scenario(
                    architecture=target,
                    device=device,
                    prices=prices,
                    routing=find_routing(self.routing, target),
                    placement=self.placement,
                    drafter=choice.drafter,
                    survival=find_acceptance(self.acceptance, choice, target, max_depth=choice.drafter.max_depth or 8),
                    layout=layout,
                    context=float(self.context),
                    engine_time=engine_time,
                    draft_time=None if steps is None else steps.draft_time,
                    kv=precision_named(self.kv_cache) if self.kv_cache else None,
                    memory_utilization=self.memory_utilization,
                ),
            )
            for choice in picked
        ]

    def one(self) -> tuple[DraftChoice, Scenario]:
        choices = self.choices()
        if len(choices) != 1:
            raise CatalogError("--drafter all is for `plan`; name one drafter here")
        return choices[0]

    def _engine_time(self, prices: PriceModel, engine: str) -> EngineTime:
        """The measurement's own or the catalog's, with what the user says in place of it."""
        if isinstance(prices, MeasuredPrices) and self.engine_time is None:
            found = prices.engine_time
        else:
            found = find_engine_time(self.engine_time, engine=engine, prices=prices.name)
        given = {
            "step_seconds": (self.step_ms, 1e-3),
            "sequence_seconds": (self.sequence_ms, 1e-3),
            "position_seconds": (self.position_us, 1e-6),
            "layer_seconds": (self.layer_us, 1e-6),
            "off_step_seconds": (self.off_ms, 1e-3),
        }
        said = {name: value * scale for name, (value, scale) in given.items() if value is not None}
        if not said:
            return found
        if not all(0.0 <= value < _LONGEST_SECONDS for value in said.values()):
            raise ScenarioError(f"engine times must be numbers from 0 to {_LONGEST_SECONDS:g} s")
        rest = "" if found is NO_ENGINE_TIME else f"; the rest {found.source}"
        source = Source(kind=SourceKind.MEASURED, detail=f"given by the user{rest}")
        return replace(found, source=source, **said)  # type: ignore[arg-type]  # mypy tries every field
