"""What was counted in a swing of ranks that vote (`lab.live.ranks`): ratios with intervals, tables and a figure.

    python -m lab.live.rank_results lab/results/vllm-0.32-cpu-ranks/swing.json [--plot docs/figures/votes.png]

Needs no engine.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lab.terminal import parser, run
from specmargin.show.figures.files import check_target, save
from specmargin.step import FloatArray

if TYPE_CHECKING:
    import altair as alt

RANKS = 2
STATIC_DEPTHS = (0, 1, 2, 3, 5, 7)

Load = tuple[int, ...]  # sequences by rank


class Phase(NamedTuple):
    load: Load
    tokens: int = 0  # that a whole swing commits in it
    temperature: float = 0.0

    def __str__(self) -> str:
        return f"{' + '.join(map(str, self.load))} | {self.temperature:g}"

    @property
    def share(self) -> float:
        """Of the time of an equal part: tokens per step vary most where most drafts are kept."""
        return 0.6 if self.temperature else 1.4

    @property
    def title(self) -> str:
        return f"{' + '.join(map(str, self.load))} sequences, temperature {self.temperature:g}"


PHASES = (
    Phase((1, 0), 300),
    Phase((4, 1), 600, 1.5),
    Phase((12, 4), 1600),
    Phase((16, 16), 1600, 1.5),
    Phase((3, 3), 900),
    Phase((1, 1), 300, 1.5),
)
COSTS_AT = (Phase((1, 1)), Phase((8, 8)))  # where the plug-in's own cost is measured


class Played(NamedTuple):
    """What was counted in a turn."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0  # of all ranks
    depths: int = 0  # sum over steps
    draft_seconds: float = 0.0  # of the first rank
    expert_seconds: float = 0.0

    def plus(self, other: Played) -> Played:
        return Played(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.depths + other.depths,
            self.draft_seconds + other.draft_seconds,
            self.expert_seconds + other.expert_seconds,
        )

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


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


def ratio(pairs: Sequence[Pairing], votes: Sequence[Played]) -> FloatArray:
    """Tokens per second of the votes over those of a contestant; the first of pairs as they are, the others drawn anew.

    Seconds per step are compared turn by turn, as the machine's speed changes within seconds. Tokens per step do not
    depend on it, so that all steps count alike. `votes`: all of the phase.
    """
    chance = np.random.default_rng(0)
    own = np.array([(pair.own.tokens, pair.own.steps) for pair in pairs], float)
    theirs = np.array([(one.tokens, one.steps) for one in votes], float)
    slower = np.array([pair.compared(lambda one, vote: one.step_seconds / vote.step_seconds) for pair in pairs])
    pair_draws, vote_draws = (
        np.vstack([np.arange(size), chance.integers(0, size, (_DRAWS, size))]) for size in (len(own), len(theirs))
    )
    tokens_of_own, tokens_of_votes = own[pair_draws].sum(axis=1), theirs[vote_draws].sum(axis=1)
    more_tokens = tokens_of_votes[:, 0] / tokens_of_votes[:, 1] * tokens_of_own[:, 1] / tokens_of_own[:, 0]
    return np.asarray(more_tokens * np.median(slower[pair_draws], axis=(1, 2)))


def votes_of(pairs: Mapping[str, Sequence[Pairing]]) -> list[Played]:
    """All turns of a phase."""
    return [turn for of_contestant in pairs.values() for pair in of_contestant for turn in (pair.before, pair.after)]


def over(pairs: Mapping[str, Sequence[Pairing]], name: str) -> FloatArray:
    return ratio(pairs[name], votes_of(pairs))


def over_best(pairs: Mapping[str, Sequence[Pairing]]) -> FloatArray:
    """The best static depth is chosen by one half of the pairs and judged by the other, both ways.

    The best of several noisy numbers is too good, if the same numbers say which it is and how good it is.
    """
    halves = [{name: one[start::2] for name, one in pairs.items()} for start in (0, 1)]
    one, other = over(halves[1], _best(halves[0])), over(halves[0], _best(halves[1]))
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
    lines = [f"| sequences by rank | temperature | {' | '.join(NAMES)} | votes | their depth | best | votes over it |"]
    lines += ["| --- | ---: |" + " ---: |" * (len(NAMES) + 2) + " --- | ---: |"]
    for phase, pairs in zip(PHASES, results, strict=False):
        rate, votes = votes_rate(pairs), votes_of(pairs)
        depth = sum(one.depths for one in votes) / sum(one.steps for one in votes)
        ratios = {name: over(pairs, name)[0] for name in NAMES}
        cells = [f"{rate / ratios[name]:,.0f}" for name in NAMES] + [f"{rate:,.0f}", f"{depth:.1f}"]
        lines += [f"| {phase} | " + " | ".join(cells) + f" | {_best(pairs)} | {_text(over_best(pairs))} |"]
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


def _kept(played: Played) -> tuple[int, float, int, int]:
    return played.steps, round(played.seconds, 6), played.tokens, played.depths


def read(path: Path) -> Results:
    results = json.loads(path.read_text())["results"]
    return [
        {name: [Pairing(*(Played(*one) for one in pair)) for pair in pairs] for name, pairs in phase.items()}
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
