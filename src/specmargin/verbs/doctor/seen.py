"""What follows from an observation by itself: batch, depth, tokens per sequence and step, and the time of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specmargin.acceptance.survival import Survival
from specmargin.live.observation import Observation
from specmargin.sources import Source, SourceKind

RARELY = 0.05  # of sequences per step that have a draft: as good as none
_BUSY = 0.8  # of the sequences per step that run on average: below, the server was idle for a part of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    observation: Observation

    # --- drafts ---

    @property
    def survival(self) -> Survival | None:
        """By position where it is shown, else the same acceptance at every position."""
        of = self.observation
        source = Source(kind=SourceKind.MEASURED, detail=f"as seen: {of.source}")
        if self.shares:
            shares = [min(max(share, 0.0), 1.0) for share in self.shares]
            falling = [min(shares[: i + 1]) for i in range(len(shares))]
            return Survival(by_depth=np.array(falling), source=source)
        if of.accept_length is None or self.depth is None or self.depth < 1:
            return None
        accepted = min(max(of.accept_length - 1.0, 0.0), float(self.depth))
        return Survival.of_accepted(accepted, self.depth, source)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of rounds in which each position was accepted, without positions that were configured but not drafted."""
        return self.observation.survival[: self.depth]

    @property
    def first(self) -> float | None:
        """Acceptance of the first position."""
        return None if self.survival is None else self.survival.first_acceptance

    @property
    def depth(self) -> int | None:
        """Drafted per round, or as configured."""
        of = self.observation
        if of.drafted_per_round is not None and of.rounds != 0.0:
            return max(round(of.drafted_per_round), 1 if of.drafted_per_round > 0.0 else 0)
        return of.settings.depth if of.settings.depth is not None else len(of.survival) or None

    @property
    def accept_length(self) -> float | None:
        of = self.observation
        return 1.0 + sum(of.survival) if of.accept_length is None and of.survival else of.accept_length

    @property
    def drafts(self) -> bool:
        """Whether more than a few sequences had drafts."""
        of, share = self.observation, self.draft_share
        if share is not None and share < RARELY:
            return False
        if of.rounds is not None:
            return of.rounds > 0.0 and (of.drafted_per_round is None or of.drafted_per_round > 0.0)
        return self.accept_length is not None

    @property
    def draft_share(self) -> float | None:
        """Share of sequences per step that had a draft."""
        steps, rounds = self._sequence_steps, self._rounds_per_second
        return None if steps is None or rounds is None else min(rounds / steps, 1.0)

    # --- load ---

    @property
    def _sequence_steps(self) -> float | None:
        """Sequences × steps per second: tokens without the accepted drafts."""
        tokens, rounds = self.observation.generated_tokens_per_second, self._rounds_per_second
        if not tokens:
            return None
        length = self.accept_length or 1.0
        return tokens / length if rounds is None else max(tokens - rounds * (length - 1.0), tokens / length)

    @property
    def _rounds_per_second(self) -> float | None:
        """Only where the server counts them: lines of a log cover some time before the first."""
        of = self.observation
        return None if of.rounds is None or not of.seconds or "rounds" in of.estimated else of.rounds / of.seconds

    @property
    def committed(self) -> float:
        """Tokens per sequence and step, with steps that had no draft."""
        steps, tokens = self._sequence_steps, self.observation.generated_tokens_per_second
        return tokens / steps if steps and tokens else self.accept_length or 1.0

    @property
    def batch(self) -> float | None:
        """Sequences per step, over all replicas: as counted, by tokens and steps, or those that run."""
        of = self.observation
        if of.sequences_per_step:
            return max(of.sequences_per_step * of.replicas, 1.0)
        if self._sequence_steps and of.steps_per_second:
            return max(self._sequence_steps / of.steps_per_second, 1.0)  # steps are of one replica, tokens of all
        return max(of.running, 1.0) if of.running else None

    @property
    def round_seconds(self) -> float | None:
        """Between two steps of one sequence, prompts included."""
        of = self.observation
        if of.seconds_per_round:
            return of.seconds_per_round
        if of.steps_per_second and self._always_busy:
            return 1.0 / of.steps_per_second
        if of.running and self._sequence_steps:
            return of.running / self._sequence_steps
        if of.seconds_per_output_token:
            return of.seconds_per_output_token * self.committed
        return None

    @property
    def _always_busy(self) -> bool:
        running, batch = self.observation.running, self.batch
        return bool(running and batch and running >= _BUSY * batch)

    @property
    def tpot_seconds(self) -> float | None:
        of = self.observation
        if of.seconds_per_output_token:
            return of.seconds_per_output_token
        return None if self.round_seconds is None else self.round_seconds / self.committed

    @property
    def positions(self) -> float | None:
        """Per step, of decoding sequences."""
        return None if self.batch is None else self.batch * ((self.depth or 0) + 1 if self.drafts else 1)

    @property
    def idle(self) -> bool:
        of = self.observation
        return of.generated_tokens_per_second == 0.0 and not of.running
