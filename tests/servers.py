"""Servers as `doctor` sees them, made by the prices themselves: a healthy one, and faults put into it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.live.observation import Moment, Observation, ServerSettings
from specmargin.prices.launches import Graph
from specmargin.sources import assumed
from specmargin.verbs.doctor.answer import DoctorAnswer
from specmargin.verbs.doctor.machine import Machine
from specmargin.verbs.doctor.readings import answer_of
from specmargin.verbs.doctor.request_schema import DoctorRequest

SECONDS = 10.0
METHODS = {"mtp": "mtp", "eagle": "eagle3", "ngram": "ngram", "dflash": "dflash", "model": "draft_model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What runs, and how it is loaded; the default is a healthy server."""

    model: str = "qwen3.6-35b-a3b"
    gpu: str = "h200"
    gpus: int = 1
    drafter: str = "mtp"
    batch: float = 16.0
    depth: int = 3
    context: int = 2048
    survival: tuple[float, ...] | None = None  # None: the usual one
    prompt_rate: float = 0.0  # tokens per second
    slower: float = 1.0  # factor on the time of a step
    extra_seconds: float = 0.0  # per step
    engine_time: dict[str, Any] = field(default_factory=dict)  # how it differs from the release's own
    settings: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)  # fields of the observation that differ
    machine: Machine | None = None
    asked: dict[str, Any] = field(default_factory=dict)  # options of `doctor`

    # --- its prices ---

    @property
    def pricer(self) -> Pricer:
        pricer = _pricer(self.model, self.gpu, self.gpus, self.drafter, self.context)
        scenario = pricer.scenario
        if self.engine_time:
            scenario = replace(scenario, engine_time=replace(scenario.engine_time, **self.engine_time))
        return Pricer(replace(scenario, survival=self.curve(scenario.survival)))

    def curve(self, usual: Survival) -> Survival:
        if self.survival is None:
            return usual
        return Survival(by_depth=np.array(self.survival), source=assumed("of this server"))

    def round_seconds(self, batch: float) -> float:
        grid = self.pricer.grid([batch], max(self.depth, 1))
        return float(grid.round_seconds[0, self.depth]) * self.slower + self.extra_seconds

    # --- what it shows ---

    def observation(self) -> Observation:
        pricer = self.pricer
        shares = tuple(float(share) for share in pricer.scenario.survival.up_to(self.depth)) if self.depth else ()
        length = 1.0 + sum(shares)
        prompt = 1024
        share = min(self.prompt_rate * pricer.prefill_seconds(prompt, speculating=True) / prompt, 0.9)
        seconds = self.round_seconds(self.batch) / (1.0 - share)
        tokens = self.batch * length / seconds
        settings: dict[str, Any] = {
            "method": METHODS[self.drafter.split(":")[0]],
            "depth": self.depth,
            "graph_mode": "FULL_AND_PIECEWISE",
        }
        own: dict[str, Any] = {
            "engine": "vllm",
            "source": "http://localhost:8000",
            "settings": ServerSettings(**settings | self.settings),
            "seconds": SECONDS,
            "running": self.batch,
            "waiting": 0.0,
            "steps_per_second": 1.0 / seconds,
            "sequences_per_step": self.batch,
            "seconds_per_round": seconds,
            "generated_tokens_per_second": tokens,
            "prompt_tokens_per_second": self.prompt_rate,
            "prompt_tokens_per_request": float(prompt),
            "context": float(self.context),
            "seconds_per_output_token": seconds / length,
            "kv_share": 0.4,
            "preemptions": 0.0,
            "speculates": True,
            "rounds": self.batch / seconds * SECONDS,
            "drafted_per_round": float(self.depth),
            "accept_length": length,
            "survival": shares,
        }
        return Observation(**own | self.seen)

    def moments(self, batches: list[float]) -> tuple[Moment, ...]:
        length = 1.0 + float(self.pricer.scenario.survival.up_to(self.depth).sum())
        return tuple(
            Moment(
                at_seconds=float(i),
                running=batch,
                accept_length=length,
                generated_tokens_per_second=batch * length / self.round_seconds(batch),
            )
            for i, batch in enumerate(batches)
        )

    def answer(self) -> DoctorAnswer:
        asked: dict[str, Any] = {
            "url": "http://localhost:8000",
            "model": self.model,
            "gpu": self.gpu,
            "gpus": self.gpus,
        }
        asked |= {"prices": "laws", "drafter": self.drafter} | self.asked
        return answer_of(DoctorRequest(**asked), self.observation(), self.machine)


@cache
def _pricer(model: str, gpu: str, gpus: int, drafter: str, context: int) -> Pricer:
    request = ScenarioRequest(model=model, gpu=gpu, gpus=gpus, drafter=drafter, context=context, prices="laws")
    return Pricer(scenario_of(request)[1])


EAGER = dict.fromkeys(("plain_graph", "verify_graph", "first_draft_graph", "draft_graph"), Graph.EAGER)
PIECEWISE = dict.fromkeys(EAGER, Graph.PIECEWISE)
NO_DRAFT_GRAPHS = {"first_draft_graph": Graph.COMPILED, "draft_graph": Graph.COMPILED}
