"""Acceptance and confidence replayed from a bank inside a vLLM with dummy weights, so that a gate has a signal.

    python -m lab.gpu.replay make BANK.npz [FOLDER [KIND KIND …]]    from a captured bank, or a synthetic one

The engine needs `rejection_sample_method: synthetic` with rates of 1.0: it accepts every draft token that is valid, and
`install` makes those invalid that the bank's round rejects. After drafting, the round's confidences take the place of
what the dummy drafter's logits say, as the features of vLLM's acceptance estimator: its calibration, its gate and ours
see the same signal. All of it is a handful of small kernels in the order of vLLM's stream, without synchronisation.
Each sequence walks through the rounds of its kind in the order of the bank, from a start of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

_EDGE = 1e-4  # banks hold four digits: a confidence of 1.0 is no certainty, and as log-odds it would rule any fit
SOUND_SLOPE, SOUND_INTERCEPT = (0.3, 1.0), 1.5
_STRIDE = 7919  # a prime: starts of neighbouring sequences lie far apart

Coefficients = tuple[float, list[float]]  # slope, and intercepts by position


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Rounds by kind of traffic, kinds one after the other."""

    label: str
    names: tuple[str, ...]  # of the kinds
    first: np.ndarray  # by kind: its first round
    count: np.ndarray  # by kind
    accepted: np.ndarray  # by round: tokens that the target accepts if all are verified
    confidence: np.ndarray  # (round, depth): of the drafter

    def survival(self, kind: int) -> list[float]:
        rows = slice(int(self.first[kind]), int(self.first[kind] + self.count[kind]))
        return [float((self.accepted[rows] > depth).mean()) for depth in range(self.confidence.shape[1])]

    def cut(self, depth: int) -> Bank:
        """As if no more had been drafted."""
        if depth > self.confidence.shape[1]:
            raise ValueError(f"the bank has {self.confidence.shape[1]} depths, not {depth}")
        return replace(self, accepted=np.minimum(self.accepted, depth), confidence=self.confidence[:, :depth])

    def save(self, path: Path) -> None:
        np.savez_compressed(path, label=self.label, names=np.array(self.names), first=self.first, count=self.count,
                            accepted=self.accepted, confidence=self.confidence)  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> Bank:
        with np.load(path) as file:
            return cls(
                label=str(file["label"]),
                names=tuple(str(name) for name in file["names"]),
                first=file["first"],
                count=file["count"],
                accepted=file["accepted"],
                confidence=file["confidence"],
            )

    @classmethod
    def of(cls, label: str, kinds: dict[str, tuple[np.ndarray, np.ndarray]]) -> Bank:
        """`kinds`: accepted tokens and confidences by name."""
        count = np.array([accepted.size for accepted, _ in kinds.values()], dtype=np.int64)
        return cls(
            label=label,
            names=tuple(kinds),
            first=np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64),
            count=count,
            accepted=np.concatenate([accepted for accepted, _ in kinds.values()]).astype(np.int64),
            confidence=np.concatenate([confidence for _, confidence in kinds.values()]).astype(np.float32),
        )


def captured_bank(folder: Path, kinds: list[str], depth: int) -> Bank:
    """From a bank that an engine captured; needs Polars."""
    from specmargin.acceptance.bank import read_bank

    rounds = read_bank([folder])
    parts = {}
    for kind in kinds or rounds.categories:
        own = rounds.of_category(kind)
        accepted = np.minimum(own.accepted_by_round, depth)
        parts[kind] = accepted, own.confidence_by_round_depth[:, :depth]
    return Bank.of(f"captured: {rounds.source}, {rounds.speculator}", parts)


def synthetic_bank(depth: int, rounds: int = 8192, seed: int = 0) -> Bank:
    """Not measured: two kinds whose acceptance differs by round and token, with over-confident, noisy confidences."""
    generator = np.random.default_rng(seed)
    parts = {}
    for name, log_odds in (("code", 1.9), ("prose", 0.2)):
        hard = generator.normal(0.0, 1.2, (rounds, 1)) + generator.normal(0.0, 1.0, (rounds, depth))
        truth = log_odds + hard
        hit = generator.random((rounds, depth)) < 1.0 / (1.0 + np.exp(-truth))
        seen = 1.3 * truth + 0.4 + generator.normal(0.0, 0.8, truth.shape)
        parts[name] = np.cumprod(hit, axis=1).sum(axis=1), 1.0 / (1.0 + np.exp(-seen))
    return Bank.of("synthetic", parts)


class Replay:
    """Installed in one model runner of vLLM 0.32 (the second). Rewind before turns that are to be compared."""

    def __init__(self, runner: Any, bank: Bank, kind_of: Callable[[str, int], int] | None = None) -> None:
        import torch

        device, slots = runner.device, int(runner.max_num_reqs)
        depth = int(runner.num_speculative_steps)
        if bank.confidence.shape[1] != depth:
            raise ValueError(f"the bank has {bank.confidence.shape[1]} depths, the engine drafts {depth}")
        clipped = np.clip(bank.confidence.astype(np.float64), _EDGE, 1.0 - _EDGE)
        log_odds = np.log(clipped / (1.0 - clipped))
        self.bank, self.runner = bank, runner
        self.speculator = runner.speculator
        self.kind_of = kind_of or (lambda _, number: number % len(bank.names))
        self.added = 0
        self.turn: int | None = None  # to which the next drafts rewind
        with torch.inference_mode():
            self.features = torch.tensor(log_odds, dtype=torch.float32, device=device)
            self.accepted = torch.tensor(bank.accepted, dtype=torch.int64, device=device)
            self.first = torch.tensor(bank.first, dtype=torch.int64, device=device)
            self.count = torch.tensor(bank.count, dtype=torch.int64, device=device)
            self.kind = torch.zeros(slots, dtype=torch.int64, device=device)
            self.row = torch.zeros(slots, dtype=torch.int64, device=device)
            self.slots = torch.arange(slots, dtype=torch.int64, device=device)

    def rewind(self, turn: int) -> None:
        """Every sequence starts again, at a place that depends on the turn: contestants of a turn meet the same. It
        happens with the next drafts: those that wait to be verified keep the round whose confidences were shown."""
        self.turn = turn

    def _restart(self, turn: int) -> None:
        start = (self.slots + 1) * _STRIDE + turn * 104_729
        self.row.copy_(self.first[self.kind] + start % self.count[self.kind])

    def add(self, request_id: str, slot: int) -> None:
        kind = self.kind_of(request_id, self.added)
        self.added += 1
        self.kind[slot].fill_(kind)
        self.row[slot].fill_(int(self.bank.first[kind]) + (slot + 1) * _STRIDE % int(self.bank.count[kind]))

    def rejected(self, input_batch: Any) -> Any:
        """By row of logits: whether its draft token is one that the target rejects. Row 0 of a run is no draft."""
        accepted = self.accepted[self.row[input_batch.expanded_idx_mapping]]
        return input_batch.expanded_local_pos > accepted

    def drafted(self, input_batch: Any) -> None:
        """New drafts: the next round of each sequence, and its confidences."""
        import torch

        slots, count = input_batch.idx_mapping, input_batch.num_reqs
        if self.turn is not None:
            self._restart(self.turn)
            self.turn = None
        kinds = self.kind[slots]
        first = self.first[kinds]
        rows = first + (self.row[slots] - first + 1) % self.count[kinds]
        self.row[slots] = rows
        estimator = self.speculator.acceptance_estimator
        if estimator is None:
            return
        features = self.features[rows]
        predictions = torch.sigmoid(features * estimator.slope + estimator.intercepts)
        estimator.features[slots] = features
        estimator.predictions[slots] = predictions
        self.speculator.draft_token_confidence_probs[:count] = predictions


def install(runner: Any, bank: Bank, kind_of: Callable[[str, int], int] | None = None) -> Replay:
    """Before requests are added. `kind_of`: request id and number of requests before it, to kind; they alternate."""
    replay = Replay(runner, bank, kind_of)
    restart_estimator(runner.speculator.acceptance_estimator)
    _wrap_requests(runner.req_states, replay)
    _wrap_propose(runner.speculator, replay)
    _wrap_sampler(runner.rejection_sampler, replay)
    return replay


def restart_estimator(estimator: Any, coefficients: Coefficients | None = None) -> None:
    """As vLLM makes it, or at other coefficients. Warm-up steps have taught it that a dummy drafter's tokens, as
    unlikely as any other, are all accepted: Newton steps from there may diverge, to intercepts at which no token is
    ever verified again."""
    import torch

    if estimator is None:
        return
    slope, intercepts = coefficients or (0.5, [-0.2] * estimator.intercepts.shape[0])
    with torch.inference_mode():
        for sums in (estimator.info, estimator.grad, estimator.counts):
            sums.zero_()
        estimator.slope.fill_(slope)
        estimator.intercepts.copy_(torch.tensor(intercepts))
    estimator._steps_since_refit = 0


def estimator_state(runner: Any) -> Coefficients:
    """Slope and intercepts by position; waits for the GPU."""
    estimator = runner.speculator.acceptance_estimator
    return float(estimator.slope.item()), [round(float(value), 4) for value in estimator.intercepts.tolist()]


def is_sound(state: Coefficients) -> bool:
    """Whether the coefficients are near what any bank of this kind gives (0.5 to 0.75, −0.3 to 0.3), with room for
    what few sequences teach. Beyond that the estimator has diverged, and gates that use it decide by nothing."""
    slope, intercepts = state
    return SOUND_SLOPE[0] <= slope <= SOUND_SLOPE[1] and all(abs(value) <= SOUND_INTERCEPT for value in intercepts)


def fitted(bank: Bank) -> Coefficients:
    """What vLLM's estimator would learn if all drafts of the bank were verified: logistic regression of a token's
    acceptance, given those before it, on the log-odds of its confidence; one slope, an intercept by position."""
    clipped = np.clip(bank.confidence.astype(np.float64), _EDGE, 1.0 - _EDGE)
    odds, depth = np.log(clipped / (1.0 - clipped)), np.arange(clipped.shape[1])
    reached, hit = bank.accepted[:, np.newaxis] >= depth, bank.accepted[:, np.newaxis] > depth
    slope, intercepts = 0.5, np.full(depth.size, -0.2)
    for _ in range(25):
        expected = 1.0 / (1.0 + np.exp(-(slope * odds + intercepts)))
        weight, residual = expected * (1.0 - expected) * reached, (hit - expected) * reached
        information = np.diag(np.concatenate([[(weight * odds**2).sum()], weight.sum(axis=0)]) + 1e-3)
        information[0, 1:] = information[1:, 0] = (weight * odds).sum(axis=0)
        change = np.linalg.solve(information, np.concatenate([[(residual * odds).sum()], residual.sum(axis=0)]))
        slope, intercepts = slope + float(change[0]), intercepts + change[1:]
    return slope, [round(float(value), 4) for value in intercepts]


def _wrap_requests(states: Any, replay: Replay) -> None:
    add = states.add_request

    def add_request(*args: Any, **kwargs: Any) -> Any:
        result = add(*args, **kwargs)
        request_id = kwargs["req_id"] if "req_id" in kwargs else args[0]
        replay.add(request_id, states.req_id_to_index[request_id])
        return result

    states.add_request = add_request


def _wrap_propose(speculator: Any, replay: Replay) -> None:
    propose = speculator.propose

    def replayed(*args: Any, **kwargs: Any) -> Any:
        drafts = propose(*args, **kwargs)
        if not kwargs.get("dummy_run"):
            replay.drafted(kwargs["input_batch"] if "input_batch" in kwargs else args[0])
        return drafts

    speculator.propose = replayed


def _wrap_sampler(sampler: Any, replay: Replay) -> None:
    """A call looks for `__call__` in the class, so the sampler gets a class of its own."""
    kind = type(sampler)

    class ReplayedSampler(kind):  # type: ignore[misc, valid-type]
        def __call__(self, logits: Any, input_batch: Any, draft_logits: Any = None, invalid_drafts: Any = None) -> Any:
            rejected = replay.rejected(input_batch)
            if invalid_drafts is not None:
                rejected = rejected | invalid_drafts
            return super().__call__(logits, input_batch, draft_logits, rejected)

    sampler.__class__ = ReplayedSampler


def make(path: Path, folder: Path | None, kinds: list[str], depth: int = 7) -> None:
    bank = synthetic_bank(depth) if folder is None else captured_bank(folder, kinds, depth)
    bank.save(path)
    for kind, name in enumerate(bank.names):
        print(name, int(bank.count[kind]), [round(value, 3) for value in bank.survival(kind)])


if __name__ == "__main__":
    make(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None, sys.argv[4:])
