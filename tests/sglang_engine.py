"""SGLang's own adaptive controller, plug-in loader and parameters on a CPU, with a stub for the worker.

The modules are those of the fetched wheel. Four that need a GPU or the whole server are stubs.
"""

from __future__ import annotations

import sys
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from specmargin.formats.sglang import graph_batch_sizes
from tests.conftest import ROOT
from tests.sglang_source import NEWEST, source

PARAMS = "sglang.srt.speculative.adaptive_spec_params"
SIZES = [size for size in graph_batch_sizes(64) if size <= 64]  # of CUDA graphs


@dataclass
class Worker:
    """What `AdaptiveController` needs of SGLang's worker."""

    speculative_num_steps: int
    sizes_by_steps: dict[int, list[int] | None] = field(default_factory=dict)

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> Any:
        assert speculative_num_draft_tokens == speculative_num_steps + 1
        self.sizes_by_steps[speculative_num_steps] = cuda_graph_bs
        return SimpleNamespace(speculative_num_steps=speculative_num_steps)

    def apply_runtime_state(self, state: Any) -> None:
        self.speculative_num_steps = state.speculative_num_steps


@dataclass
class Rank:
    """One process of SGLang, with the order of its event loop: outcomes come `lag` rounds late."""

    controller: Any
    worker: Worker
    lag: int = 0
    in_flight: deque[tuple[list[int], int]] = field(default_factory=deque)

    def decide(self, batch: int) -> int:
        self.controller.activate_step_by_batch(batch)
        return self.worker.speculative_num_steps

    def round(self, lengths: Sequence[int]) -> int:
        """Decide and run a round; `lengths`: tokens that the target would accept, by sequence. Returns the depth."""
        depth = self.decide(len(lengths))
        self.in_flight.append(([min(length, depth) for length in lengths], len(lengths)))
        if len(self.in_flight) > self.lag:
            self.controller.on_verify_complete(*self.in_flight.popleft())
        return depth


@dataclass
class Sglang:
    """A process in which SGLang is imported. `log`: what it says on rank 0."""

    log: list[str]
    tp_rank: int = 0
    others: list[str] = field(default_factory=list)  # fingerprints of the other ranks

    @property
    def parallel(self) -> Any:
        """SGLang's `get_parallel()`."""
        group = SimpleNamespace(world_size=1 + len(self.others), all_gather_object=lambda own: [own, *self.others])
        return SimpleNamespace(tp_rank=self.tp_rank, dp_rank=None, tp_group=group)

    def load_plugins(self) -> None:
        """As SGLang does in every process."""
        import_module("sglang.srt.plugins").load_plugins()

    def rank(self, file: Path | None, steps: int, *, sizes: Iterable[int] | None = range(1, 65), lag: int = 0) -> Rank:
        """As SGLang's EAGLE worker makes it."""
        params = import_module(PARAMS).AdaptiveSpeculativeParams(
            initial_steps=steps, cfg_path=None if file is None else str(file)
        )
        worker = Worker(steps)
        controller = import_module("sglang.srt.speculative.adaptive_runtime_state").AdaptiveController(worker, params)
        controller.register(SimpleNamespace(speculative_num_steps=steps))
        controller.init_states(cuda_graph_bs=None if sizes is None else list(sizes))
        return Rank(controller, worker, lag)


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of this project, as an installed package has them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"].get(group, {})
    return [EntryPoint(name, value, group) for name, value in declared.items()]


@contextmanager
def sglang(version: str | None = None, *, release: str = NEWEST, root: Path | None = None) -> Iterator[Sglang]:
    """Import the modules of a release by their own names; everything is undone at the end. `version`: what it says.
    `root`: other files than those of the release."""
    before = {name: module for name, module in sys.modules.items() if _is_sglang(name)}
    for name in before:
        del sys.modules[name]
    engine = Sglang(log=[])
    try:
        _install(engine, source("version.py", release).parent if root is None else root)
        if version is not None:
            sys.modules["sglang.version"] = _module("sglang.version", __version__=version)
        yield engine
    finally:
        for name in [name for name in sys.modules if _is_sglang(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_sglang(name: str) -> bool:
    return f"{name}.".startswith("sglang.") or name == "specmargin.live.sglang.params"


def _install(engine: Sglang, root: Path) -> None:
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        sys.modules[name] = _module(name, __path__=[str(root.joinpath(*name.split(".")[1:]))])
    stubs: dict[str, dict[str, Any]] = {
        "sglang.srt.arg_groups": {"__path__": []},
        "sglang.srt.arg_groups.overrides": {"resolved_view": None, "resolving_view": None},
        "sglang.srt.runtime_context": {
            "attn_dp_enabled_of": None,
            "get_parallel": lambda: engine.parallel,
        },
        "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": None},
        "sglang.srt.utils": {"__path__": [], "log_info_on_rank0": lambda _, text: engine.log.append(text)},
        "sglang.srt.utils.common": {"add_prometheus_middleware": lambda app: app},
    }
    for name, values in stubs.items():
        sys.modules[name] = _module(name, **values)
    import_module("sglang.srt.plugins").entry_points = entry_points  # type: ignore[attr-defined]


def _module(name: str, **values: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module


class Traffic:
    """Rounds at changing load and acceptance, the same for every rank: what is accepted depends on the depth alone."""

    def __init__(self, rounds: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        phases = rounds // 250 + 1
        self.batches = np.repeat(generator.integers(1, 64, phases), 250)[:rounds] + generator.integers(-1, 2, rounds)
        self.batches = np.clip(self.batches, 1, 64)
        acceptance = np.repeat(generator.uniform(0.05, 0.95, phases), 250)[:rounds]
        self.lengths = [
            (generator.geometric(1.0 - a, b) - 1).tolist() for a, b in zip(acceptance, self.batches, strict=True)
        ]

    def play(self, *ranks: Rank) -> list[list[int]]:
        """Depths by rank."""
        depths: list[list[int]] = [[] for _ in ranks]
        for lengths in self.lengths:
            for rank, chosen in zip(ranks, depths, strict=True):
                chosen.append(rank.round(lengths))
        return depths


def rounds_of(rank: Rank) -> Any:
    return rank.controller.params._rounds
