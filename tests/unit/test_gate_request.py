"""The gate on the device: its settings, and when vLLM is asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmargin.errors import EngineError
from specmargin.live.policy_schema import policy_text, read_policy
from specmargin.live.settings_schema import Curve, GateKind, Settings, read_settings
from specmargin.live.vllm import graphs
from specmargin.live.vllm.gate import choice
from specmargin.policies.study.lookahead import look_ahead
from tests.unit.live import DEPTH, policy_file, register_in, sample, table, write_policy


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def settings(policy: Path | None, **given: Any) -> Settings:
    return read_settings({"mode": "adaptive", "policy": None if policy is None else str(policy)} | given, "test")


def arguments(**given: Any) -> Any:
    drafter = {"method": "eagle3", "model": "head", "num_speculative_tokens": DEPTH}
    defaults = {"speculative_config": drafter, "max_num_seqs": 8, "data_parallel_size": 1}
    return SimpleNamespace(**defaults | given)


# --- settings ---


def test_a_kind_is_enough_and_native_chooses_its_curve(policy: Path) -> None:
    assert settings(policy).gate_kind is GateKind.AUTO
    assert settings(policy, gate="off").gate_kind is GateKind.OFF
    assert settings(policy, gate="on").gate_kind is GateKind.ON
    native = settings(policy, gate="native")
    assert (native.gate_kind, native.gate_curve) == (GateKind.NATIVE, Curve.PRICES)
    observing = read_settings({"mode": "observe", "gate": "native"}, "test")
    assert (observing.gate_kind, observing.gate_curve) == (GateKind.NATIVE, Curve.PROFILED)
    assert read_settings({"mode": "observe"}, "test").gate_kind is GateKind.OFF


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gate": "maybe"}, "gate.kind"),
        ({"mode": "observe", "gate": "on"}, "needs mode adaptive"),
        ({"mode": "observe", "gate": {"kind": "native", "curve": "prices"}}, "needs 'policy'"),
        ({"mode": "observe", "gate": {"kind": "off", "curve": "profiled"}}, "kind native"),
    ],
)
def test_mistakes_in_the_setting_are_one_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        read_settings(given, "test")


# --- when it is requested ---


def test_the_gate_is_requested_where_it_is_expected_to_pay(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    gain = choice.expected_gain(policy, 8)
    assert gain is not None
    monkeypatch.setattr(choice, "_LEAST_GAIN", gain - 0.001)
    assert choice.wants_gate(arguments(), settings(policy, gate="auto"), log.append)
    monkeypatch.setattr(choice, "_LEAST_GAIN", gain + 0.001)
    assert not choice.wants_gate(arguments(), settings(policy, gate="auto"), log.append)
    assert "over depth control alone" in log[-1]
    assert choice.wants_gate(arguments(), settings(policy, gate="on"), log.append)


@pytest.mark.parametrize(("acceptance", "pays"), [(0.8, False), (0.6, True)])
def test_the_expected_gain_is_that_of_the_prices(tmp_path: Path, acceptance: float, pays: bool) -> None:
    """The gate's rate over the best depth by the price table itself, where it is higher; one sequence is not gated."""
    policy, prices = write_policy(tmp_path, acceptance=acceptance), table()
    file, ahead = read_policy(policy), look_ahead(prices, sample(), early_stop=False)
    assert file.gate is not None
    committed = 1.0 + np.concatenate([[0.0], np.cumsum(file.survival)])
    whole = {batch: float((batch * committed / prices.round_seconds(batch)).max()) for batch in (2, 4, 8)}
    gains = {batch: max(ahead.rate(batch) / rate, 1.0) for batch, rate in whole.items()}
    assert (max(gains.values()) > 1.0) == pays
    assert file.gate.gain_by_batch[0] == file.gate.gain_by_batch[1] == choice.expected_gain(policy, 1) == 0.0
    for batch, gain in gains.items():
        assert file.gate.gain_by_batch[batch] == pytest.approx(gain - 1.0, abs=1e-4)
    assert choice.expected_gain(policy, 7) == pytest.approx((gains[2] * gains[4]) ** (1 / 3) - 1.0, abs=1e-4)


