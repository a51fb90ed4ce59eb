"""The tables and the figure of `gpu_swing.py`, from its JSON: ratios to the best, intervals, overhead.

    python -m benchmarks.gpu.report FILE.json [FIGURE.png]

A turn's speed is its expected tokens (by the depths that were asked for, since chance is not what is compared) over its
seconds, at the mean context of its row: contexts grow during a block, and contestants meet them in another order in
each block. Intervals are 95%, by a bootstrap over blocks. Over the swing every phase (a load and a traffic) counts the
same: the geometric mean of ratios.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.step import FloatArray, IntArray

RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A load and a traffic. Arrays are by block, at the phase's mean context."""

    batch: int
    traffic: str
    table_depth: int
    seconds: dict[str, FloatArray]  # per round, by contestant
    tokens: dict[str, FloatArray]  # per round and sequence, expected

    @property
    def name(self) -> str:
        return f"{self.batch}, {self.traffic}"

    @property
    def fixed(self) -> list[str]:
        return [name for name in self.seconds if name.startswith("depth")]

    def speed(self, name: str, blocks: IntArray | slice = slice(None)) -> float:
        """Tokens per second."""
        return float(self.batch * self.tokens[name][blocks].sum() / self.seconds[name][blocks].sum())

    def best_fixed(self) -> str:
        return max(self.fixed, key=self.speed)


def read(path: Path) -> list[Phase]:
    file = json.loads(path.read_text())
    return [phase_of(row, file["acceptance"][row["traffic"]]) for row in file["rows"]]


def phase_of(row: dict[str, Any], rate: float) -> Phase:
    blocks, batch = row["blocks"], row["batch"]
    names = sorted(blocks[0])
    seconds = {name: np.array([b[name]["seconds"] / b[name]["rounds"] for b in blocks]) for name in names}
    context = {name: np.array([b[name]["context"] for b in blocks]) for name in names}
    level = float(np.mean([context[name].mean() for name in names]))
    slope = _slope(seconds, context)
    return Phase(
        batch=batch,
        traffic=row["traffic"],
        table_depth=row["table_depth"],
        seconds={name: seconds[name] - slope * (context[name] - level) for name in names},
        tokens={name: np.array([_expected(b[name], rate) for b in blocks]) for name in names},
    )


def _slope(seconds: dict[str, FloatArray], context: dict[str, FloatArray]) -> float:
    """Seconds per token of context: least squares with a level per contestant."""
    x = np.concatenate([context[name] - context[name].mean() for name in seconds])
    y = np.concatenate([seconds[name] - seconds[name].mean() for name in seconds])
    return max(float((x * y).sum() / max((x * x).sum(), 1e-12)), 0.0)


def _expected(turn: dict[str, Any], rate: float) -> float:
    """Tokens per round and sequence."""
    rounds = {int(depth): count for depth, count in turn["depths"].items()}
    tokens = sum(count * sum(rate**d for d in range(depth + 1)) for depth, count in rounds.items())
    return float(tokens / sum(rounds.values()))


# --- ratios ---


def interval(ratio: Callable[[IntArray], float], blocks: int) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    samples = [ratio(generator.integers(0, blocks, blocks)) for _ in range(RESAMPLES)]
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def over(phases: list[Phase], name: str, other: Callable[[Phase], str]) -> tuple[float, float, float]:
    """Geometric mean over phases of the speed of one contestant over another, with its interval."""

    def ratio(blocks: IntArray | slice) -> float:
        logs = [np.log(phase.speed(name, blocks) / phase.speed(other(phase), blocks)) for phase in phases]
        return float(np.exp(np.mean(logs)))

    count = len(next(iter(phases[0].seconds.values())))
    return ratio(slice(None)), *interval(ratio, count)


def overhead(phases: list[Phase]) -> tuple[float, float, float]:
    """Time of a round with the plug-in over one without, at the same depth, minus one."""

    def ratio(blocks: IntArray | slice) -> float:
        pairs = [(p.seconds[f"held {p.table_depth}"], p.seconds[f"depth {p.table_depth}"]) for p in phases]
        return float(np.exp(np.mean([np.log(held[blocks].sum() / bare[blocks].sum()) for held, bare in pairs]))) - 1.0

    count = len(next(iter(phases[0].seconds.values())))
    return ratio(slice(None)), *interval(ratio, count)


# --- tables ---


def tables(phases: list[Phase]) -> str:
    depths = sorted({int(name.split()[1]) for phase in phases for name in phase.fixed})
    head = ["phase", *(f"depth {depth}" for depth in depths), "table", "controller", "best depth", "controller over it"]
    lines = [_row(head), _row(["---"] + ["---:"] * (len(head) - 1))]
    for phase in phases:
        fixed = [f"{phase.speed(f'depth {d}'):,.0f}" if f"depth {d}" in phase.seconds else "" for d in depths]
        cells = [f"{phase.speed(f'depth {phase.table_depth}'):,.0f}", f"{phase.speed('controller'):,.0f}"]
        ratio = _ratio(over([phase], "controller", Phase.best_fixed))
        lines.append(_row([phase.name, *fixed, *cells, phase.best_fixed().split()[1], ratio]))
    lines += ["", _row(["sequences", "controller over the best depth", "over the table", "time that the plug-in adds"])]
    lines.append(_row(["---:"] * 4))
    for batch in sorted({phase.batch for phase in phases}):
        chosen = [phase for phase in phases if phase.batch == batch]
        added = "{:+.1%} ({:+.1%} to {:+.1%})".format(*overhead(chosen))
        ratios = [_ratio(over(chosen, "controller", other)) for other in (Phase.best_fixed, _table)]
        lines.append(_row([str(batch), *ratios, added]))
    lines += ["", _row(["controller over", "whole swing"]), _row(["---", "---:"])]
    lines.append(_row(["the table", _ratio(over(phases, "controller", _table))]))
    for depth in depths:
        lines.append(_row([f"depth {depth}", _ratio(over(phases, "controller", partial(_nearest, depth=depth)))]))
    return "\n".join(lines)


def _table(phase: Phase) -> str:
    return f"depth {phase.table_depth}"


def _nearest(phase: Phase, depth: int) -> str:
    """A fixed depth; where its step does not fit a CUDA graph, the deepest that does (kinder to it than the engine)."""
    return f"depth {min(depth, max(int(name.split()[1]) for name in phase.fixed))}"


def _ratio(values: tuple[float, float, float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*values)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(tables(read(Path(sys.argv[1]))))
