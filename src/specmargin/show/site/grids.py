"""The files of one cell: a model on GPUs in an engine, with its drafters.

A header, and per context a table: step and drafting times by depth and batch, the price of one more position, and at a
few batches what uniform routing would change and how uncertain prices are. `static/cell.js` reads them. Every batch
to 512 is there, since a schedule is decided batch by batch, and every context of the page's slider; between those, the
page interpolates.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.drafter_titles import drafter_titles
from specmargin.catalog.drafters import DraftChoice
from specmargin.catalog.gpu_hours import gpu_hour
from specmargin.decisions.certainty import InputRange, acceptance_range, borrowed_routing, prices_range, routing_range
from specmargin.decisions.payoff import SEARCHED_CONTEXTS
from specmargin.decisions.plan import HORIZON
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import marginal_by_component, rounded_seconds
from specmargin.decisions.schedule import ONE_BY_ONE, spread
from specmargin.decisions.setting import Setting
from specmargin.decisions.unknowns import price_unknowns
from specmargin.decisions.warnings import price_warnings
from specmargin.formats import find_engine
from specmargin.show.site.templates import command_templates, templates
from specmargin.step import FloatArray, Step

FORMAT = 8  # of the files; part of the key by which a build recognises its finished cells
DEPTH = 8
CONTEXTS = tuple(round(512 * 2 ** (half / 2)) for half in range(17))  # the steps of the page's slider, to 131,072
QUANTUM = 3e-6  # of logarithms and shares
HURDLE_QUANTUM = 2e-4  # of what one more position per sequence adds, over a plain step
_SAMPLED = np.unique(np.outer(2.0 ** np.arange(11), [4, 5, 6, 7, 8]).ravel()).tolist()  # four to every doubling
_LOOKED_AT = spread(HORIZON).astype(np.float64)  # by schedules
_NEAR = 2e-4  # largest relative error of a time that is interpolated between batches, at the shortest context


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


def cell_files(cell: Cell) -> Iterator[tuple[str, bytes]]:
    """What follows the cell's name, and what is in the file."""
    grids = Grids(cell)
    for tokens in grids.contexts:
        yield f"/{tokens}.bin", packed(grids.table(tokens))
    yield ".json", json.dumps(grids.header(), ensure_ascii=False, separators=(",", ":")).encode()


def packed(tables: Iterable[FloatArray]) -> bytes:
    """Multiples of the quantum, each as its difference from the one before it in its row: prices are smooth.

    The lowest bytes of all numbers come first, then the next ones: like beside like takes less.
    """
    whole = [np.diff(np.round(rows / QUANTUM), axis=1, prepend=0.0).astype("<i4").ravel() for rows in tables]
    by_byte = np.concatenate(whole).view(np.uint8).reshape(-1, 4).T
    return zlib.compress(by_byte.tobytes(), 9)


class Grids:
    """Everything that is priced for one cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.bounds: list[str] = []  # bottlenecks of one more position, in the order in which they are met
        self.price_unknowns: list[str] = []  # what is most uncertain about prices, likewise
        self.drafters = [cell.pricer(name) for name in cell.drafters]
        self.depths = [Setting.of(pricer.scenario, max_depth=DEPTH).max_depth for _, pricer in self.drafters]

    @property
    def pricer(self) -> Pricer:
        return self.drafters[0][1]

    @cached_property
    def contexts(self) -> list[int]:
        """Those that the model reaches and at which a sequence fits."""
        longest = self.pricer.scenario.architecture.max_context or CONTEXTS[-1]
        reached = [tokens for tokens in CONTEXTS if tokens <= longest]
        return [tokens for tokens in reached if self._most(tokens) >= 1] or reached[:1]

    def _most(self, tokens: int) -> int:
        """The most sequences that fit under any setting."""
        at = [pricer.with_context(float(tokens)) for _, pricer in self.drafters]
        return max(max(pricer.largest_batch(0), pricer.no_spec_largest_batch) for pricer in at)

    @cached_property
    def batches(self) -> FloatArray:
        """To 512 at least, and to what fits at the shortest context: all that schedules look at, and what lies around
        steps of kernels between them, where whether a large batch loses 2% would else be guessed."""
        most = max(self._most(CONTEXTS[0]), ONE_BY_ONE)
        knots = _LOOKED_AT[: int(np.searchsorted(_LOOKED_AT, most)) + 1]
        every = np.arange(ONE_BY_ONE + 1.0, knots[-1] + 1.0)
        if every.size == 0:
            return knots
        grids = [p.grid(every, depth, CONTEXTS[0]) for (_, p), depth in zip(self.drafters, self.depths, strict=True)]
        seconds = [times for grid in grids for times in (grid.no_spec_seconds, *grid.round_seconds.T)]
        return _with_steps(knots, every, np.stack(seconds))

    @cached_property
    def sampled(self) -> FloatArray:
        """The few batches for which there is more than times: ranges jump where a depth leaves the CUDA graphs."""
        limit = self.pricer.scenario.engine_time.graph_limit
        last = np.array([] if limit is None else [limit // (depth + 1) for depth in range(1, DEPTH + 1)])
        few = np.unique([1, 2, 3, *_SAMPLED, *last, *last + 1])
        return few[: int(np.searchsorted(few, self.batches[-1])) + 1]

    # --- the table of a context: rows over batches ---

    def table(self, tokens: int) -> Iterator[FloatArray]:
        """In the order in which `static/cell.js` reads them; times as logarithms."""
        grid = self.pricer.grid(self.batches, DEPTH, tokens)
        yield np.log(grid.no_spec_seconds)[np.newaxis]
        yield np.log(grid.verify_seconds.T / grid.no_spec_seconds)
        for (_, pricer), depth in zip(self.drafters, self.depths, strict=True):
            # Over the shared verify step: an engine may schedule the rounds of one drafter in its own way.
            rounds = pricer.grid(self.batches, depth, tokens).round_seconds
            yield np.log(rounds / grid.verify_seconds[:, : depth + 1]).T[1:]
        for _, pricer in self.drafters:  # an engine may prepare the steps of one drafter in its own way
            yield from self._one_more(pricer, tokens)
        for (_, pricer), depth in zip(self.drafters, self.depths, strict=True):
            yield self._uniform(pricer, depth, tokens)
        for (_, pricer), depth in zip(self.drafters, self.depths, strict=True):
            yield from self._price_ranges(pricer, depth, tokens)

    def _one_more(self, pricer: Pricer, tokens: int) -> Iterator[FloatArray]:
        """By depth and batch: one more position of every sequence over a plain step, each at the price of the first,
        and the place of its bottleneck in `bounds`. At every batch: both change where kernels change their tiles."""
        steps = Step.uniform(batch=self.batches[:, np.newaxis], depth=np.arange(DEPTH + 1.0), context=tokens)
        now, more = pricer.marginal(steps)
        lines = marginal_by_component(now, more, positions=pricer.scenario.layout.sequence_ranks)
        seconds = np.stack([np.broadcast_to(part, steps.positions.shape) for _, part in lines])
        added = np.vectorize(rounded_seconds)(seconds.sum(axis=0).T)
        shares = added * self.batches / pricer.grid(self.batches, 0, tokens).no_spec_seconds
        yield np.where(added > 0.0, np.maximum(shares, HURDLE_QUANTUM), 0.0) * (QUANTUM / HURDLE_QUANTUM)
        most = [lines[int(line)][0] for line in seconds.argmax(axis=0).flat]
        names = [f"{line.component}: {line.resource(i)}" for i, line in enumerate(most)]
        yield _places(names, self.bounds).reshape(seconds.shape[1:]).T * QUANTUM

    def _uniform(self, pricer: Pricer, depth: int, tokens: int) -> FloatArray:
        """By depth from 1 on: how far the logarithm of round over plain step moves under uniform routing."""
        if not borrowed_routing(pricer.scenario):
            return np.zeros((depth, self.sampled.size))
        grids = [one.grid(self.sampled, depth, tokens) for one in (pricer.under_uniform_routing(), pricer)]
        uniform, ours = (np.log(grid.round_seconds.T / grid.no_spec_seconds) for grid in grids)
        return np.asarray((uniform - ours)[1:])

    def _price_ranges(self, pricer: Pricer, depth: int, tokens: int) -> Iterator[FloatArray]:
        """By depth from 1 on: logarithms of the factors of prices, low and high, and the largest unknown's place."""
        errors, shape = price_errors(pricer.scenario.prices.name, self.cell.gpu), (depth, self.sampled.size)
        unknowns = price_unknowns(pricer, self.sampled, np.arange(1.0, depth + 1.0)[:, np.newaxis], float(tokens))
        inputs = [prices_range(pricer.scenario, errors, unknowns, point) for point in range(depth * self.sampled.size)]
        yield np.log([each.low for each in inputs]).reshape(shape)
        yield np.log([each.high for each in inputs]).reshape(shape)
        yield _places([each.phrase for each in inputs], self.price_unknowns).reshape(shape) * QUANTUM

    def _steps(self, tokens: int) -> Step:
        return Step.uniform(batch=self.sampled[:, np.newaxis], depth=np.arange(DEPTH + 1.0), context=tokens)

    # --- the header, after the tables: they find the bottlenecks ---

    def header(self) -> dict[str, Any]:
        scenario, memory = self.pricer.scenario, self.pricer.memory
        architecture = scenario.architecture
        experts = self.pricer.distinct_experts(self._steps(self.contexts[0]))
        return {
            "plan": self._plan(),
            "experts": architecture.pools[0].experts if architecture.pools else None,
            "distinct": None if experts is None else np.round(experts.T, 3).tolist(),
            "moe_layers": sum(group.count for group, _ in architecture.expert_groups),
            "contexts": self.contexts,
            "batches": self.batches.astype(int).tolist(),
            "sampled": self.sampled.astype(int).tolist(),
            "searched": self._searched().tolist(),
            "quantum": QUANTUM,
            "hurdle_quantum": HURDLE_QUANTUM,
            "depth": DEPTH,
            "graph_limit": scenario.engine_time.graph_limit,
            "free_bytes": memory.usable_bytes - memory.weight_bytes,
            "bytes": [self.pricer.sequence_bytes(None, tokens) for tokens in self.contexts],
            "price_range": self._kind_of_prices(),
            "price_unknowns": self.price_unknowns,
            "routing_range": self._routing_range(),
            "bounds": self.bounds,
            "warnings": self._warnings(),
            "commands": command_templates(self.cell.engine, self.cell.model, self.cell.gpus),
            "drafters": list(self._drafters()),
            "drafter_titles": drafter_titles(architecture, self.drafters[0][0]),
        }

    def _kind_of_prices(self) -> dict[str, Any]:
        """The range of prices of this kind."""
        scenario = self.pricer.scenario
        errors = price_errors(scenario.prices.name, self.cell.gpu)
        return _input(prices_range(scenario, errors))

    def _routing_range(self) -> dict[str, Any] | None:
        """Its words: how far routing moves the answer is in the tables."""
        scenario = self.pricer.scenario
        if not scenario.architecture.is_moe:
            return None
        return _input(routing_range(scenario, 0.0 if borrowed_routing(scenario) else None))

    def _plan(self) -> dict[str, Any]:
        """The part of `plan --json` that no control changes, and the list price, which one replaces."""
        scenario, hour = self.pricer.scenario, gpu_hour(self.cell.gpu)
        return {
            "model": self.cell.model,
            "gpu": self.cell.gpu,
            "gpus": self.cell.gpus,
            "parallel": scenario.layout.name,
            "engine": self.cell.engine,
            "prices": scenario.prices.name,
            "weights": scenario.weight_names,
            "kv_cache": scenario.kv_precision.name,
            "routing": scenario.routing.name if scenario.architecture.is_moe else None,
            "config_supported": True,
            "gpu_hour": None if hour is None else asdict(hour),
        }

    def _warnings(self) -> list[list[str]]:
        """About the prices at batch 1, by depth."""
        pricer = self.pricer.with_context(float(self.contexts[0]))
        return [list(price_warnings(pricer, batch=1, depth=depth)) for depth in range(DEPTH + 1)]

    def _searched(self) -> FloatArray:
        """Contexts at which it is asked whether speculation still pays at batch 1."""
        return np.unique(np.minimum(SEARCHED_CONTEXTS, self.pricer.scenario.architecture.max_context or np.inf))

    def _drafters(self) -> Iterator[dict[str, Any]]:
        searched = self._searched()
        for (choice, pricer), depth in zip(self.drafters, self.depths, strict=True):
            scenario, survival = pricer.scenario, pricer.scenario.survival
            grid = pricer.grid(np.ones_like(searched), depth, searched)
            yield {
                "name": scenario.drafter.name,
                "kind": choice.kind,
                "format": templates(find_engine(self.cell.engine), choice),
                "depth": depth,
                "bytes": [
                    [pricer.sequence_bytes(each, tokens) for each in range(depth + 1)] for tokens in self.contexts
                ],
                "weight_bytes": pricer.memory.drafter_bytes,
                # By depth and searched context: a round over a plain step, at batch 1.
                "ratios": np.round(grid.round_seconds.T / grid.no_spec_seconds, 6).tolist(),
                "survival": [float(value) for value in survival.up_to(DEPTH)],
                "known": int(survival.by_depth.size),  # depths of it, the others are extrapolated
                "shift": list(survival.shift_range),
                "acceptance": _input(acceptance_range(survival, 1, own=False)),
                "sources": {name: str(source) for name, source in pricer.sources.items()},
            }


