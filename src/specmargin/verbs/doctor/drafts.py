"""Causes of low acceptance: the drafter itself, its later positions, the text, the sampling, the length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.live.observation import Moment
from specmargin.sources import assumed
from specmargin.verbs.doctor.expected import Range
from specmargin.verbs.doctor.finding import Case, Finding

_ZERO = 0.05  # accepted at position 1: no text takes a drafter that fits its target this low
_NEAR_ZERO = 0.12
_FAR_BELOW = 0.4  # of the low end of the usual range
_ANY_DRAFTER = Range(0.75, 0.53, 0.88)  # trained drafters, 10th to 90th percentile (catalog/acceptance.toml)
_HOT = 1.0  # temperature from which sampling alone lowers acceptance below a range of benchmarks
_ALL = 0.95
_LEAST_MOMENTS = 4
_LONGER = 1.5  # by which contexts must differ for a change with length to show
_FALL = 0.2  # of accepted tokens, between short and long contexts
_ORDERED = -0.6  # rank correlation of accepted tokens with context


def acceptance(case: Case) -> Finding | None:
    """At most one: each of them explains the same low acceptance."""
    if not case.seen.drafts or case.seen.first is None:
        return None
    usual = usual_first(case)
    if _at_most(case) < usual.low:
        return _low(case, usual)
    return _context(case) or _later_positions(case)


def usual_first(case: Case) -> Range:
    """Acceptance of position 1 that the drafter reaches elsewhere."""
    return _ANY_DRAFTER if case.expected is None else case.expected.usual_range()


def is_low(case: Case) -> bool:
    return case.seen.drafts and case.seen.first is not None and _at_most(case) < usual_first(case).low


def _at_most(case: Case) -> float:
    """The acceptance of position 1 with what so few rounds leave open: two standard errors, or three rounds of zero."""
    first, rounds = case.seen.first or 0.0, case.of.rounds
    if not rounds:
        return first
    return first + max(2.0 * math.sqrt(first * (1.0 - first) / rounds), 3.0 / rounds)


def _low(case: Case, usual: Range) -> Finding | None:
    found = _context(case)
    if found is not None:
        return found
    ngram = case.expected is not None and case.expected.choice.kind == "ngram"
    if synthetic(case) and _at_most(case) >= _ZERO:
        return _random_tokens(case, usual)
    if not ngram and _at_most(case) < max(_NEAR_ZERO, _FAR_BELOW * usual.low):
        return _broken(case, usual)
    temperature = case.settings.temperature
    if temperature is not None and temperature >= _HOT:
        return _sampling(case, usual, temperature)
    return None


def _broken(case: Case, usual: Range) -> Finding:
    return Finding(
        id="drafter-broken",
        title="The drafter is broken or does not match the model",
        evidence=(_position_one(case, usual), *_by_position(case)),
        gain=_gain_of_usual(case),
        fix=case.fix("drafter-broken"),
    )


def _random_tokens(case: Case, usual: Range) -> Finding:
    return Finding(
        id="random-tokens",
        title="The load looks like a benchmark with random tokens, on which drafts are accepted less",
        evidence=(
            _position_one(case, usual),
            f"{case.of.ended_at_limit:.0%} of the requests ended at their token limit, all prompts and all outputs "
            "are about equally long, and no prefix was found in the cache",
        ),
        gain=_gain_of_usual(case),
        fix=case.fix("random-tokens"),
    )


def synthetic(case: Case) -> bool:
    """Whether lengths and ends of requests are those of generated prompts with `ignore_eos`."""
    of = case.of
    equal = bool(of.equal_prompts) and bool(of.equal_outputs)
    return equal and (of.ended_at_limit or 0.0) >= _ALL and (of.cached_prompt_share or 0.0) < 1.0 - _ALL


def _sampling(case: Case, usual: Range, temperature: float) -> Finding:
    best = 0 if case.expected is None else case.expected.best_depth()[0]
    return Finding(
        id="sampling",
        title=f"Sampling at temperature {temperature:g} lowers acceptance",
        evidence=(_position_one(case, usual), f"the server's default temperature is {temperature:g}"),
        gain=_gain_of_usual(case),
        fix=case.fix("sampling", flags=case.flags(best)),
    )


def _position_one(case: Case, usual: Range) -> str:
    first = case.seen.first or 0.0
    return f"position 1 is accepted in {first:.1%} of rounds; {usual.low:.0%} to {usual.high:.0%} is usual"


def _by_position(case: Case) -> tuple[str, ...]:
    shares = ", ".join(f"{share:.1%}" for share in case.seen.shares)
    return (f"by position: {shares}",) if len(case.seen.shares) > 1 else ()


def _gain_of_usual(case: Case) -> float | None:
    """With the drafter's usual acceptance, or without speculation, whichever is better, at the best depth."""
    expected = case.expected
    if expected is None:
        return None
    return case.gain(expected.best_depth(expected.usual)[1], expected.goodput)


