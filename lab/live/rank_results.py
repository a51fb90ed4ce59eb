"""What was counted in a swing of ranks that vote (`lab.live.ranks`): ratios with intervals, tables and a figure.

    python -m lab.live.rank_results lab/results/vllm-0.32-cpu-ranks/swing.json [--plot docs/figures/votes.png]

Needs no engine.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lab.terminal import parser, run
from specmargin.show.figures.files import check_target, save
from specmargin.step import FloatArray, IntArray

if TYPE_CHECKING:
    import altair as alt

RANKS = 2
STATIC_DEPTHS = (0, 1, 2, 3, 5, 7)

Load = tuple[int, ...]  # sequences by rank


class Phase(NamedTuple):
    load: Load
    tokens: int = 0  # that a whole swing commits in it
    temperature: float = 0.0
    share: float = 1.0  # of the minutes of a phase: more where steps are long and several depths are close

    def __str__(self) -> str:
        return f"{' + '.join(map(str, self.load))} | {self.temperature:g}"

    @property
    def title(self) -> str:
        return f"{' + '.join(map(str, self.load))} sequences, temperature {self.temperature:g}"


PHASES = (
    Phase((1, 0), 300, share=1.1),
    Phase((4, 1), 600, 1.5, share=0.5),
    Phase((12, 4), 1600, share=1.9),
    Phase((16, 16), 1600, 1.5, share=0.7),
    Phase((3, 3), 900, share=1.3),
    Phase((1, 1), 300, 1.5, share=0.5),
)
COSTS_AT = (Phase((1, 1), share=0.5), Phase((8, 8), share=0.5))  # where the plug-in's own cost is measured


class Played(NamedTuple):
    """What was counted in a turn."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0  # of all ranks
    depths: int = 0  # sum over steps
    draft_seconds: float = 0.0  # of the first rank
    expert_seconds: float = 0.0
    drafts: tuple[int, ...] = ()  # rounds of a sequence that had at least 1, 2, … drafts to verify
    kept: tuple[int, ...] = ()  # … and that kept as many

    def plus(self, other: Played) -> Played:
        return Played(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.depths + other.depths,
            self.draft_seconds + other.draft_seconds,
            self.expert_seconds + other.expert_seconds,
            _added(self.drafts, other.drafts),
            _added(self.kept, other.kept),
        )

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(one, other, fillvalue=0)))


class Pairing(NamedTuple):
    """A turn of a contestant, and the votes' turns beside it."""

    own: Played
    before: Played
    after: Played

    def compared(self, of: Callable[[Played, Played], float]) -> list[float]:
        """The own turn with each of its neighbours: seconds of a few steps have a long tail, so that more steps at once
        would look slower.
        """
        return [of(self.own, self.before), of(self.own, self.after)]


Results = list[dict[str, list[Pairing]]]  # by phase and contestant; costs follow the phases

NAMES = tuple(f"static {depth}" for depth in STATIC_DEPTHS)
_DRAWS = 1000


def votes_of(pairs: Mapping[str, Sequence[Pairing]]) -> list[Played]:
    """Their turns of a phase, each of which is the one before another contestant's."""
    return [pair.before for of_contestant in pairs.values() for pair in of_contestant]


def over(pairs: Mapping[str, Sequence[Pairing]], name: str, *, typical: bool = True) -> FloatArray:
    """Tokens per second of the votes over those of a contestant; the first of pairs as they are, the others drawn anew.

    Seconds per step are compared turn by turn, as the machine's speed changes within seconds: their median, or their
    geometric mean, in which rare long steps count in full. Tokens per step do not depend on the machine. A draft token
    is kept about equally often, whoever drafted it and however many follow it. So each counts with the share that was
    kept at its position in all static turns of the phase: texts differ more than depths do, and a turn sees few of
    them. (About, because deep drafts pass easy texts in fewer rounds: within a turn of five steps.)
    """
    chance = np.random.default_rng(0)
    static = _drawn(_counts([pair.own for one in pairs.values() for pair in one]), chance)
    survival = static[:, _KEPT] / np.maximum(static[:, _DRAFTS], 1.0)
    own, votes = _counts([pair.own for pair in pairs[name]]), _counts(votes_of(pairs))
    rows = _rows(len(own), chance)
    slower = np.array([pair.compared(lambda one, vote: one.step_seconds / vote.step_seconds) for pair in pairs[name]])
    middle = np.median(slower[rows], axis=(1, 2)) if typical else np.exp(np.log(slower).mean(axis=1)[rows].mean(axis=1))
    more_tokens = _tokens(_drawn(votes, chance), survival) / _tokens(own[rows].sum(axis=1), survival)
    return np.asarray(more_tokens * middle)


