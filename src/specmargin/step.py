"""The step: one forward pass of the target over a batch of runs.

Sequences that bring the same run length at the same context are one *class* with a count, so a
homogeneous grid (batch × depth) and a ragged batch are the same thing: arrays whose last axis is the
class of sequence, with any number of grid axes in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specmargin.architecture.types import ExpertPool
from specmargin.errors import ScenarioError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ArrayLike = npt.ArrayLike


@dataclass(frozen=True, kw_only=True)
class Step:
    """Runs, contexts and counts, each of shape (*grid, classes); positions = Σ count · run.

    A class is a verify run (every position wants its logits, and a recurrent state to roll back to) or a piece of a
    prompt (`prompt_by_class` is 1: only the last position does).
    """

    run_by_class: FloatArray
    context_by_class: FloatArray
    count_by_class: FloatArray
    prompt_by_class: FloatArray | None = None

    def __post_init__(self) -> None:
        if not self.run_by_class.shape == self.context_by_class.shape == self.count_by_class.shape:
            raise ScenarioError("run, context and count of a step must have the same shape")
        if self.run_by_class.size == 0:
            raise ScenarioError("a step needs at least one sequence")
        # Written so that NaN fails too: every comparison with NaN is false.
        if not np.all(self.run_by_class >= 1):
            raise ScenarioError("a run has at least one position (depth 0 is a run of 1)")
        if not np.all(self.context_by_class >= 0):
            raise ScenarioError("context must not be negative")
        if not np.all(self.count_by_class >= 0):
            raise ScenarioError("the number of sequences must not be negative")
        if not all(
            np.isfinite(values).all() for values in (self.run_by_class, self.context_by_class, self.count_by_class)
        ):
            raise ScenarioError("runs, contexts and numbers of sequences must be finite")

    @classmethod
    def uniform(cls, *, batch: ArrayLike, depth: ArrayLike = 0, context: ArrayLike = 0) -> Step:
        """A grid of homogeneous steps: `batch`, `depth` and `context` broadcast against each other."""
        count, run, ctx = np.broadcast_arrays(
            np.asarray(batch, dtype=np.float64),
            np.asarray(depth, dtype=np.float64) + 1.0,
            np.asarray(context, dtype=np.float64),
        )
        return cls(
            run_by_class=_frozen(run[..., np.newaxis]),
            context_by_class=_frozen(ctx[..., np.newaxis]),
            count_by_class=_frozen(count[..., np.newaxis]),
        )

    @classmethod
    def prompts(cls, *, count: ArrayLike = 1, tokens: ArrayLike, context: ArrayLike = 0) -> Step:
        """A step that prefills `count` prompts (or pieces of prompts) of `tokens` each."""
        step = cls.uniform(batch=count, depth=np.asarray(tokens, dtype=np.float64) - 1.0, context=context)
        return replace(step, prompt_by_class=np.ones_like(step.run_by_class))

    @classmethod
    def ragged(cls, *, depths: Sequence[int] | FloatArray, contexts: ArrayLike) -> Step:
        """One step whose sequences differ: a depth and a context each."""
        run = np.asarray(depths, dtype=np.float64) + 1.0
        context = np.broadcast_to(np.asarray(contexts, dtype=np.float64), run.shape)
        return cls(
            run_by_class=_frozen(run),
            context_by_class=_frozen(context),
            count_by_class=_frozen(np.ones_like(run)),
        )

    def flattened(self) -> Step:
        """A sequence of one position in place of every position of a run, at its mean context; prompts as they are."""
        is_prompt = np.zeros_like(self.run_by_class) if self.prompt_by_class is None else self.prompt_by_class
        run = np.where(is_prompt > 0, 1.0, self.run_by_class)
        return replace(
            self,
            run_by_class=_frozen(np.where(is_prompt > 0, self.run_by_class, 1.0)),
            context_by_class=_frozen(self.context_by_class + (run - 1.0) / 2.0),
            count_by_class=_frozen(self.count_by_class * run),
        )

    def of_one_query(self) -> Step:
        """The same sequences with one position each; prompts as they are."""
        is_prompt = False if self.prompt_by_class is None else self.prompt_by_class > 0
        return replace(self, run_by_class=_frozen(np.where(is_prompt, self.run_by_class, 1.0)))

    def times(self, count: float) -> Step:
        """The same step with `count` sequences in place of each."""
        return replace(self, count_by_class=_frozen(self.count_by_class * count))

    @cached_property
    def sequences(self) -> FloatArray:
        return np.asarray(self.count_by_class.sum(axis=-1))

    @cached_property
    def positions(self) -> FloatArray:
        return self.total(self.run_by_class)

    @cached_property
    def wanted_by_class(self) -> FloatArray:
        """Positions of a sequence whose logits (and recurrent states) are wanted."""
        if self.prompt_by_class is None:
            return self.run_by_class
        return np.where(self.prompt_by_class > 0, 1.0, self.run_by_class)

    @property
    def mixes_prompts(self) -> bool:
        """Whether prompts are read beside decoding sequences."""
        return self.prompt_by_class is not None and bool(np.any(self.prompt_by_class == 0))

    @cached_property
    def wanted_positions(self) -> FloatArray:
        return self.total(self.wanted_by_class)

    @cached_property
    def verified_sequences(self) -> FloatArray:
        """Sequences with drafts to verify. Prompts have none."""
        return self.total(np.asarray(self.wanted_by_class > 1.0, dtype=np.float64))

    @cached_property
    def drafted_positions(self) -> FloatArray:
        """Draft tokens to verify. Prompts have none."""
        return self.total(np.maximum(self.wanted_by_class - 1.0, 0.0))

    def joined(self, other: Step) -> Step:
        """Both in one step, such as decoding sequences and the prefill of a prompt."""
        prompts, other_prompts = (
            np.zeros_like(s.run_by_class) if s.prompt_by_class is None else s.prompt_by_class for s in (self, other)
        )
        return Step(
            run_by_class=_joined(self.run_by_class, other.run_by_class),
            context_by_class=_joined(self.context_by_class, other.context_by_class),
            count_by_class=_joined(self.count_by_class, other.count_by_class),
            prompt_by_class=_joined(prompts, other_prompts),
        )

    def total(self, value_by_class: FloatArray) -> FloatArray:
        """Sum a per-sequence quantity over the batch: over the last axis."""
        if value_by_class.shape[-1] == 1:  # a homogeneous grid: a sum over one class is slow and does nothing
            return np.asarray((self.count_by_class * value_by_class)[..., 0])
        return np.asarray((self.count_by_class * value_by_class).sum(axis=-1))

    def classes(self, chosen: BoolArray) -> Step | None:
        """Only the chosen classes of sequences, or None if there are none."""
        if not chosen.any():
            return None
        return Step(
            run_by_class=_frozen(self.run_by_class[..., chosen]),
            context_by_class=_frozen(self.context_by_class[..., chosen]),
            count_by_class=_frozen(self.count_by_class[..., chosen]),
            prompt_by_class=None if self.prompt_by_class is None else _frozen(self.prompt_by_class[..., chosen]),
        )

    def one_position_more(self, sequences: int = 1) -> Step:
        """The same step in which `sequences` of the first class have one more position each."""
        first = slice(None, 1)
        return Step(
            run_by_class=_joined(self.run_by_class, self.run_by_class[..., first] + 1.0),
            context_by_class=_joined(self.context_by_class, self.context_by_class[..., first]),
            count_by_class=_joined(
                _decremented(self.count_by_class, sequences), np.full_like(self.count_by_class[..., first], sequences)
            ),
        )

    def divided(self, ranks: int) -> Step:
        """The busiest rank's share of sequences spread over `ranks`: a whole number, every class in proportion."""
        if ranks == 1:
            return self
        total = self.sequences
        share = np.ceil(total / ranks) / np.maximum(total, 1e-9)
        return replace(self, count_by_class=_frozen(self.count_by_class * share[..., np.newaxis]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """Experts of one group of MoE layers; those that the GPU keeps, if any, are among them."""

    distinct: FloatArray
    pairs: FloatArray
    kept_distinct: FloatArray | None
    kept_pairs: FloatArray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The output of routing for prices: on the busiest rank, for each MoE layer group, in order."""

    distinct_by_group: tuple[FloatArray, ...]
    pairs_by_group: tuple[FloatArray, ...]  # (position, expert) pairs, k per position on a single rank
    # Of layers in main memory, the part of the experts that the GPU keeps; empty where it keeps none.
    kept_distinct_by_group: tuple[FloatArray, ...] = ()
    kept_pairs_by_group: tuple[FloatArray, ...] = ()

    def of_group(self, index: int) -> GroupLoad:
        kept = bool(self.kept_distinct_by_group)
        return GroupLoad(
            distinct=self.distinct_by_group[index],
            pairs=self.pairs_by_group[index],
            kept_distinct=self.kept_distinct_by_group[index] if kept else None,
            kept_pairs=self.kept_pairs_by_group[index] if kept else None,
        )


# Prices never import routing; they take this as an argument.
ExpertCounter = Callable[[tuple[ExpertPool, ...], Step], ExpertLoad]


def _decremented(count_by_class: FloatArray, by: int) -> FloatArray:
    reduced = count_by_class.copy()
    reduced[..., 0] = np.maximum(reduced[..., 0] - by, 0.0)
    return reduced


def _joined(left: FloatArray, right: FloatArray) -> FloatArray:
    return _frozen(np.concatenate([left, right], axis=-1))


def _frozen(array: FloatArray) -> FloatArray:
    view = np.ascontiguousarray(array, dtype=np.float64).view()
    view.flags.writeable = False
    return view
