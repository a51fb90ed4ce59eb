"""Survival curves: S_d, the probability that the first d draft tokens are all accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specmargin.errors import AcceptanceError
from specmargin.sources import Source, SourceKind, assumed
from specmargin.step import ArrayLike, BoolArray, FloatArray, IntArray

_DEEPEST = 64

EIGHTY_PERCENT = 1.2816  # standard errors on either side that hold 80%


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """S_1, S_2, …; beyond the last given depth, conditional acceptance stays at its last value."""

    by_depth: FloatArray
    source: Source
    shift_range: tuple[float, float] = (0.0, 0.0)  # 80% range of per-token acceptance, beside the curve's own

    def __post_init__(self) -> None:
        s = self.by_depth
        if s.ndim != 1 or not 1 <= s.size <= _DEEPEST:
            raise AcceptanceError(f"a survival curve has 1 to {_DEEPEST} depths, got {s.size}")
        if not np.all((s >= 0) & (s <= 1)):
            raise AcceptanceError(f"survival must lie in 0..1, got {_listed(s)}")
        if np.any(np.diff(s) > 0):
            raise AcceptanceError(f"survival cannot rise with depth, got {_listed(s)}")

    @classmethod
    def constant(cls, acceptance: float, source: Source, depth: int = 1) -> Survival:
        """Every token accepted with the same probability α: S_d = α^d."""
        if not 0.0 <= acceptance <= 1.0:
            raise AcceptanceError(f"acceptance must lie in 0..1, got {acceptance:g}")
        return cls(by_depth=_frozen(acceptance ** np.arange(1, depth + 1)), source=source)

    @classmethod
    def of_accepted(cls, accepted: float, depth: int, source: Source) -> Survival:
        """The constant acceptance with this mean of accepted draft tokens per round of `depth`."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            total = float(np.sum(middle ** np.arange(1, depth + 1)))
            low, high = (middle, high) if total < accepted else (low, middle)
        return cls.constant((low + high) / 2, source, depth)

    def up_to(self, depth: int) -> FloatArray:
        """S_1..S_depth, extended geometrically past the last given depth."""
        given = self.by_depth[:depth]
        missing = depth - given.size
        if missing <= 0:
            return given
        steps = np.arange(1, missing + 1)
        return np.concatenate([given, self.by_depth[-1] * self.last_acceptance**steps])

    @property
    def last_acceptance(self) -> float:
        """The conditional acceptance at the last given depth."""
        s = self.by_depth
        before = s[-2] if s.size > 1 else 1.0
        return float(s[-1] / before) if before > 0 else 0.0

    def shifted(self, shift: float, depth: int) -> Survival:
        """Every token's acceptance changed by `shift`, up to `depth`."""
        survival = np.concatenate([[1.0], self.up_to(depth)])
        reached = np.maximum(survival[:-1], 1e-12)
        conditional = np.clip(survival[1:] / reached + shift, 0.0, 1.0)
        return Survival(by_depth=_frozen(np.cumprod(conditional)), source=self.source)

    def rejecting_less(self, times: float) -> Survival:
        """A drafter `times` as good: every position is rejected 1/`times` as often."""
        survival = np.concatenate([[1.0], self.by_depth])
        conditional = survival[1:] / np.maximum(survival[:-1], 1e-12)
        better = np.clip(1.0 - (1.0 - conditional) / times, 0.0, 1.0)
        source = assumed(f"rejections divided by {times:g} at every position; before: {self.source.detail}")
        return replace(self, by_depth=_frozen(np.cumprod(better)), source=source)

    @property
    def first_acceptance(self) -> float:
        return float(self.by_depth[0])

    def accepted_by_depth(self, depth: int) -> FloatArray:
        """Mean accepted draft tokens at depth 0..`depth`: 0, S_1, S_1 + S_2, …"""
        return np.concatenate([[0.0], np.cumsum(self.up_to(depth))])