_STEPS, _ROUNDS = range(2)
_DRAFTS, _KEPT = slice(2, 2 + STATIC_DEPTHS[-1]), slice(2 + STATIC_DEPTHS[-1], 2 + 2 * STATIC_DEPTHS[-1])


def _counts(turns: Sequence[Played]) -> FloatArray:
    """By turn: steps, rounds of a sequence, drafts by position, and those that were kept."""
    counts = np.zeros((len(turns), _KEPT.stop))
    for row, turn in zip(counts, turns, strict=True):
        row[_STEPS], row[_ROUNDS] = turn.steps, turn.tokens - sum(turn.kept)
        row[_DRAFTS][: len(turn.drafts)], row[_KEPT][: len(turn.kept)] = turn.drafts, turn.kept
    return counts


def _rows(size: int, chance: np.random.Generator) -> IntArray:
    return np.vstack([np.arange(size), chance.integers(0, size, (_DRAWS, size))])


def _drawn(counts: FloatArray, chance: np.random.Generator) -> FloatArray:
    """Sums over all turns, and over turns that are drawn anew."""
    size = len(counts)
    weights = np.vstack([np.ones(size), chance.multinomial(size, np.full(size, 1.0 / size), _DRAWS)])
    return np.asarray(weights @ counts)


def _tokens(counts: FloatArray, survival: FloatArray) -> FloatArray:
    """Per step."""
    return np.asarray((counts[:, _ROUNDS] + (counts[:, _DRAFTS] * survival).sum(axis=1)) / counts[:, _STEPS])


def over_best(pairs: Mapping[str, Sequence[Pairing]], *, typical: bool = True) -> FloatArray:
    """The best static depth is chosen by one half of the pairs and judged by the other, both ways.

    The best of several noisy numbers is too good, if the same numbers say which it is and how good it is.
    """
    halves = [{name: one[start::2] for name, one in pairs.items()} for start in (0, 1)]
    one = over(halves[1], _best(halves[0]), typical=typical)
    other = over(halves[0], _best(halves[1]), typical=typical)
    return np.asarray(np.sqrt(one * other))


def _best(pairs: Mapping[str, Sequence[Pairing]]) -> str:
    return min(NAMES, key=lambda name: float(over(pairs, name)[0]))


def votes_rate(pairs: Mapping[str, Sequence[Pairing]]) -> float:
    """Tokens per second."""
    votes = votes_of(pairs)
    tokens, steps = sum(one.tokens for one in votes), sum(one.steps for one in votes)
    return tokens / steps / statistics.median(one.step_seconds for one in votes)


def over_swing(results: Results, name: str) -> FloatArray:
    """The same for a whole swing, in which every phase commits its tokens."""
    seconds = [phase.tokens / votes_rate(pairs) for phase, pairs in zip(PHASES, results, strict=False)]
    ratios = [over(pairs, name) for pairs in results[: len(PHASES)]]
    chance = np.random.default_rng(1)  # phases are independent of each other
    drawn = [np.append(one[0], chance.permutation(one[1:])) for one in ratios]
    return np.asarray(np.average(drawn, axis=0, weights=seconds))


def added(pairs: Sequence[Pairing], of: Callable[[Played, Played], float]) -> FloatArray:
    """A median over pairs, and of pairs drawn anew. `of`: the own turn and one of the votes."""
    each = np.array([pair.compared(of) for pair in pairs])
    drawn = np.random.default_rng(0).choice(each, (_DRAWS, len(each)))
    return np.append(np.median(each), np.median(drawn, axis=(1, 2)))


