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
    network: str  # what carries it

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
    def max_num_seqs(self) -> int:
        """Of a batch: of one rank behind a router, else of all ranks together."""
        return min(self._of_batch(self.engine.max_num_seqs), MAX_BATCH)

    @property
    def max_num_batched_tokens(self) -> int:
        return self._of_batch(self.engine.max_num_batched_tokens)

    def _of_batch(self, limit: int) -> int:
        ranks = self.scenario.layout.data_ranks
        if self.engine.limits_per_rank:
            return limit if self.router is not None else limit * ranks
        return limit if self.router is None else max(limit // ranks, 1)

    @property
    def most_sequences(self) -> int:
        """Of all ranks, and of all instances that decode."""
        ranks = 1 if self.router is None else self.scenario.layout.data_ranks
        return self.max_num_seqs * ranks * self.decode_instances

    @property
    def decode_instances(self) -> int:
        return 1 if self.pools is None else self.pools.decode

    @property
    def gpus(self) -> int:
        return self.scenario.layout.gpus * (1 if self.pools is None else self.pools.instances)

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario
