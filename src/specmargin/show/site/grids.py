"""The tables of one cell: a model on GPUs in an engine, with its drafters.

Step and drafting times by context, depth and batch; memory; and what the range of a speed-up is made of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.certainty import (
    InputRange,
    acceptance_range,
    borrowed_routing,
    prices_range,
    routing_range,
)
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component
from specmargin.decisions.schedule import ONE_BY_ONE
from specmargin.decisions.setting import Setting
from specmargin.decisions.warnings import price_warnings
from specmargin.errors import InputError, ParallelismError
from specmargin.show.site.axes import COARSE_CONTEXTS, CONTEXTS, OCTAVES, SAMPLED, batches_up_to, knots
from specmargin.show.site.codes import BYTES, COARSE, EXPERTS, MOVED, QUANTUM, Row, coded, interpolated, packed, series
from specmargin.show.site.templates import command_templates
from specmargin.step import ArrayLike, FloatArray, Step

FORMAT = 3  # of the files; part of the key by which a build recognises its finished cells
DEPTH = 8
GPU_COUNTS = (1, 2, 4, 8, 16, 32)
_ROOM = (32, 4096)  # sequences, and tokens of each, for which GPUs are counted
_ANY = 0.0  # the context of a table that has one row
Table = Mapping[float, Row]  # by context, in the order in which they are stored


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model on one kind of GPU in one engine, with drafters, the first of which is the default."""

    model: str
    gpu: str
    gpus: int
    engine: str
    drafters: tuple[str, ...]

    def pricer(self, drafter: str) -> tuple[DraftChoice, Pricer]:
        request = ScenarioRequest(
            model=self.model, gpu=self.gpu, gpus=self.gpus, engine=self.engine, drafter=drafter, context=CONTEXTS[0]
        )
        choice, scenario = scenario_of(request)
        return choice, Pricer(scenario)


@lru_cache(maxsize=64)  # engines ask one after the other
def enough_gpus(model: str, gpu: str, drafter: str) -> int:
    """The fewest GPUs with room for a small service; else the fewest that hold the weights at all."""
    sequences, tokens = _ROOM
    holding: int | None = None
    for gpus in GPU_COUNTS:
        try:
            _, pricer = Cell(model=model, gpu=gpu, gpus=gpus, engine="vllm", drafters=()).pricer(drafter)
            longest = pricer.scenario.architecture.max_context or tokens
            room = pricer.with_context(float(min(tokens, longest))).largest_batch(DEPTH)
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


def cell_file(cell: Cell) -> bytes:
    """The file of one cell, as `static/cell.js` reads it."""
    grids = Grids(cell)
    header = json.dumps(grids.header(), ensure_ascii=False, separators=(",", ":"))
    return packed(header.encode(), (part for table in grids.tables() for part in coded(table)))


class Grids:
    """Everything that is priced for one cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.bounds: list[str] = []  # bottlenecks of one more position, in the order in which they are met
        self.drafters = [cell.pricer(name) for name in cell.drafters]

    @property
    def pricer(self) -> Pricer:
        return self.drafters[0][1]

    @property
    def setting(self) -> Setting:
        """What the engine can run, with a drafter of any depth."""
        return Setting(max_depth=DEPTH, graph_limit=self.pricer.scenario.engine_time.graph_limit)

    def depth_of(self, pricer: Pricer) -> int:
        return Setting.of(pricer.scenario, max_depth=DEPTH).max_depth

    # --- contexts and batches ---

    @cached_property
    def contexts(self) -> list[float]:
        """Those with every batch: a sequence fits, and the model reaches them."""
        return self._fitting(CONTEXTS)

    @cached_property
    def longest(self) -> float:
        """The longest context of the page."""
        return max(*self.contexts, *self._fitting(COARSE_CONTEXTS))

    @cached_property
    def all_contexts(self) -> list[float]:
        """Those with every batch, and those between and around them, in the order in which they are stored."""
        coarse = [float(tokens) for tokens in COARSE_CONTEXTS if tokens <= self.longest]
        return list(dict.fromkeys([*self.contexts, *coarse]))

    @property
    def memory_contexts(self) -> list[float]:
        """Memory is linear between them: windows end at octaves."""
        return [tokens for tokens in sorted(self.all_contexts) if tokens in {*OCTAVES, *self.contexts, self.longest}]

    def _fitting(self, contexts: Sequence[int]) -> list[float]:
        longest = self.pricer.scenario.architecture.max_context or max(contexts)
        wanted = [float(tokens) for tokens in contexts if tokens <= longest]
        return [tokens for tokens in wanted if self._most(tokens) >= 1] or wanted[:1]

    def _most(self, tokens: float) -> int:
        """The most sequences that fit under any setting."""
        at = [pricer.with_context(tokens) for _, pricer in self.drafters]
        return max(max(pricer.largest_batch(0), pricer.no_spec_largest_batch) for pricer in at)

    @cached_property
    def batches(self) -> list[FloatArray]:
        """By context: up to what fits at the context before, or at the shortest."""
        return [batches_up_to(self._most(float(before))) for before in [min(COARSE_CONTEXTS), *self.contexts[:-1]]]

    @property
    def largest(self) -> float:
        return max(float(batches[-1]) for batches in self.batches)

    @cached_property
    def knots(self) -> FloatArray:
        """The few batches of the other contexts."""
        return knots(self.largest, self.setting)

    @cached_property
    def sampled(self) -> FloatArray:
        """The few batches for which there is more than times."""
        return SAMPLED[: int(np.searchsorted(SAMPLED, self.largest)) + 1]

    @cached_property
    def anchors(self) -> list[tuple[float, float]]:
        """Batches and seconds, between which the unit of all seconds is linear: about a plain step's."""
        batches = sorted({1.0, float(ONE_BY_ONE), float(self.batches[0][-1])})
        seconds = self.pricer.grid(batches, 0, self.contexts[0]).no_spec_seconds
        return list(zip(batches, seconds.tolist(), strict=True))

    def in_units(self, seconds: FloatArray, batches: FloatArray) -> FloatArray:
        """By batch and column: seconds in multiples of about a plain step."""
        known = np.array(self.anchors)
        return np.asarray(seconds / np.interp(batches, known[:, 0], known[:, 1])[:, np.newaxis])

    # --- tables ---

    def tables(self) -> Iterator[Table]:
        """In the order in which `static/cell.js` reads them."""
        pairs = zip(self.contexts, self.batches, strict=True)
        yield {tokens: series(self._columns(batches, tokens), QUANTUM) for tokens, batches in pairs}
        yield self._corrections()
        if borrowed_routing(self.pricer.scenario):
            yield {tokens: series(self._uniform(tokens), MOVED) for tokens in self.contexts}
        yield {tokens: series(self.in_units(seconds, self.sampled), QUANTUM) for tokens, seconds, _ in self.added}
        yield {tokens: series(bounds, 1.0) for tokens, _, bounds in self.added}
        distinct = self.pricer.distinct_experts(self._sampled_steps(self.contexts[0]))
        if distinct is not None:
            yield {_ANY: series(np.broadcast_to(distinct, self._shape), EXPERTS)}
        yield {_ANY: series(np.array([self._memory(tokens) for tokens in self.memory_contexts]), BYTES)}

    def _columns(self, batches: FloatArray, tokens: ArrayLike) -> FloatArray:
        """By batch, in units: a plain step, verify steps from depth 0 on, and what each drafter drafts from depth 1 on.

        Missing where the engine has no CUDA graph, but for depth 1, which has a break-even everywhere.
        """
        grid = self.pricer.grid(batches, DEPTH, tokens)
        contexts = np.broadcast_to(np.asarray(tokens, dtype=np.float64), batches.shape)[:, np.newaxis]
        runs = self.setting.allowed(grid)
        runs[:, 1] = True
        columns = [grid.no_spec_seconds[:, np.newaxis], np.where(runs, grid.verify_seconds, np.nan)]
        for _, pricer in self.drafters:
            if _drafts_cost(pricer):
                depths = np.arange(1.0, self.depth_of(pricer) + 1.0)
                seconds = pricer.draft_seconds(batches[:, np.newaxis], depths, contexts)
                columns.append(np.where(runs[:, 1 : depths.size + 1], seconds, np.nan))
        return self.in_units(np.hstack(columns), batches)

    def _corrections(self) -> Table:
        """What interpolation between the contexts with every batch misses at the others, at a few batches."""
        contexts, count = self.all_contexts, self.knots.size
        batches, tokens = np.tile(self.knots, len(contexts)), np.repeat(contexts, count)
        columns = np.split(self._columns(batches, tokens), len(contexts))  # many at once cost little more than one
        exact = dict(zip(contexts, columns, strict=True))
        known = {tokens: exact[tokens] for tokens in self.contexts}
        return {at: series(exact[at] - interpolated(known, at, outside=True), COARSE) for at in contexts}

    def _uniform(self, tokens: float) -> FloatArray:
        """By batch, and depth of each drafter from 1 on: how far round over plain step moves under uniform routing."""
        columns = []
        for _, pricer in self.drafters:
            depth = self.depth_of(pricer)
            grids = [one.grid(self.sampled, depth, tokens) for one in (pricer.under_uniform_routing(), pricer)]
            uniform, ours = (np.log(grid.round_seconds / grid.no_spec_seconds[:, np.newaxis]) for grid in grids)
            columns.append((uniform - ours)[:, 1:])
        return np.hstack(columns)

    def _memory(self, tokens: float) -> list[float]:
        """Bytes of one sequence: without speculation, then at every depth of each drafter."""
        plain = self.pricer.sequence_bytes(None, tokens)
        depths = [(pricer, depth) for _, pricer in self.drafters for depth in range(self.depth_of(pricer) + 1)]
        return [plain, *(pricer.sequence_bytes(depth, tokens) for pricer, depth in depths)]

    # --- one more position, at a few batches ---

    @property
    def _shape(self) -> tuple[int, int]:
        return self.sampled.size, DEPTH + 1

    def _sampled_steps(self, tokens: float) -> Step:
        return Step.uniform(batch=self.sampled[:, np.newaxis], depth=np.arange(DEPTH + 1.0), context=tokens)

    @cached_property
    def added(self) -> list[tuple[float, FloatArray, FloatArray]]:
        """By context: seconds of one more position, and the place of its bottleneck in `bounds`, by batch and depth."""
        found, ranks = [], self.pricer.scenario.layout.sequence_ranks
        for tokens in self.contexts:
            now, more = self.pricer.marginal(self._sampled_steps(tokens))
            lines = marginal_by_component(now, more, positions=ranks)
            seconds = np.stack([np.broadcast_to(part, self._shape) for _, part in lines])
            most = [lines[int(line)][0] for line in seconds.argmax(axis=0).flat]
            names = [f"{line.component}: {line.resource(i)}" for i, line in enumerate(most)]
            self.bounds += [name for name in dict.fromkeys(names) if name not in self.bounds]
            bounds = np.array([float(self.bounds.index(name)) for name in names]).reshape(self._shape)
            found.append((tokens, seconds.sum(axis=0), bounds))
        return found

    # --- the header ---

    def header(self) -> dict[str, Any]:
        _ = self.added  # finds the bottlenecks
        scenario = self.pricer.scenario
        architecture = scenario.architecture
        return {
            "plan": self._plan(),
            "experts": architecture.pools[0].experts if architecture.pools else None,
            "moe_layers": sum(group.count for group, _ in architecture.expert_groups),
            "max_context": architecture.max_context,
            "contexts": self.contexts,
            "longest": self.longest,
            "anchors": self.anchors,
            "knots": self.knots.tolist(),
            "depth": DEPTH,
            "graph_limit": self.setting.graph_limit,
            "usable_bytes": self.pricer.memory.usable_bytes,
            "weight_bytes": self.pricer.memory.weight_bytes,
            "price_range": _input(prices_range(scenario, price_errors(scenario.prices.name))),
            "routing_range": _input(routing_range(scenario, 0.0)) if borrowed_routing(scenario) else None,
            "bounds": self.bounds,
            "warnings": self._warnings(),
            "commands": command_templates(self.cell.engine, self.cell.model, self.cell.gpus),
            "drafters": list(self._drafters()),
        }

    def _plan(self) -> dict[str, Any]:
        """The part of `plan --json` that no control changes."""
        scenario = self.pricer.scenario
        return {
            "model": self.cell.model,
            "gpu": self.cell.gpu,
            "gpus": self.cell.gpus,
            "parallel": str(scenario.layout.parallel),
            "engine": self.cell.engine,
            "prices": scenario.prices.name,
            "weights": scenario.weight_names,
            "kv_cache": scenario.kv_precision.name,
            "routing": scenario.routing.name if scenario.architecture.is_moe else None,
            "config_supported": True,
        }

    def _warnings(self) -> list[list[str]]:
        """About the prices at batch 1, by depth."""
        pricer = self.pricer.with_context(self.contexts[0])
        return [list(price_warnings(pricer, batch=1, depth=depth)) for depth in range(DEPTH + 1)]

    def _drafters(self) -> Iterator[dict[str, Any]]:
        """`columns`: where the drafter begins in the tables of times, memory and uniform routing."""
        times, held, moved = DEPTH + 2, 1, 0
        for choice, pricer in self.drafters:
            survival, depth, costs = pricer.scenario.survival, self.depth_of(pricer), _drafts_cost(pricer)
            yield {
                "name": pricer.scenario.drafter.name,
                "kind": choice.kind,
                "depth": depth,
                "limited": pricer.scenario.drafter.max_depth is not None,
                "columns": {"times": times if costs else None, "memory": held, "uniform": moved},
                "survival": [float(value) for value in survival.up_to(DEPTH)],
                "shift": list(survival.shift_range),
                "acceptance": _input(acceptance_range(survival, 1, own=False)),
                "weight_bytes": pricer.memory.drafter_bytes,
                "sources": {name: str(source) for name, source in pricer.sources.items()},
            }
            times, held, moved = times + (depth if costs else 0), held + depth + 1, moved + depth


def _input(of: InputRange) -> dict[str, Any]:
    """Its words, and the logarithms of its factors."""
    return {"phrase": of.phrase, "narrow": of.narrow, "range": [math.log(of.low), math.log(of.high)]}


def _drafts_cost(pricer: Pricer) -> bool:
    return bool(pricer.draft_seconds(1.0, 1.0, 1.0) > 0)