def kaplan_meier(passed_by_round_depth: BoolArray, drafted_by_round: IntArray) -> FloatArray:
    """By depth, the product of passed over tried, among the rounds that passed so far and drafted this
    deep; to the deepest draft that was tried."""
    conditional = []
    still = np.ones(drafted_by_round.size, dtype=bool)
    for depth in range(passed_by_round_depth.shape[1]):
        tried = still & (drafted_by_round > depth)
        if not tried.any():
            break
        conditional.append(float(passed_by_round_depth[tried, depth].mean()))
        still = passed_by_round_depth[:, depth]
    return np.cumprod(np.array(conditional or [0.0]))


def break_even_acceptance(cost_ratio: ArrayLike, depth: ArrayLike) -> FloatArray:
    """The constant α at which 1 + α + … + α^γ equals the price of the round over the price of a plain step.

    NaN where even α = 1 does not pay (the ratio exceeds γ + 1); 0 where speculation costs nothing.
    """
    ratio, gamma = np.broadcast_arrays(np.asarray(cost_ratio, np.float64), np.asarray(depth, np.float64))
    low, high = np.zeros_like(ratio), np.ones_like(ratio)
    for _ in range(50):  # bisection: the sum rises with α; 2^-50 is far below the precision of any measurement
        middle = (low + high) / 2
        under = _committed(middle, gamma) < ratio
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.where((ratio > gamma + 1.0) | (gamma < 1), np.nan, np.where(ratio <= 1.0, 0.0, (low + high) / 2))


def _committed(alpha: FloatArray, gamma: FloatArray) -> FloatArray:
    """1 + α + … + α^γ, safe at α = 1."""
    near_one = np.abs(alpha - 1.0) <= 1e-5
    safe = np.where(near_one, 0.5, alpha)
    return np.where(near_one, gamma + 1.0, (1.0 - safe ** (gamma + 1.0)) / (1.0 - safe))


_BONUS = {"length": 1.0, "accepted": 0.0}  # tokens per round that are counted besides accepted drafts
_FORMS = (
    "a probability (0.8), a survival curve (0.78,0.58,0.44), an accept length as engines report it (length:2.4@3 for "
    "drafts of 3), accepted drafts per round (accepted:1.4@3) or a bundled curve's name"
)


def parse_acceptance(text: str) -> Survival:
    """`0.8`, `0.78,0.58,0.44`, `length:2.4@3` (tokens per round with the bonus token, drafts of 3) or `accepted:1.4@3`.

    The source of the curve says what was understood.
    """
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind in _BONUS:
            return _of_mean(kind, rest)
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise AcceptanceError(f"acceptance {text!r} is not understood; give {_FORMS}") from None
    if len(numbers) == 1:
        return Survival.constant(numbers[0], _given(text, f"{numbers[0]:.2f} per token"))
    understood = f"{sum(numbers):.2f} accepted drafts per round of {len(numbers)}, {numbers[0]:.2f} for the first"
    return Survival(by_depth=_frozen(np.asarray(numbers)), source=_given(text, understood))


def _of_mean(kind: str, rest: str) -> Survival:
    number, at, depth_text = rest.partition("@")
    mean = float(number)
    if not at:
        raise AcceptanceError(
            f"{kind}:{number} needs the draft depth at which it was measured: {kind}:{number}@3 for drafts of 3 tokens"
        )
    depth, bonus = int(depth_text), _BONUS[kind]
    if not 1 <= depth <= _DEEPEST:
        raise AcceptanceError(f"{kind}:{rest}: the depth after @ must lie in 1..{_DEEPEST}, got {depth}")
    if not bonus <= mean <= depth + bonus:
        counted = "with" if bonus else "without"
        raise AcceptanceError(
            f"{kind}:{rest} is impossible: at depth {depth} a round has {bonus:g} to {depth + bonus:g} tokens, "
            f"counted {counted} the bonus token"
        )
    survival = Survival.of_accepted(mean - bonus, depth, _given(f"{kind}:{rest}", ""))
    understood = f"{mean - bonus:.2f} accepted drafts per round, {survival.first_acceptance:.2f} per token"
    return replace(survival, source=_given(f"{kind}:{rest}", understood))


def _given(text: str, understood: str) -> Source:
    return Source(kind=SourceKind.MEASURED, detail=f"{text}, given by the user: {understood}")


def _frozen(values: ArrayLike) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def _listed(values: FloatArray) -> str:
    return ", ".join(f"{value:g}" for value in values)
