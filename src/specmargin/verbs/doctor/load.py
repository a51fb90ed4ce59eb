"""Causes in settings and load: nothing drafted, a wrong depth, too little memory, prompts."""

from __future__ import annotations

import math

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.decisions.grid import Grid
from specmargin.sources import assumed
from specmargin.verbs.doctor.expected import Expected
from specmargin.verbs.doctor.finding import Case, Finding

_WORTH = 0.05  # gain of tokens per second from which another depth is named
_LEAST_ROUNDS = 100.0
_FULL = 0.9  # of the KV cache
_USED = 0.6  # of it, without which nothing is preempted for memory
_NEAR = 0.6  # of the sequences that fit: below, the server has less memory than is expected
_FEWER = 0.8  # sequences that fit with drafts, over those without
_PREEMPTED = 0.01  # per request that ended
_PROMPTS = 0.35  # of the time, expected; and at least
_PROMPTS_AT_LEAST = 0.15
_PROMPTS_PER_TOKEN = 30.0  # prompt tokens per generated one, where nothing is priced
_DEEPER = 0.9  # what conditional acceptance keeps per position beyond the depth that was seen
ANY_BATCH = (1.0, 8.0, 32.0, 128.0)


# --- nothing drafted ---


def not_drafting(case: Case) -> Finding | None:
    of, seen = case.of, case.seen
    if not of.speculates or not of.generated_tokens_per_second:
        return None
    share = seen.draft_share
    if seen.drafts or of.rounds is None:
        return None  # a log that shows no drafts may only leave them out
    if (of.settings.method or "").lower().startswith(("ngram", "suffix")) and _table_depth(case) != 0:
        return _no_match(case, share or 0.0)
    why = "the server was started with speculation"
    if _table_depth(case) == 0:
        why = f"its table of depths has 0 at batch {seen.batch:.0f}"
    expected, gain, fix = case.expected, None, case.fix("not-drafting", flags="a higher num_speculative_tokens")
    if expected is not None:
        depth, speed = expected.best_depth(expected.usual)
        gain = case.gain(speed, expected.goodput)
        fix = case.fix("not-drafting", flags=case.flags(depth)) if depth else case.fix("not-drafting-off")
    return Finding(
        id="not-drafting",
        title="Speculation is configured but drafts nothing",
        evidence=(f"{share or 0.0:.1%} of the sequences per step had a draft: {why}",),
        gain=None if gain is None else max(gain, 0.0),
        fix=fix,
    )


def _table_depth(case: Case) -> int | None:
    """What the server's own table says at this batch."""
    batch = round(case.seen.batch or 1)
    entries = case.settings.schedule
    found = [depth for first, last, depth in entries if first <= batch <= last]
    return found[0] if found else (entries[-1][2] if entries else None)


def _no_match(case: Case, share: float) -> Finding:
    expected = case.expected
    gain = None if expected is None else case.gain(expected.no_spec_goodput, expected.goodput)
    return Finding(
        id="not-drafting",
        title="N-gram drafts find nothing to repeat",
        evidence=(f"{share:.1%} of the sequences per step had a draft",),
        gain=None if gain is None else max(gain, 0.0),
        fix=case.fix("not-drafting-ngram"),
    )


# --- depth ---


def depth(case: Case) -> Finding | None:
    """Another depth that is better whatever the prices of drafts err by; at every load, where the batch is unknown."""
    expected = case.expected
    if expected is None or not case.seen.drafts or case.seen.survival is None or not expected.depth:
        return None
    if case.of.rounds is not None and case.of.rounds < _LEAST_ROUNDS:
        return None
    batches = (expected.batch,) if expected.batch_shown else ANY_BATCH
    found = [_better(expected.at(batch)) for batch in batches]
    if any(each is None for each in found):
        return None
    sides = {np.sign(each[0] - expected.depth) for each in found if each is not None}
    best, gain = min((each for each in found if each is not None), key=lambda each: each[1])
    if len(sides) > 1:
        return None
    deep = best < expected.depth
    of_load = f"batch {expected.batch:.0f}" if expected.batch_shown else "any batch"
    title = f"Depth {expected.depth} is too {'deep' if deep else 'shallow'} for this load"
    return Finding(
        id="depth-too-deep" if deep else "depth-too-shallow",
        title=title if best else "Speculation does not pay at this load",
        evidence=(_costs(expected, best, of_load), f"accepted by position: {_shares(case)}"),
        gain=case.gain(1.0 + gain, 1.0),
        fix=case.fix("depth-off") if best == 0 else case.fix("depth", flags=case.flags(best)),
    )


def _shares(case: Case) -> str:
    survival = case.seen.survival
    return "" if survival is None else ", ".join(f"{share:.0%}" for share in survival.by_depth)


def _costs(expected: Expected, best: int, of_load: str) -> str:
    grid, now = expected.grid, expected.depth
    longer = grid.round_seconds[0, now] / grid.no_spec_seconds[0]
    other = 1.0 if best == 0 else grid.round_seconds[0, best] / grid.no_spec_seconds[0]
    return (
        f"at {of_load} a round of depth {now} takes {longer:.2f} plain steps for {grid.committed[now]:.2f} tokens; "
        f"of depth {best}, {other:.2f} for {_extended(expected).accepted_by_depth(best)[-1] + 1.0:.2f}"
    )