def _with_steps(knots: FloatArray, every: FloatArray, seconds_by_series: FloatArray) -> FloatArray:
    """The knots, and between two of them the worst interpolated one, until none is off by more than `_NEAR`."""
    while True:
        at = np.searchsorted(every, knots[knots >= every[0]])
        read = np.stack([np.interp(every, every[at], series[at]) for series in seconds_by_series])
        error = np.abs(read / seconds_by_series - 1.0).max(axis=0)
        error[: at[0]] = 0.0  # beside the last of the batches before them
        if error.max() <= _NEAR:
            return knots
        between = np.searchsorted(knots, every)
        worst = np.lexsort((error, between))[np.flatnonzero(np.diff(np.sort(between), append=-1))]
        knots = np.union1d(knots, every[worst[error[worst] > _NEAR]])


def _places(names: Sequence[str], known: list[str]) -> FloatArray:
    """The place of each name in a list that grows by those it lacks."""
    known += [name for name in dict.fromkeys(names) if name not in known]
    return np.array([known.index(name) for name in names], dtype=np.float64)


def _input(of: InputRange) -> dict[str, Any]:
    """Its words, and the logarithms of its factors."""
    words = {"name": of.name, "origin": of.origin, "phrase": of.phrase, "narrow": of.narrow}
    return words | {"range": [math.log(of.low), math.log(of.high)]}