def test_without_confidences_nothing_says_that_it_pays(tmp_path: Path) -> None:
    path = tmp_path / "plain.policy.json"
    log: list[str] = []
    path.write_text(policy_text(policy_file(gated=False)))
    assert not choice.wants_gate(arguments(), settings(path, gate="auto"), log.append)
    assert "no calibrated confidences" in log[0]
    assert choice.wants_gate(arguments(), settings(path, gate="on"), log.append)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enforce_eager": True}, "full CUDA graphs"),
        ({"enable_lora": True}, "LoRA"),
        ({"pipeline_parallel_size": 2}, "pipeline"),
        ({"data_parallel_size": 2}, "data-parallel"),
        ({"worker_extension_cls": "mine.Extension"}, "worker extension"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "no draft logits"),
        (
            {"speculative_config": {"method": "mtp", "num-speculative-tokens": 3, "use-local-argmax-reduction": True}},
            "no draft logits",
        ),
    ],
)
def test_where_vllm_is_known_to_refuse_it_is_not_requested(policy: Path, given: dict[str, Any], says: str) -> None:
    log: list[str] = []
    assert not choice.wants_gate(arguments(**given), settings(policy, gate="on"), log.append)
    assert says in log[0]


@pytest.mark.parametrize("chosen", [True, False])
def test_what_the_user_chose_stays(policy: Path, chosen: bool) -> None:
    args = arguments(speculative_config={"method": "mtp", "enable-adaptive-verification": chosen})
    assert not choice.wants_gate(args, settings(policy, gate="on"), lambda _: None)


@pytest.mark.parametrize(
    ("model", "full", "says"),
    [
        ({"is_hybrid": True}, True, "GatedDeltaNet"),
        ({"use_mla": True}, True, "Hopper"),
        ({}, False, "full CUDA graphs"),
        ({}, True, None),
    ],
)
def test_the_complete_configuration_may_refuse(model: dict[str, Any], full: bool, says: str | None) -> None:
    graph_mode = SimpleNamespace(has_full_cudagraphs=lambda: full)
    config = SimpleNamespace(
        model_config=SimpleNamespace(**model), compilation_config=SimpleNamespace(cudagraph_mode=graph_mode)
    )
    reason = choice.refusal_of_configuration(config, 9)
    assert (reason is None) == (says is None)
    assert says is None or (reason is not None and says in reason)
    if "use_mla" in model:
        assert choice.refusal_of_configuration(config, 10) is None


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("nothing", [(True, True)]),
        ("gate", [(True, True), (False, True)]),
        ("both", [(True, True), (False, True), (False, False)]),
        ("model", [(True, True), (False, True)]),
    ],
)
def test_requests_that_vllm_refuses_are_taken_back_one_by_one(
    monkeypatch: pytest.MonkeyPatch, policy: Path, refused: str, expected: list[tuple[bool, bool]]
) -> None:
    seen: list[tuple[bool, bool]] = []

    class EngineArgs:
        def __init__(self) -> None:
            vars(self).update(vars(arguments(additional_config={"specmargin": {}})))

        def create_engine_config(self) -> Any:
            given = self.speculative_config  # type: ignore[attr-defined]
            seen.append((graphs.FLAG in given, graphs.TABLE in given))
            if (refused == "gate" and seen[-1][0]) or (refused == "both" and any(seen[-1])):
                raise ValueError("not supported")
            return SimpleNamespace(additional_config={"specmargin": {}})

    def wishes(args: Any) -> Iterator[tuple[Any, Any]]:
        given, chosen = args.speculative_config, settings(policy, gate="on")
        for speculative in ({**given, graphs.FLAG: True}, given):
            refuses = refused == "model" and graphs.FLAG in speculative
            yield graphs.add_depth_table(speculative, args, chosen, lambda _: None), lambda _, refuses=refuses: refuses

    register_in(monkeypatch, EngineArgs, wishes=wishes)
    args = EngineArgs()
    assert args.create_engine_config() is not None
    assert seen == expected


def test_graphs_are_requested_for_the_depths_that_a_gate_would_draft(policy: Path) -> None:
    file = read_policy(policy)
    assert file.gate is not None
    ranges = graphs.depth_table(settings(policy), DEPTH, 64, gated=True)
    assert set(file.gate.graph_depths) <= {depth for _, _, depth in ranges}