def report(results: Results) -> str:
    """Markdown, as in docs/results/votes.md."""
    columns = ["sequences by rank", "temperature", *NAMES, "votes", "their depth", "best", "votes over it", "by means"]
    lines = [f"| {' | '.join(columns)} |", "| --- | ---: |" + " ---: |" * (len(NAMES) + 2) + " --- | ---: | ---: |"]
    for phase, pairs in zip(PHASES, results, strict=False):
        rate, votes = votes_rate(pairs), votes_of(pairs)
        depth = sum(one.depths for one in votes) / sum(one.steps for one in votes)
        ratios = {name: over(pairs, name)[0] for name in NAMES}
        cells = [f"{rate / ratios[name]:,.0f}" for name in NAMES] + [f"{rate:,.0f}", f"{depth:.1f}"]
        cells += [_best(pairs), _text(over_best(pairs)), _text(over_best(pairs, typical=False))]
        lines += [f"| {phase} | " + " | ".join(cells) + " |"]
    lines += ["", "| votes over | whole swing |", "| --- | ---: |"]
    lines += [f"| {name} | {_text(over_swing(results, name))} |" for name in NAMES]
    lines += ["", "| sequences by rank | ms per step | the plug-in and its votes add | in ms |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    for phase, pairs in zip(COSTS_AT, results[len(PHASES) :], strict=True):
        alone = pairs["alone"]
        more = _interval(added(alone, lambda own, vote: vote.step_seconds / own.step_seconds - 1.0))
        ms = _interval(added(alone, lambda own, vote: 1e3 * (vote.step_seconds - own.step_seconds)))
        step = 1e3 * statistics.median(pair.own.step_seconds for pair in alone)
        cost = "{:+.1%} ({:+.1%} to {:+.1%}) | {:+.2f} ({:+.2f} to {:+.2f})".format(*more, *ms)
        lines += [f"| {' + '.join(map(str, phase.load))} | {step:.1f} | {cost} |"]
    return "\n".join(lines)


def _interval(drawn: FloatArray) -> tuple[float, float, float]:
    """As it is, and the 90% interval of what was drawn."""
    low, high = np.quantile(drawn[1:], [0.05, 0.95])
    return float(drawn[0]), float(low), float(high)


def _text(drawn: FloatArray) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*_interval(drawn))


# --- files ---


def write(results: Results, path: Path, *, recorded: str) -> None:
    """`recorded`: when, and on what."""
    kept = [
        {name: [[_kept(played) for played in pair] for pair in pairs] for name, pairs in phase.items()}
        for phase in results
    ]
    path.write_text(json.dumps({"recorded": recorded, "results": kept}) + "\n")


def _kept(played: Played) -> list[Any]:
    counts = [played.steps, round(played.seconds, 6), played.tokens, played.depths]
    return [*counts, played.drafts, played.kept]


def _played(steps: int, seconds: float, tokens: int, depths: int, drafts: list[int], kept: list[int]) -> Played:
    return Played(steps, seconds, tokens, depths, drafts=tuple(drafts), kept=tuple(kept))


def read(path: Path) -> Results:
    results = json.loads(path.read_text())["results"]
    return [
        {name: [Pairing(*(_played(*one) for one in pair)) for pair in pairs] for name, pairs in phase.items()}
        for phase in results
    ]


def figure(results: Results) -> alt.FacetChart:
    """By phase: tokens per second of each static depth, and of the votes between them."""
    import altair as alt  # noqa: PLC0415 (no engine's environment has it)

    rows = [
        {"phase": f"{number}. {phase.title}", "depth": depth, "rate": rate, "policy": policy}
        for number, (phase, pairs) in enumerate(zip(PHASES, results, strict=False), 1)
        for depth, name in zip(STATIC_DEPTHS, NAMES, strict=True)
        for policy, rate in zip(_COLOURS, _rates(pairs, name), strict=True)
    ]
    colour = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("depth:Q", title="static depth", axis=alt.Axis(values=list(STATIC_DEPTHS), grid=False)),
            y=alt.Y("rate:Q", title="tokens/s of both ranks", scale=alt.Scale(zero=True)),
            color=alt.Color("policy:N", title=None, scale=colour),
        )
        .properties(width=190, height=150)
    )
    title = alt.TitleParams(
        "Ranks that vote on one depth, against static depths",
        subtitle="vLLM on a CPU, two ranks with expert parallelism; contestants take turns of five steps",
        anchor="start",
    )
    facets = lines.facet(alt.Facet("phase:N", title=None), columns=3).resolve_scale(y="independent")
    whole: alt.FacetChart = facets.properties(title=title)
    return whole


_COLOURS = {"static": "#2171b5", "votes": "#d95f02"}


def _rates(pairs: Mapping[str, Sequence[Pairing]], name: str) -> tuple[float, float]:
    rate = votes_rate(pairs)
    return rate / float(over(pairs, name)[0]), rate


def main() -> None:
    options = parser(__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--plot", type=Path, metavar="FILE")
    options.add_argument("--force", action="store_true", help="overwrite the figure")
    chosen = options.parse_args()
    if chosen.plot is not None:
        check_target(chosen.plot, force=chosen.force)
    results = read(chosen.file)
    print(report(results))
    if chosen.plot is not None:
        save(figure(results), chosen.plot)


if __name__ == "__main__":
    run(main)
