"""What a service delivers under a stated load: whole requests, prefill and queues included, by the simulator.

Speculation speeds up decoding alone. Requests also wait for prompts, their own and those of others, so the service
gains less than a decoding step does; with long inputs and short outputs it gains next to nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.errors import ScenarioError
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.policies import scheduled
from specmargin.simulator.results import Result
from specmargin.simulator.rounds import drawn_rounds
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.simulator.steady import Steady, run_steadily
from specmargin.simulator.workload import ClosedLoop, Poisson, Workload, length_around
from specmargin.words import duration

_MUCH_PREFILL = 0.4  # share of the time from which on a verdict mentions it
# Assumed, where no target is given: a reader would want to know of a first token that comes this much later.
_FAR_LATER, _LATER_SECONDS = 2.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """Requests of one kind: `users` that send their next when the last one ends, or a Poisson rate."""

    prompt_tokens: int
    output_tokens: int
    users: int | None = None
    requests_per_second: float | None = None
    range_ratio: float = 0.0  # lengths are uniform within this fraction of their means; 0: all equal
    prefix_hit: float = 0.0
    kv_arrives: bool = False  # as of a decode instance
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256  # raised where more users are asked for
    limits_per_rank: bool = True  # both are of each data-parallel rank
    requests: int | None = None  # of a benchmark, which is judged as a whole; None: a service in steady state

    def __post_init__(self) -> None:
        if (self.users is None) == (self.requests_per_second is None):
            raise ScenarioError("a load is a number of concurrent users or a request rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The same load without speculation and under the plan's setting."""

    load: ServiceLoad
    gpus: int
    plain: Steady
    speculating: Steady
    shortened: str | None = None  # how many requests were left out because nothing is compiled

    @property
    def batches(self) -> list[int]:
        """Sequences that decode at the same time, with the setting and without speculation."""
        return sorted({max(round(side.sequences), 1) for side in (self.plain, self.speculating)})

    @property
    def speedup(self) -> float:
        """Of output tokens per second; with a request rate, of the time between tokens."""
        if self.load.users is not None:
            return self.speculating.tokens_per_second / self.plain.tokens_per_second
        if not self.plain.tpot_seconds or not self.speculating.tpot_seconds:  # requests of one token have none
            return 1.0
        return self.plain.tpot_seconds / self.speculating.tpot_seconds

    @property
    def waits_longer(self) -> bool:
        """Whether first tokens come far later with drafts: memory for them leaves fewer sequences, others queue."""
        before, after = self.plain.ttft_seconds, self.speculating.ttft_seconds
        return after > _FAR_LATER * before and after > before + _LATER_SECONDS

    def said(self, low: float, high: float) -> dict[str, Any]:
        """What a verdict says of it (`decisions/verdict.toml`); `low` and `high` are its 80% range."""
        before, after = self.plain, self.speculating
        said: dict[str, Any] = {"factor": self.speedup, "low": low, "high": high}
        said |= {"plain_rate": before.tokens_per_second, "rate": after.tokens_per_second}
        said |= {"waits": self.waits_longer, "plain_ttft": duration(before.ttft_seconds)}
        said |= {"ttft": duration(after.ttft_seconds), "queue_grows": bool(after.queue_growth_per_second)}
        said |= {"plain_keeps_up": not before.queue_growth_per_second, "wanted": before.sequences}
        said |= self._said_load
        if self.load.users is None:
            said |= {"plain_ms": 1e3 * (before.tpot_seconds or 0.0), "ms": 1e3 * (after.tpot_seconds or 0.0)}
        share = before.prefill_share
        return said | {"prefill": f"{100.0 * share:.0f}" if share > _MUCH_PREFILL else None}

    def said_of_refused(self, *decode_speedups: float) -> dict[str, Any]:
        """The same of a draft that the setting leaves out: its speed-up of decode steps, and the ends of its range."""
        factors = (self.bound(1.0, speedup) for speedup in decode_speedups)
        return dict(zip(("factor", "low", "high"), factors, strict=True)) | self._said_load

    @property
    def _said_load(self) -> dict[str, Any]:
        users, rate = self.load.users, self.load.requests_per_second
        return {"qps": rate} if users is None else {"users": users}

    def cost_per_million_tokens(self, side: Steady, gpu_hour_price: float) -> float:
        """Of output tokens, with everything that their requests take."""
        return gpu_hour_price * self.gpus / 3600.0 * 1e6 / side.tokens_per_second

    def values(self, low: float, high: float, gpu_hour_price: float | None = None) -> dict[str, Any]:
        """The same as JSON."""
        values: dict[str, Any] = {
            "speedup": self.speedup,
            "speedup_low": low,
            "speedup_high": high,
            "isl": self.load.prompt_tokens,
            "osl": self.load.output_tokens,
            "concurrency": self.load.users,
            "qps": self.load.requests_per_second,
            "range_ratio": self.load.range_ratio,
            "prefix_hit": self.load.prefix_hit,
            "max_num_batched_tokens": self.load.max_num_batched_tokens,
            "max_num_seqs": self.load.max_num_seqs,
            "shortened": self.shortened,
        }
        for name, steady in (("plain", self.plain), ("speculating", self.speculating)):
            values[name] = asdict(steady) | {"tokens_per_second_per_gpu": steady.tokens_per_second / self.gpus}
            if gpu_hour_price is not None:
                values[name]["cost_per_million_tokens"] = self.cost_per_million_tokens(steady, gpu_hour_price)
        return values

    def bound(self, decode_speedup: float, bound: float) -> float:
        """The service's speed-up if decode steps gained `bound` instead: by Amdahl's law, prefill stays as it is."""
        decoding = 1.0 - self.plain.prefill_share
        time = 1.0 / self.speedup + decoding * (1.0 / bound - 1.0 / decode_speedup)
        return 1.0 / max(time, 1e-9)