# --- later positions ---


def _later_positions(case: Case) -> Finding | None:
    """Position 1 is as usual, and position 2 far below what then follows."""
    shares, expected = case.seen.shares, case.expected
    if len(shares) < 2 or expected is None or expected.choice.kind == "ngram":
        return None
    usual = expected.usual.up_to(len(shares))
    rounds = (case.of.rounds or math.inf) * shares[0]
    second, second_usual = shares[1] / max(shares[0], 1e-9), float(usual[1] / usual[0])
    if second + 3.0 / max(rounds, 1.0) >= _FAR_BELOW * second_usual:
        return None
    repaired = Survival(by_depth=usual / usual[0] * shares[0], source=assumed("later positions as usual"))
    kind = "an MTP head trained for one token, run on its own output" if expected.choice.kind == "mtp" else "a drafter"
    return Finding(
        id="drafter-later-positions",
        title="The drafter fails after its first token",
        evidence=(
            f"position 2 is accepted in {second:.0%} of the rounds that accepted position 1; {second_usual:.0%} is "
            f"usual: as of {kind} that is not fed its own states rightly",
            *_by_position(case),
        ),
        gain=case.gain(expected.best_depth(repaired)[1], expected.goodput),
        fix=case.fix("drafter-later-positions", flags=case.flags(1)),
    )


# --- context ---


def _context(case: Case) -> Finding | None:
    """Acceptance falls as sequences grow."""
    moments = [moment for moment in case.of.moments if moment.context and moment.accept_length is not None]
    short, long = ends_by(moments, [moment.context or 0.0 for moment in moments])
    if not short:
        return None
    near, far = (float(np.mean([(moment.accept_length or 1.0) - 1.0 for moment in part])) for part in (short, long))
    contexts = [float(np.mean([moment.context or 0.0 for moment in part])) for part in (short, long)]
    order = _rank_correlation([m.context or 0.0 for m in moments], [m.accept_length or 1.0 for m in moments])
    if contexts[1] < _LONGER * contexts[0] or far > (1.0 - _FALL) * near or order > _ORDERED:
        return None
    expected, gain, depth = case.expected, None, 0
    if expected is not None and expected.depth:
        kept = Survival.of_accepted(min(near, expected.depth), expected.depth, assumed("as at short contexts"))
        gain, depth = case.gain(expected.best_depth(kept)[1], expected.goodput), expected.best_depth()[0]
    return Finding(
        id="context",
        title="Acceptance falls as sequences grow",
        evidence=(
            f"accept length {1 + near:.2f} at about {contexts[0]:,.0f} tokens per sequence, {1 + far:.2f} at about "
            f"{contexts[1]:,.0f} (rank correlation {order:.2f} over {len(moments)} moments)",
        ),
        gain=gain,
        fix=case.fix("context", flags=case.flags(depth)),
    )


def ends_by(moments: Sequence[Moment], key: Sequence[float]) -> tuple[list[Moment], list[Moment]]:
    """The third of the moments with the smallest key, and that with the largest; empty where there are too few."""
    if len(moments) < _LEAST_MOMENTS:
        return [], []
    third = max(len(moments) // 3, 2)
    order = np.argsort(key, kind="stable")
    return [moments[i] for i in order[:third]], [moments[i] for i in order[-third:]]


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    one, other = (np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (first, second))
    return float(np.corrcoef(one, other)[0, 1])
