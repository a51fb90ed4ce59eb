"""The replay of a bank in the GPU benchmark: acceptance and confidences that a stub of vLLM's second runner meets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab.gpu import replay

torch = pytest.importorskip("torch", reason="vLLM is not installed here")

DEPTH, SLOTS = 4, 8


def _runner(estimator: bool = True) -> Any:
    made = SimpleNamespace(
        slope=torch.tensor([3.0]),
        intercepts=torch.full((DEPTH,), -900.0),
        features=torch.zeros(SLOTS, DEPTH),
        predictions=torch.zeros(SLOTS, DEPTH),
        info=torch.ones(DEPTH, 3),
        grad=torch.ones(DEPTH, 2),
        counts=torch.ones(DEPTH),
        _steps_since_refit=7,
    )
    speculator = SimpleNamespace(
        acceptance_estimator=made if estimator else None,
        draft_token_confidence_probs=torch.zeros(SLOTS, DEPTH),
        propose=lambda *_, **__: "drafts",
    )
    states = SimpleNamespace(req_id_to_index={}, add_request=None)

    def add_request(*, req_id: str) -> None:
        states.req_id_to_index[req_id] = len(states.req_id_to_index)

    states.add_request = add_request

    class Sampler:
        def __call__(self, *arguments: Any) -> Any:
            return arguments[3]

    return SimpleNamespace(
        device=torch.device("cpu"),
        max_num_reqs=SLOTS,
        num_speculative_steps=DEPTH,
        speculator=speculator,
        req_states=states,
        rejection_sampler=Sampler(),
    )


def test_a_replay_accepts_what_the_bank_accepted_and_shows_its_confidences() -> None:
    runner, bank = _runner(), replay.synthetic_bank(DEPTH, rounds=50)
    installed = replay.install(runner, bank)
    with torch.inference_mode():
        for name in ("a", "b", "c"):
            runner.req_states.add_request(req_id=name)
        slots = torch.tensor([2, 0, 1])
        rows = installed.row[slots].clone()
        batch = SimpleNamespace(idx_mapping=slots, num_reqs=3)
        assert runner.speculator.propose(batch, dummy_run=True) == "drafts"
        assert torch.equal(installed.row[slots], rows)  # a dummy run draws nothing
        runner.speculator.propose(batch)
        kinds = installed.kind[slots]
        assert kinds.tolist() == [0, 0, 1]
        first = torch.tensor(bank.first)[kinds]
        assert torch.equal(installed.row[slots], first + (rows - first + 1) % 50)
        estimator = runner.speculator.acceptance_estimator
        assert (estimator.slope.item(), estimator.counts.sum().item(), estimator._steps_since_refit) == (0.5, 0.0, 0)
        shown = runner.speculator.draft_token_confidence_probs[:3]
        odds = estimator.features[slots]
        assert odds.abs().max() < 9.3  # a confidence of 1.0 is no certainty
        np.testing.assert_allclose(
            torch.sigmoid(odds).numpy(), bank.confidence[installed.row[slots].numpy()], rtol=1e-4
        )
        assert torch.equal(shown, estimator.predictions[slots])
        assert torch.allclose(shown, torch.sigmoid(0.5 * odds - 0.2))
        lengths = [3, 1, 5]  # logits of each run
        owner = torch.repeat_interleave(slots, torch.tensor(lengths))
        place = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
        logits = SimpleNamespace(expanded_idx_mapping=owner, expanded_local_pos=place)
        invalid = runner.rejection_sampler(None, logits)
        for slot, length, part in zip(slots.tolist(), lengths, invalid.split(lengths), strict=True):
            accepted = int(bank.accepted[int(installed.row[slot])])
            drafts = (~part[1:]).tolist()
            assert not part[0]
            assert drafts == [d < accepted for d in range(length - 1)]


def test_contestants_of_one_turn_meet_the_same_rounds() -> None:
    runner, bank = _runner(estimator=False), replay.synthetic_bank(DEPTH, rounds=50)
    installed = replay.install(runner, bank)
    with torch.inference_mode():
        for name in ("a", "b", "c"):
            runner.req_states.add_request(req_id=name)
        batch = SimpleNamespace(idx_mapping=torch.tensor([0, 1, 2]), num_reqs=3)
        met = []
        for turn in (4, 4, 5):
            waiting = installed.row.clone()
            installed.rewind(turn)
            assert torch.equal(installed.row, waiting)  # the drafts that wait are those whose confidences were shown
            runner.speculator.propose(batch)
            met.append(installed.row[:3].tolist())
            runner.speculator.propose(batch)
            assert installed.row[:3].tolist() != met[-1]
        assert met[0] == met[1] != met[2]
