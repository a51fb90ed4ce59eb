"""The tables and the figure of `lab.gpu.swing`, from its JSON: ratios to the best, intervals, overhead.

    python -m lab.gpu.report FOLDER [FIGURE.png]     FOLDER: with swing.json, plain.json, whole.json, gates*.json

A turn's speed is its tokens over its seconds, at the mean context of its row: contexts grow during a block, and
contestants meet them in another order in each block. Tokens are the expected ones where whole drafts are verified (by
the depths that were asked for: chance is not what is compared), and the committed ones where a gate cuts drafts.
Intervals are 95%, by a bootstrap over blocks. Over the swing every phase counts the same: the geometric mean of ratios.
Blocks of several runs of the gates count together.

The best of contestants that are nearly alike, found in the blocks in which it is also compared, is partly the luckiest.
By number of sequences, the best is therefore also found in one half of the blocks and compared in the other half.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specmargin.step import FloatArray, IntArray

RESAMPLES = 2000
OURS, OWN = "specmargin gate", ("specmargin gate", "controller")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A load and a traffic. Arrays are by block, at the phase's mean context."""

    batch: int
    traffic: str
    table_depth: int
    seconds: dict[str, FloatArray]  # per round, by contestant
    tokens: dict[str, FloatArray]  # per round and sequence: expected, or committed where a gate cut drafts

    @property
    def name(self) -> str:
        return f"{self.batch}, {self.traffic}"

    @property
    def fixed(self) -> list[str]:
        return [name for name in self.seconds if name.startswith("depth")]

    def speed(self, name: str) -> float:
        """Tokens per second: the median of blocks, since single turns met a kernel that was still being compiled."""
        return float(self.speeds(name, np.arange(self.seconds[name].size)))

    def speeds(self, name: str, blocks: IntArray) -> FloatArray:
        """The same of samples of blocks, (..., blocks)."""
        return np.asarray(self.batch * np.median((self.tokens[name] / self.seconds[name])[blocks], axis=-1))

    def best_fixed(self) -> str:
        return max(self.fixed, key=self.speed)

    @property
    def others(self) -> list[str]:
        """Contestants that are not Specmargin's."""
        return [name for name in self.seconds if name not in OWN]

    def best_other(self) -> str:
        return max(self.others, key=self.speed)

    def with_blocks_of(self, other: Phase) -> Phase:
        seconds, tokens = (
            {name: np.concatenate([one[name], two[name]]) for name in one}
            for one, two in ((self.seconds, other.seconds), (self.tokens, other.tokens))
        )
        return replace(self, seconds=seconds, tokens=tokens)


def read_swing(path: Path) -> list[Phase]:
    file = json.loads(path.read_text())
    return [phase_of(row, row["traffic"], constant(file["acceptance"][row["traffic"]])) for row in file["rows"]]


def read_gates(*paths: Path) -> list[Phase]:
    """Runs of the gates, on one machine or several."""
    phases: dict[tuple[int, str], Phase] = {}
    for phase in [phase for path in paths for phase in _read_run(path)]:
        key = phase.batch, phase.traffic
        phases[key] = phases[key].with_blocks_of(phase) if key in phases else phase
    return [phases[key] for key in sorted(phases)]


def _read_run(path: Path) -> list[Phase]:
    file = json.loads(path.read_text())
    survival = np.mean(list(file["bank"]["survival"].values()), axis=0).tolist()
    rows = file["rows"]
    if not all(row.get("estimator_sound") for row in rows):  # nothing but whole drafts can be compared
        return [phase_of(row, " and ".join(file["bank"]["survival"]), survival) for row in rows]
    return [phase_of(row, row["traffic"], None) for row in rows]


def constant(rate: float) -> list[float]:
    """Survival by depth."""
    return [rate**depth for depth in range(1, 33)]


def phase_of(row: dict[str, Any], traffic: str, survival: list[float] | None) -> Phase:
    """`survival`: of whole drafts; None: committed tokens are compared, where contestants met the same rounds."""
    blocks, batch = row["blocks"], row["batch"]
    names = sorted(blocks[0])
    seconds = {name: np.array([b[name]["seconds"] / b[name]["rounds"] for b in blocks]) for name in names}
    context = {name: np.array([b[name]["context"] for b in blocks]) for name in names}
    level = float(np.mean([context[name].mean() for name in names]))
    slope = _slope(seconds, context)
    return Phase(
        batch=batch,
        traffic=traffic,
        table_depth=row["table_depth"],
        seconds={name: seconds[name] - slope * (context[name] - level) for name in names},
        tokens={name: np.array([_tokens(name, b[name], batch, survival) for b in blocks]) for name in names},
    )


def _slope(seconds: dict[str, FloatArray], context: dict[str, FloatArray]) -> float:
    """Seconds per token of context: the median over pairs of turns of one contestant."""
    slopes = []
    for name, times in seconds.items():
        first, second = np.triu_indices(times.size, 1)
        apart = context[name][second] - context[name][first]
        slopes.append(((times[second] - times[first])[apart != 0.0]) / apart[apart != 0.0])
    together = np.concatenate(slopes)
    return max(float(np.median(together)), 0.0) if together.size else 0.0


def _tokens(name: str, turn: dict[str, Any], batch: int, survival: list[float] | None) -> float:
    """Per round and sequence."""
    if survival is None or "gate" in name:
        return float(turn["tokens"] / turn["rounds"] / batch)
    rounds = {int(depth): count for depth, count in turn["depths"].items()}
    tokens = sum(count * (1.0 + sum(survival[:depth])) for depth, count in rounds.items())
    return float(tokens / sum(rounds.values()))


# --- ratios ---


def with_interval(ratio: Callable[[IntArray], FloatArray], blocks: int) -> tuple[float, float, float]:
    """`ratio`: of samples of blocks, (..., blocks)."""
    samples = ratio(np.random.default_rng(0).integers(0, blocks, (RESAMPLES, blocks)))
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(ratio(np.arange(blocks))), float(low), float(high)


def over(phases: list[Phase], name: str, other: Callable[[Phase], str]) -> tuple[float, float, float]:
    """Geometric mean over phases of the speed of one contestant over another, with its interval."""

    def ratio(blocks: IntArray) -> FloatArray:
        logs = [np.log(phase.speeds(name, blocks) / phase.speeds(other(phase), blocks)) for phase in phases]
        return np.asarray(np.exp(np.mean(logs, axis=0)))

    return with_interval(ratio, next(iter(phases[0].seconds.values())).size)


def paired_over(phases: list[Phase], name: str, other: Callable[[Phase], str]) -> tuple[float, float, float]:
    """As `over`, by ratios inside of each block, whose turns met the same rounds of a bank. Blocks are drawn for each
    phase by itself: phases have numbers of their own."""
    logs = [np.log(_speeds(phase, name) / _speeds(phase, other(phase))) for phase in phases]
    generator = np.random.default_rng(0)
    samples = [values[generator.integers(0, values.size, (RESAMPLES, values.size))] for values in logs]
    drawn = np.mean([np.median(sample, axis=1) for sample in samples], axis=0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    middle = np.mean([np.median(values) for values in logs])
    return float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))


def over_best_of_other_half(phases: list[Phase]) -> tuple[float, float, float]:
    """Specmargin's gate over the best other contestant, which is found in one half of a phase's blocks and compared in
    the other; for the interval each half is drawn again from its own blocks."""
    generator = np.random.default_rng(0)
    middle = np.mean([_by_halves(phase, generator, redraw=False) for phase in phases])
    drawn = np.mean([_by_halves(phase, generator, redraw=True) for phase in phases], axis=0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))


def _mean_over_best(phases: list[Phase]) -> float:
    """Specmargin's gate over the best other contestant in hindsight, by geometric means of blocks."""
    logs = [[np.log(_speeds(phase, OURS) / _speeds(phase, name)).mean() for name in phase.others] for phase in phases]
    return float(np.exp(np.mean([min(ahead) for ahead in logs])))


def _by_halves(phase: Phase, generator: np.random.Generator, *, redraw: bool) -> FloatArray:
    """ln of the ratio for random halves, each of them once to find the best and once to compare."""
    ahead = np.log(_speeds(phase, OURS) / np.array([_speeds(phase, name) for name in phase.others]))
    orders = generator.permuted(np.tile(np.arange(ahead.shape[1]), (RESAMPLES, 1)), axis=1)
    halves = np.array_split(orders, 2, axis=1)
    if redraw:
        halves = [np.take_along_axis(half, generator.integers(0, half.shape[1], half.shape), 1) for half in halves]
    first, second = (np.median(ahead[:, half], axis=2) for half in halves)
    sample = np.arange(RESAMPLES)
    return np.asarray((second[first.argmin(axis=0), sample] + first[second.argmin(axis=0), sample]) / 2.0)


def _speeds(phase: Phase, name: str) -> FloatArray:
    return np.asarray(phase.tokens[name] / phase.seconds[name])


def overhead(phases: list[Phase]) -> tuple[float, float, float]:
    """Time of a round with the plug-in over one without, at the same depth, minus one."""

    def ratio(blocks: IntArray) -> FloatArray:
        pairs = [(p.seconds[f"held {p.table_depth}"], p.seconds[f"depth {p.table_depth}"]) for p in phases]
        logs = [np.log(np.median(held[blocks], axis=-1) / np.median(bare[blocks], axis=-1)) for held, bare in pairs]
        return np.asarray(np.expm1(np.mean(logs, axis=0)))

    return with_interval(ratio, next(iter(phases[0].seconds.values())).size)


# --- tables ---


def swing_tables(phases: list[Phase], plain: dict[int, float]) -> str:
    depths = sorted({int(name.split()[1]) for phase in phases for name in phase.fixed})
    head = ["sequences, traffic", "none", "off", *(f"depth {depth}" for depth in depths[1:])]
    head += ["table", "controller", "controller over the best depth"]
    lines = [table_row(head), table_row(["---"] + ["---:"] * (len(head) - 1))]
    for phase in phases:
        fixed = [f"{phase.speed(f'depth {d}'):,.0f}" if f"depth {d}" in phase.seconds else "" for d in depths]
        cells = [f"{phase.speed(f'depth {phase.table_depth}'):,.0f}", f"{phase.speed('controller'):,.0f}"]
        ratio = ratio_text(over([phase], "controller", Phase.best_fixed))
        lines.append(table_row([phase.name, f"{plain[phase.batch]:,.0f}", *fixed, *cells, ratio]))
    lines += [
        "",
        table_row(["sequences", "controller over the best depth", "over the table", "time that the plug-in adds"]),
    ]
    lines.append(table_row(["---:"] * 4))
    for batch in sorted({phase.batch for phase in phases}):
        chosen = [phase for phase in phases if phase.batch == batch]
        ratios = [ratio_text(over(chosen, "controller", other)) for other in (Phase.best_fixed, table_of)]
        lines.append(table_row([str(batch), *ratios, added_text(chosen)]))
    lines += ["", table_row(["controller over", "whole swing"]), table_row(["---", "---:"])]
    lines.append(table_row(["none", f"{_over_plain(phases, plain):.3f}"]))
    lines.append(table_row(["the table", ratio_text(over(phases, "controller", table_of))]))
    for depth in depths:
        name = f"depth {depth}" if depth else "off (depth 0)"
        lines.append(table_row([name, ratio_text(over(phases, "controller", partial(nearest, depth=depth)))]))
    return "\n".join(lines)


def second_engine_table(phases: list[Phase]) -> str:
    """Whole drafts only, in an engine with adaptive verification: in this run the gates' estimator had diverged."""
    head = ["sequences", "best depth", "controller over it", "time that the plug-in adds"]
    lines = [table_row(head), table_row(["---:"] * len(head))]
    for phase in phases:
        ratio = ratio_text(over([phase], "controller", Phase.best_fixed))
        lines.append(table_row([str(phase.batch), phase.best_fixed().split()[1], ratio, added_text([phase])]))
    lines.append(table_row(["all", "", ratio_text(over(phases, "controller", Phase.best_fixed)), added_text(phases)]))
    return "\n".join(lines)


def gates_tables(phases: list[Phase], first: list[Phase]) -> str:
    """Specmargin's gate over the others; `first`: of the engine without gates, which the fixed depths are tied to."""
    others: dict[str, Callable[[Phase], str]] = {
        "vLLM's gate": lambda _: "vllm gate",
        "with an honest curve": lambda _: "vllm gate, honest curve",
        "controller alone": lambda _: "controller",
        "best fixed depth": Phase.best_fixed,
    }
    head = ["sequences, traffic", *others, "Specmargin's gate", *(f"over {title}" for title in others)]
    lines = [table_row(head), table_row(["---"] + ["---:"] * (len(head) - 1))]
    for phase in phases:
        speeds = [f"{phase.speed(other(phase)):,.0f}" for other in others.values()]
        speeds[-1] += f" ({phase.best_fixed()})"
        ratios = [ratio_text(paired_over([phase], OURS, other)) for other in others.values()]
        lines.append(table_row([phase.name, *speeds, f"{phase.speed(OURS):,.0f}", *ratios]))
    ratios = [ratio_text(paired_over(phases, OURS, other)) for other in others.values()]
    lines.append(table_row(["whole swing", *([""] * (len(others) + 1)), *ratios]))
    return "\n".join([*lines, "", _loads_table(phases), "", _tie_table(phases, first)])


def _loads_table(phases: list[Phase]) -> str:
    """By number of sequences: over the best in each traffic that is not Specmargin's, whichever it is."""
    head = ["sequences", "best of the others", "Specmargin's gate over it", "over that of the other half"]
    head += ["by means, not medians", "blocks"]
    lines = [table_row(head), table_row(["---:"] * len(head))]
    for batch in sorted({phase.batch for phase in phases}):
        chosen = [phase for phase in phases if phase.batch == batch]
        best = ", ".join(f"{phase.best_other()} ({phase.traffic})" for phase in chosen)
        blocks = " and ".join(str(_speeds(phase, OURS).size) for phase in chosen)
        ratios = paired_over(chosen, OURS, Phase.best_other), over_best_of_other_half(chosen)
        means = f"{_mean_over_best(chosen):.3f}"
        lines.append(table_row([str(batch), best, *map(ratio_text, ratios), means, blocks]))
    return "\n".join(lines)


def _tie_table(phases: list[Phase], first: list[Phase]) -> str:
    """Time per round at the same depth: the engine with adaptive verification over the one without."""
    lines = [table_row(["sequences", "depth", "time per round with adaptive verification enabled, over without"])]
    lines.append(table_row(["---:", "---:", "---:"]))
    for batch in sorted({phase.batch for phase in phases}):
        both = [[phase for phase in side if phase.batch == batch] for side in (phases, first)]
        shared = set.intersection(*({name for phase in side for name in phase.fixed} for side in both))
        for name in sorted(shared):
            times = [np.median([np.median(phase.seconds[name]) for phase in side]) for side in both]
            lines.append(table_row([str(batch), name.split()[1], f"{times[0] / times[1]:.3f}"]))
    return "\n".join(lines)


def _over_plain(phases: list[Phase], plain: dict[int, float]) -> float:
    """Over an engine without speculation, which ran by itself: no interval."""
    return float(np.exp(np.mean([np.log(phase.speed("controller") / plain[phase.batch]) for phase in phases])))


def table_of(phase: Phase) -> str:
    return f"depth {phase.table_depth}"


def nearest(phase: Phase, depth: int) -> str:
    """A fixed depth; where its step does not fit a CUDA graph, the deepest that does (kinder to it than the engine)."""
    return f"depth {min(depth, max(int(name.split()[1]) for name in phase.fixed))}"


def added_text(phases: list[Phase]) -> str:
    return "{:+.1%} ({:+.1%} to {:+.1%})".format(*overhead(phases))


def ratio_text(values: tuple[float, float, float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*values)


def table_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- figure ---


def draw(phases: list[Phase], plain: dict[int, float], path: Path) -> None:
    """Tokens per second over those of an engine without speculation, by number of sequences and traffic."""
    import altair as alt

    from specmargin.show.figures.files import save

    names = {"controller": "controller", "depth 0": "off", **{f"depth {d}": f"depth {d}" for d in (1, 3, 5)}}
    rows = [
        {
            "sequences": str(phase.batch),
            "gain": phase.speed(name) / plain[phase.batch],
            "policy": title,
            "traffic": phase.traffic,
        }
        for phase in phases
        for name, title in names.items()
        if name in phase.seconds
    ]
    order = [str(batch) for batch in sorted({phase.batch for phase in phases})]
    x = alt.X("sequences:N", sort=order, title="sequences", axis=alt.Axis(labelAngle=0))
    y = alt.Y("gain:Q", title="speed-up over no speculation (×)", scale=alt.Scale(zero=False))
    color = alt.Color("policy:N", sort=list(names.values()), title=None, legend=alt.Legend(orient="right"))
    lines = alt.Chart(alt.InlineData(rows), width=320, height=280).mark_line(point=True).encode(x=x, y=y, color=color)
    panels = lines.facet(column=alt.Column("traffic:N", title=None))
    save(panels.properties(title="vLLM 0.32 on an H200: Qwen3-30B-A3B with an EAGLE-3 head"), path)


def main(folder: Path, figure: Path | None = None) -> None:
    rows = json.loads((folder / "plain.json").read_text())["rows"]
    plain = {int(row["batch"]): row["batch"] / row["round_ms"] * 1e3 for row in rows}
    phases = read_swing(folder / "swing.json")
    print(swing_tables(phases, plain), "", sep="\n")
    print(second_engine_table(read_gates(folder / "whole.json")), "", sep="\n")
    print(gates_tables(read_gates(*sorted(folder.glob("gates*.json"))), phases))
    if figure is not None:
        draw(phases, plain, figure)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
