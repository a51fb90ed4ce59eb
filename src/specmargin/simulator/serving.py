"""All inputs of a run: a workload, an engine, a policy, prices and rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.scenario import Scenario
from specmargin.errors import ScenarioError
from specmargin.limits import MAX_BATCH
from specmargin.modes import Router
from specmargin.routing.profile import RoutingProfile
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.rounds import RoundBank
from specmargin.simulator.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Instances that only read prompts, and instances that only decode; all of one layout."""

    prefill: int
    decode: int
    bytes_per_second: float  # of KV, of each GPU
    latency_seconds: float
    way: str  # what carries it

    @property
    def instances(self) -> int:
        return self.prefill + self.decode


@dataclass(frozen=True, kw_only=True)
class Serving:
    pricer: Pricer
    workload: Workload
    bank: RoundBank
    policy: str = "none"
    engine: EngineSettings = field(default_factory=EngineSettings)
    max_depth: int = 4
    seed: int = 0
    category_routing: tuple[RoutingProfile, ...] = ()
    steady: bool = False  # measured between ramp and drain, as a service; False: as a whole, as benchmarks report
    compiled: bool = True  # False: every policy decides in Python
    router: Router | None = None  # to data-parallel ranks, of which each has its own engine; None: one engine
    pools: Pools | None = None  # None: an engine reads prompts and decodes

    def __post_init__(self) -> None:
        names = [category.name for category in self.workload.categories]
        if list(self.bank.categories) != names:
            raise ScenarioError(
                f"the rounds have categories {', '.join(self.bank.categories)}, the workload has {', '.join(names)}"
            )
        if self.category_routing and len(self.category_routing) != len(names):
            raise ScenarioError(f"{len(names)} categories need as many routing profiles, or none")
        if self.max_depth < 1:
            raise ScenarioError(f"max_depth must be at least 1, got {self.max_depth}")
        if self.scenario.early_stop is not None:
            raise ScenarioError("draft_p_min: policies decide here how long drafts are; leave it out")
        limit = self.scenario.drafter.max_depth
        if limit is not None and self.max_depth > limit:
            raise ScenarioError(f"drafter {self.scenario.drafter.name} drafts at most {limit} tokens")

    def with_requests(self, requests: int) -> Serving:
        return replace(self, workload=self.workload.with_requests(requests))

    @property
    def limits(self) -> tuple[int, int]:
        """Sequences and tokens per step: of one rank behind a router; else of the one batch that all ranks share."""
        ranks = 1
        if self.router is None and self.engine.limits_per_rank:
            ranks = self.scenario.layout.data_ranks
        return min(self.engine.max_num_seqs * ranks, MAX_BATCH), self.engine.max_num_batched_tokens * ranks

    @property
    def max_seqs(self) -> int:
        """Of all ranks of all instances that decode."""
        ranks = 1 if self.router is None else self.scenario.layout.data_ranks
        return self.limits[0] * ranks * (1 if self.pools is None else self.pools.decode)

    @property
    def gpus(self) -> int:
        return self.scenario.layout.gpus * (1 if self.pools is None else self.pools.instances)

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario
