"""The grids of one cell: a model on GPUs in an engine, with its drafters.

Step times by batch, depth and context; drafting; memory; and what the range of a speed-up is made of. Every batch to
512 is there, to a millionth of a step, since a schedule is decided batch by batch; beyond, as many as keep
interpolation exact enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.grid import Grid
from specmargin.decisions.plan import HORIZON
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component
from specmargin.decisions.schedule import ONE_BY_ONE, spread
from specmargin.decisions.setting import Setting
from specmargin.decisions.warnings import price_warnings
from specmargin.errors import InputError, ParallelismError
from specmargin.formats import find_engine
from specmargin.routing.profile import UNIFORM
from specmargin.site.coding import BYTES, COARSE, EXPERTS, MOVED, packed, quantised
from specmargin.site.corrections import CONTEXTS as COARSE_CONTEXTS
from specmargin.site.corrections import OCTAVES, corrections, knots
from specmargin.site.templates import command_templates
from specmargin.sources import SourceKind
from specmargin.step import ArrayLike, BoolArray, FloatArray, IntArray, Step

FORMAT = 2  # of the files; part of the key by which a build recognises its finished cells
DEPTH = 8
CONTEXTS = (1024, 8192, 65_536)
GPU_COUNTS = (1, 2, 4, 8, 16, 32)
SAMPLED = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192.0])
_ROOM = (32, 4096)  # sequences, and tokens of each, for which GPUs are counted


def _beyond() -> FloatArray:
    """Batches above 512: those that a schedule up to the horizon looks at, and one between any two of them."""
    looked_at = spread(HORIZON)[ONE_BY_ONE - 1 :].astype(np.float64)
    return np.union1d(looked_at, ((looked_at[1:] + looked_at[:-1]) / 2.0).round())[1:]


BEYOND = _beyond()


def shared() -> dict[str, list[int]]:
    """What all cells have in common, for `static/cell.js`."""
    return {
        "beyond": BEYOND.astype(int).tolist(),
        "sampled": SAMPLED.astype(int).tolist(),
        "coarse": list(COARSE_CONTEXTS),
        "octaves": list(OCTAVES),
    }


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
    return packed(header.encode(), grids.series())


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
    def coarse_contexts(self) -> list[float]:
        """Those between and around them, with a few batches: they shape the interpolation."""
        return [float(tokens) for tokens in COARSE_CONTEXTS if tokens <= self.longest and tokens not in self.contexts]

    @cached_property
    def longest(self) -> float:
        """The longest context of the page."""
        return max(*self.contexts, *self._fitting(COARSE_CONTEXTS))

    @property
    def all_contexts(self) -> list[float]:
        return sorted([*self.contexts, *self.coarse_contexts])

    @property
    def memory_contexts(self) -> list[float]:
        """Memory is linear between them: windows end at octaves."""
        return [tokens for tokens in self.all_contexts if tokens in {*OCTAVES, *self.contexts, self.longest}]

    @cached_property
    def knots(self) -> FloatArray:
        """The few batches of coarse contexts."""
        return knots(self.largest, self.setting)

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
        """By context: every batch to 512, and knots up to what fits at the context before, or at the shortest."""
        found = []
        for before in [min(COARSE_CONTEXTS), *self.contexts[:-1]]:
            most = min(self._most(float(before)), HORIZON)
            count = int(np.searchsorted(BEYOND, most)) + 1 if most > ONE_BY_ONE else 0
            found.append(np.concatenate([np.arange(1.0, ONE_BY_ONE + 1.0), BEYOND[:count]]))
        return found

    @cached_property
    def grids(self) -> list[Grid]:
        """Of the first drafter, by context; verify steps are the same for all drafters."""
        pairs = zip(self.contexts, self.batches, strict=True)
        return [self.pricer.grid(batches, DEPTH, tokens) for tokens, batches in pairs]

    def stored(self, grid: Grid) -> BoolArray:
        """By batch and column of `_columns`: what the engine runs in a CUDA graph, and depth 1 for its break-even."""
        kept = np.column_stack([np.ones(grid.batches.size, dtype=bool), self.setting.allowed(grid)])
        kept[:, 2] = True
        return kept

    @property
    def sampled(self) -> FloatArray:
        """The few batches for which there is more than times."""
        return SAMPLED[: int(np.searchsorted(SAMPLED, self.largest)) + 1]

    @property
    def largest(self) -> float:
        return max(float(batches[-1]) for batches in self.batches)

    # --- units ---

    @cached_property
    def anchors(self) -> list[tuple[float, float]]:
        """Batches and seconds, between which the unit of all seconds is linear: about a plain step's."""
        grid = self.grids[0]
        return [
            (float(grid.batches[i]), float(grid.no_spec_seconds[i]))
            for i in sorted({0, ONE_BY_ONE - 1, grid.batches.size - 1})
        ]

    def in_units(self, seconds: FloatArray, batches: FloatArray) -> FloatArray:
        """By batch and column: seconds in multiples of about a plain step."""
        known = np.array(self.anchors)
        unit = np.asarray(np.interp(batches, known[:, 0], known[:, 1]))
        return np.asarray(seconds / unit[:, np.newaxis])

    # --- the file ---

    def series(self) -> Iterator[IntArray]:
        """In the order in which `static/cell.js` reads them."""
        yield from self._steps()
        for _, pricer in self.drafters:
            yield from self._drafting(pricer)
        yield from self._corrections()
        for _, pricer in self.drafters:
            yield from self._uniform(pricer)
        yield from self._one_more()
        yield from self._memory()

    def _steps(self) -> Iterator[IntArray]:
        """By context: plain steps, and steps at every depth. Contexts differ by attention, alike at all depths."""
        before: IntArray | None = None
        for grid in self.grids:
            now, kept = quantised(self.in_units(_columns(grid), grid.batches)), self.stored(grid)
            moved = now if before is None else now - before[: len(now)]
            for column in range(now.shape[1]):
                rows = kept[:, column]
                known = column == 1 or (before is not None and column > 0)  # depth 0 is a plain step and a little more
                yield moved[rows, column] - (moved[rows, column - 1] if known else 0)
            before = now

    def _drafting(self, pricer: Pricer) -> Iterator[IntArray]:
        """By context and depth from 1; drafting is almost linear in depth."""
        if not _drafts_cost(pricer):
            return
        before: IntArray | None = None
        for tokens, grid in zip(self.contexts, self.grids, strict=True):
            seconds, kept = self._draft_seconds(pricer, grid, tokens), self.stored(grid)
            now = quantised(self.in_units(seconds, grid.batches))
            moved = now if before is None else now - before[: len(now)]
            for depth in range(1, now.shape[1]):
                bent = moved[:, depth] - (2 * moved[:, depth - 1] - moved[:, depth - 2] if depth > 1 else 0)
                yield bent[kept[:, depth + 1]]
            before = now

    def _draft_seconds(self, pricer: Pricer, grid: Grid, tokens: ArrayLike) -> FloatArray:
        """At the batches of `grid`, which has those of the first drafter."""
        depths = np.arange(self.depth_of(pricer) + 1.0)
        if pricer is self.pricer:
            return grid.draft_seconds[:, : depths.size]
        contexts = np.broadcast_to(np.asarray(tokens, dtype=np.float64), grid.batches.shape)
        return pricer.draft_seconds(grid.batches[:, np.newaxis], depths, contexts[:, np.newaxis])

    def _corrections(self) -> Iterator[IntArray]:
        """Of steps, and of each drafter: what interpolation between the contexts misses."""
        contexts, knots = self.all_contexts, self.knots
        batches, tokens = np.tile(knots, len(contexts)), np.repeat(contexts, knots.size)
        grid = self.pricer.grid(batches, DEPTH, tokens)  # all at once: pricing many points costs little more than one
        kept = self.stored(grid)[: knots.size]

        def stored(seconds: FloatArray, kept: BoolArray) -> Iterator[IntArray]:
            by_context = np.split(self.in_units(seconds, batches) / COARSE, len(contexts))
            return corrections(dict(zip(contexts, by_context, strict=True)), self.contexts, self.coarse_contexts, kept)

        yield from stored(_columns(grid), kept)
        for _, pricer in self.drafters:
            if _drafts_cost(pricer):
                yield from stored(
                    self._draft_seconds(pricer, grid, tokens)[:, 1:], kept[:, 2 : self.depth_of(pricer) + 2]
                )

    def _uniform(self, pricer: Pricer) -> Iterator[IntArray]:
        """By context and depth from 1: how far the ratio of round and plain step moves under uniform routing."""
        if not self.borrowed_routing:
            return
        other, depth = pricer.under_uniform_routing(), self.depth_of(pricer)
        for tokens in self.contexts:
            ours, uniform = (one.grid(self.sampled, depth, tokens) for one in (pricer, other))
            moved = [np.log(grid.round_seconds / grid.no_spec_seconds[:, np.newaxis]) for grid in (uniform, ours)]
            for each in range(1, depth + 1):
                yield quantised((moved[0] - moved[1])[:, each], MOVED)

    # --- one more position, at a few batches ---

    def _one_more(self) -> Iterator[IntArray]:
        """By context and depth: seconds that one more position adds, and what it waits for. By depth: experts read."""
        for seconds, bound in self.added:
            now = quantised(self.in_units(seconds, self.sampled))
            for depth in range(DEPTH + 1):
                yield from (now[:, depth], bound[:, depth])
        distinct = self.pricer.distinct_experts(self._steps_at(self.contexts[0]))
        if distinct is not None:
            yield from (quantised(part, EXPERTS) for part in np.broadcast_to(distinct, self._shape).T)

    def _memory(self) -> Iterator[IntArray]:
        """Bytes of one sequence: by context without speculation; for each drafter and context, by depth."""
        plain = [self.pricer.sequence_bytes(None, tokens) for tokens in self.memory_contexts]
        yield quantised(np.array(plain), BYTES)
        for _, pricer in self.drafters:
            for tokens in self.memory_contexts:
                held = [pricer.sequence_bytes(depth, tokens) for depth in range(self.depth_of(pricer) + 1)]
                yield quantised(np.array(held), BYTES)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.sampled.size, DEPTH + 1

    def _steps_at(self, tokens: float) -> Step:
        return Step.uniform(batch=self.sampled[:, np.newaxis], depth=np.arange(DEPTH + 1.0), context=tokens)

    @cached_property
    def added(self) -> list[tuple[FloatArray, IntArray]]:
        """By context: seconds of one more position, and the place of its bottleneck in `bounds`."""
        found, ranks = [], self.pricer.scenario.layout.sequence_ranks
        for tokens in self.contexts:
            now, more = self.pricer.marginal(self._steps_at(tokens))
            lines = marginal_by_component(now, more, positions=ranks)
            seconds = np.stack([np.broadcast_to(part, self._shape) for _, part in lines])
            most = seconds.argmax(axis=0)
            names = [
                f"{lines[int(line)][0].component}: {lines[int(line)][0].resource(i)}"
                for i, line in enumerate(most.flat)
            ]
            found.append((seconds.sum(axis=0), np.array([self._bound(name) for name in names]).reshape(self._shape)))
        return found

    def _bound(self, name: str) -> int:
        if name not in self.bounds:
            self.bounds.append(name)
        return self.bounds.index(name)

    @property
    def borrowed_routing(self) -> bool:
        routing = self.pricer.scenario.routing
        borrowed = routing.source.kind is SourceKind.ASSUMED and routing is not UNIFORM
        return self.pricer.scenario.architecture.is_moe and borrowed

    def header(self) -> dict[str, Any]:
        _ = self.added  # finds the bottlenecks
        scenario, engine = self.pricer.scenario, find_engine(self.cell.engine)
        architecture, errors = scenario.architecture, price_errors(scenario.prices.name)
        return {
            "model": self.cell.model,
            "gpu": self.cell.gpu,
            "gpus": self.cell.gpus,
            "engine": engine.name,
            "prices": scenario.prices.name,
            "weights": scenario.weight_names,
            "kv_cache": scenario.kv_precision.name,
            "routing": scenario.routing.name if architecture.is_moe else None,
            "experts": architecture.pools[0].experts if architecture.pools else None,
            "moe_layers": sum(group.count for group, _ in architecture.expert_groups),
            "max_context": architecture.max_context,
            "contexts": self.contexts,
            "longest": self.longest,
            "anchors": self.anchors,
            "beyond_counts": [batches.size - ONE_BY_ONE for batches in self.batches],
            "sampled_count": self.sampled.size,
            "knots": self.knots.tolist(),
            "depth": DEPTH,
            "graph_limit": self.setting.graph_limit,
            "usable_bytes": self.pricer.memory.usable_bytes,
            "weight_bytes": self.pricer.memory.weight_bytes,
            "price_errors": [errors.low, errors.high],
            "borrowed_routing": self.borrowed_routing,
            "bounds": self.bounds,
            "warnings": self._warnings(),
            "commands": command_templates(engine.name, self.cell.model, self.cell.gpus),
            "drafters": [self._drafter(choice, pricer) for choice, pricer in self.drafters],
        }

    def _warnings(self) -> list[list[str]]:
        """About the prices at batch 1, by depth."""
        pricer = self.pricer.with_context(self.contexts[0])
        return [list(price_warnings(pricer, batch=1, depth=depth)) for depth in range(DEPTH + 1)]

    def _drafter(self, choice: DraftChoice, pricer: Pricer) -> dict[str, Any]:
        survival, depth = pricer.scenario.survival, self.depth_of(pricer)
        return {
            "name": pricer.scenario.drafter.name,
            "kind": choice.kind,
            "depth": depth,
            "limited": pricer.scenario.drafter.max_depth is not None,
            "costs": _drafts_cost(pricer),
            "survival": [float(value) for value in survival.up_to(DEPTH)],
            "shift": list(survival.shift_range),
            "borrowed_acceptance": survival.source.kind is SourceKind.ASSUMED,
            "weight_bytes": pricer.memory.drafter_bytes,
            "sources": {name: str(source) for name, source in pricer.sources.items()},
        }


def _columns(grid: Grid) -> FloatArray:
    """By batch: seconds of a plain step, and of a verify step at every depth from 0."""
    return np.column_stack([grid.no_spec_seconds, grid.verify_seconds])


def _drafts_cost(pricer: Pricer) -> bool:
    return bool(pricer.draft_seconds(1.0, 1.0, 1.0) > 0)