def _extended(expected: Expected) -> Survival:
    """The acceptance that was seen, and less of it per position beyond."""
    seen = expected.survival
    shares = list(seen.by_depth)
    ratio = seen.last_acceptance
    while len(shares) < expected.deepest:
        ratio *= _DEEPER
        shares.append(shares[-1] * ratio)
    return Survival(by_depth=np.array(shares), source=assumed("as seen, falling beyond"))


def _better(expected: Expected) -> tuple[int, float] | None:
    """The best depth, and what it gains at least, if drafts cost as priced, or as much less or more as prices err."""
    # With the release's own graphs: their lack is another cause.
    pricer = expected.with_engine(expected.default_time).pricer.with_every_graph()
    grid = pricer.with_survival(_extended(expected)).grid([expected.batch], expected.deepest)
    error = expected.price_error
    best, gains = None, []
    for factor in (1.0, math.exp(-error), math.exp(error)):
        speed = _speeds(grid, factor)
        best = int(speed.argmax()) if best is None else best
        gains.append(float(speed[best] / speed[expected.depth]) - 1.0)
    gain = gains[0]
    return None if best is None or best == expected.depth or min(gains) < _WORTH else (best, gain)


def _speeds(grid: Grid, factor: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Relative tokens per second by depth, if drafts cost `factor` times as much; 0 without speculation."""
    plain = float(grid.no_spec_seconds[0])
    speeds = grid.committed / (plain + factor * (grid.round_seconds[0] - plain))
    return np.concatenate([[1.0 / plain], speeds[1:]])


# --- memory ---


def memory(case: Case) -> Finding | None:
    of = case.of
    full = (of.kv_share or 0.0) >= _FULL and (of.waiting or 0.0) >= 1.0
    preempted = (of.preemptions or 0.0) >= 1.0 and (of.kv_share or 1.0) >= _USED
    if preempted and of.requests:
        preempted = (of.preemptions or 0.0) / of.requests >= _PREEMPTED
    if not full and not preempted:
        return None
    evidence = []
    if preempted:
        evidence.append(f"{of.preemptions:.0f} preemptions in {of.seconds or 0:.0f} s: their work is done twice")
    if full:
        evidence.append(f"the KV cache is {of.kv_share:.0%} full and {of.waiting:.0f} requests wait")
    expected, fix = case.expected, case.fix("memory")
    if expected is not None and expected.fits and expected.no_spec_fits:
        fits, without = expected.fits, expected.no_spec_fits
        if expected.batch < _NEAR * fits:
            evidence.append(
                f"on this GPU {fits} sequences of {expected.scenario.context:,.0f} tokens should fit{_room(case)}"
            )
        elif fits < _FEWER * without:
            evidence.append(f"{fits} sequences of this length fit with drafts, {without} without")
            fix = f"{case.fix('memory-drafts', flags=case.flags(1))}; {fix}"
    gain = None if expected is None else _memory_gain(case, expected)
    return Finding(id="memory", title="Memory limits the batch", evidence=tuple(evidence), gain=gain, fix=fix)


def _room(case: Case) -> str:
    tokens = case.settings.kv_tokens
    return "" if tokens is None else f"; the KV cache has room for {tokens:,} tokens in all"


def _memory_gain(case: Case, expected: Expected) -> float | None:
    """If all that wait could run, and nothing had to be computed twice."""
    of = case.of
    more = expected.batch + (of.waiting or 0.0)
    gain = case.gain(expected.at(more).goodput, expected.goodput) if expected.batch_shown else 0.0
    twice = 0.0
    if of.preemptions and of.seconds:
        length = max(round(expected.scenario.context), 1)
        twice = min(of.preemptions / of.seconds * expected.pricer.prefill_seconds(length), 0.9)
    return (1.0 + max(gain or 0.0, 0.0)) / (1.0 - twice) - 1.0


# --- prompts ---


def prompts(case: Case) -> Finding | None:
    of, expected = case.of, case.expected
    rate, tokens = of.prompt_tokens_per_second or 0.0, of.generated_tokens_per_second or 0.0
    if not rate:
        return None
    if expected is None:
        if rate < _PROMPTS_PER_TOKEN * max(tokens, 1e-9):
            return None
        share, evidence = None, f"{rate:,.0f} prompt tokens per second beside {tokens:,.0f} generated"
    else:
        share, least, most = case.prompt_share
        if share < _PROMPTS or least < _PROMPTS_AT_LEAST:
            return None
        evidence = f"{rate:,.0f} prompt tokens per second take {share:.0%} of the time ({least:.0%} to {most:.0%})"
    return Finding(
        id="prompts",
        title="Prompts take the time, not decoding",
        evidence=(evidence,),
        gain=None if share is None else share / (1.0 - share),
        fix=case.fix("prompts"),
    )