def service(pricer: Pricer, load: ServiceLoad, schedule: Schedule, *, seed: int = 0) -> Service:
    """Simulate the load twice. `schedule` is what the engine drafts."""
    serving = _serving(pricer, load, depth=max(schedule.max_depth, 1), seed=seed)
    choice = scheduled(schedule, serving.max_num_seqs)

    def run(serving: Serving) -> list[Result]:
        return [simulate(serving)] + ([simulate(serving, choice=choice)] if schedule.max_depth > 0 else [])

    results = run_steadily(serving, run) if serving.steady else run(serving)
    return Service(
        load=load,
        gpus=pricer.scenario.layout.gpus,
        plain=Steady.of(results[0]),
        speculating=Steady.of(results[-1]),
        shortened=results[0].shortened,
    )


def _serving(pricer: Pricer, load: ServiceLoad, *, depth: int, seed: int) -> Serving:
    requests = load.requests or 1  # a steady run chooses its own number
    if load.users is not None:
        arrivals: ClosedLoop | Poisson = ClosedLoop(users=load.users, requests=requests)
    else:
        assert load.requests_per_second is not None
        arrivals = Poisson(requests_per_second=load.requests_per_second, requests=requests)
    ranks = pricer.scenario.layout.data_ranks if load.limits_per_rank else 1
    return Serving(
        pricer=pricer,
        workload=Workload(
            arrivals=arrivals,
            prompt=length_around(load.prompt_tokens, load.range_ratio),
            output=length_around(load.output_tokens, load.range_ratio),
        ),
        bank=drawn_rounds({"all": pricer.scenario.survival}, depth, seed=seed),
        engine=EngineSettings(
            max_num_seqs=max(load.max_num_seqs, -(-(load.users or 0) // ranks)),
            max_num_batched_tokens=load.max_num_batched_tokens,
            limits_per_rank=load.limits_per_rank,
            prefix_hit=load.prefix_hit,
            kv_arrives=load.kv_arrives,
        ),
        max_depth=depth,
        seed=seed,
        steady=load.requests is None,
    )
