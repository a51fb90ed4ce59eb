"""Releases that lack parts: what of the plug-in then runs in vLLM. `test_live_parts.py` has the check itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lab.live import stub_engine
from prometheus_client import CollectorRegistry

from specmargin.live.features import remaining_settings, table_settings
from specmargin.live.parts import Feature, Problem, Report, parts_list
from specmargin.live.settings_schema import GateKind, Mode, Settings, read_settings
from specmargin.live.vllm.graphs import FLAG, TABLE
from tests.unit.live import DEPTH, register_in, write_policy

NAMES = "specmargin.live.vllm"
STUBBED = ("vllm", "vllm.logger", f"{NAMES}.log", f"{NAMES}.configuration")


def report(*without: Feature, engine: str = "vllm") -> Report:
    """Of a release that lacks one part of each of these features."""
    listed = parts_list(engine)
    first = [next(part for part in listed.parts if part.feature is feature) for feature in without]
    problems = tuple(Problem(part=part, why="is not there") for part in first)
    return Report(listed=listed, folder=Path("vllm"), release="9.9.0", problems=problems)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def settings(policy: Path, **given: Any) -> Settings:
    return read_settings({"mode": "adaptive", "policy": str(policy)} | given, "test")


# --- what is lost, in words ---


def test_the_log_says_which_release_and_what_is_lost() -> None:
    count = len(parts_list("vllm").parts)
    assert report().summary == f"tested with 0.31 and 0.32; this is 9.9.0, all {count} parts found"
    assert report().losses == ()
    assert report(Feature.GATE).summary.endswith(f"{count - 1} of {count} parts found")
    (gate,) = report(Feature.GATE).losses
    assert gate == "no gate: EngineArgs.enforce_eager is not there; drafts are verified in full"
    (depth,) = report(Feature.DEPTH).losses
    assert depth.startswith("no depth control and no gate: Scheduler._update_after_schedule(scheduler_output, ...) is")
    assert depth.endswith("; vLLM drafts by its own table, and the plug-in only observes")
    both = report(Feature.SCHEDULE, Feature.CAPTURE).losses
    assert [text.partition(":")[0] for text in both] == ["no schedule and no depth control and no gate", "no capture"]
    (inert,) = report(Feature.OBSERVE, Feature.GATE).losses
    assert inert.endswith("; the plug-in does nothing")


def test_sglang_has_no_gate_to_lose() -> None:
    listed = parts_list("sglang")
    assert Feature.GATE not in listed.features
    whole = report(engine="sglang")
    assert whole.lost == ()
    assert not whole.has(Feature.GATE)
    assert report(Feature.DEPTH, engine="sglang").losses[0].startswith("no depth control: ")


# --- settings ---


def test_settings_that_remain(policy: Path) -> None:
    given = settings(policy, gate="on", capture="bank")
    assert remaining_settings(given, report()) == given
    no_gate = remaining_settings(given, report(Feature.GATE))
    assert (no_gate.mode, no_gate.policy, no_gate.gate_kind) == (Mode.ADAPTIVE, policy, GateKind.OFF)
    few = [remaining_settings(given, report(lost)) for lost in (Feature.DEPTH, Feature.SCHEDULE)]
    for left in few:
        assert (left.mode, left.policy, left.gate_kind) == (Mode.OBSERVE, None, GateKind.OFF)
        assert left.capture == given.capture
    by_class = read_settings({"mode": "schedule", "schedule": [[1, 8, 2]], "classes": {"a": [[1, 8, 1]]}}, "test")
    for one in (no_gate, *few, remaining_settings(by_class, report(Feature.DEPTH))):
        assert read_settings(one.model_dump(mode="json"), "the engine's process") == one


def test_the_engine_gets_the_schedule_where_the_plug_in_cannot_choose(policy: Path) -> None:
    given = settings(policy)
    assert table_settings(given, report(Feature.GATE)) is given
    assert table_settings(given, report(Feature.DEPTH)).mode is Mode.SCHEDULE
    assert table_settings(given, report(Feature.SCHEDULE)).mode is Mode.OBSERVE
    observing = settings(policy, mode="observe")
    assert table_settings(observing, report(Feature.DEPTH)) is observing


# --- vLLM's configuration ---


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that imports vLLM, on a stub of its logger."""
    before = {name: sys.modules.pop(name, None) for name in STUBBED}
    sys.modules["vllm"], sys.modules["vllm.logger"] = ModuleType("vllm"), ModuleType("vllm.logger")
    vars(sys.modules["vllm.logger"])["init_logger"] = logging.getLogger
    module = import_module(f"{NAMES}.configuration")
    monkeypatch.setattr(module, "REGISTRY", CollectorRegistry())
    try:
        yield module
    finally:
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old


def made(policy: Path, **given: Any) -> Any:
    own = {"specmargin": {"mode": "adaptive", "policy": str(policy), "gate": "on", **given}}
    return SimpleNamespace(
        additional_config=own,
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=True),
        parallel_config=SimpleNamespace(worker_extension_cls=""),
        speculative_config=SimpleNamespace(method="eagle3", num_speculative_tokens=DEPTH),
    )


@pytest.mark.parametrize(
    ("lost", "scheduler", "extension", "mode"),
    [
        ((), "SpecmarginAsyncScheduler", "worker.WorkerExtension", "adaptive"),
        ((Feature.METRICS,), "SpecmarginAsyncScheduler", "worker.WorkerExtension", "adaptive"),
        ((Feature.GATE,), "SpecmarginAsyncScheduler", "worker_capture.CaptureExtension", "adaptive"),
        ((Feature.CAPTURE,), "SpecmarginAsyncScheduler", "worker_gate.GateExtension", "adaptive"),
        ((Feature.GATE, Feature.CAPTURE), "SpecmarginAsyncScheduler", "", "adaptive"),
        ((Feature.DEPTH,), "ObservingAsyncScheduler", "worker_capture.CaptureExtension", "observe"),
        ((Feature.SCHEDULE,), "ObservingAsyncScheduler", "worker_capture.CaptureExtension", "observe"),
        ((Feature.SCHEDULE, Feature.CAPTURE), "ObservingAsyncScheduler", "", "observe"),
    ],
)
def test_each_feature_is_installed_or_left_out(
    configuration: Any,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lost: tuple[Feature, ...],
    scheduler: str,
    extension: str,
    mode: str,
) -> None:
    monkeypatch.setattr(configuration, "check_installed", lambda _: report(*lost))
    config = made(policy)
    with caplog.at_level(logging.INFO):
        configuration.configure(config)
    assert config.scheduler_config.scheduler_cls == f"{NAMES}.scheduler.{scheduler}"
    assert config.parallel_config.worker_extension_cls == (f"{NAMES}.{extension}" if extension else "")
    payload = config.additional_config["specmargin"]
    assert payload["mode"] == mode
    gated = not {Feature.GATE, Feature.DEPTH, Feature.SCHEDULE} & set(lost)
    assert payload["gate"]["kind"] == ("on" if gated else "off")
    said = [record.getMessage() for record in caplog.records if "Specmargin: no " in record.getMessage()]
    assert len(said) == len(lost)
    assert "this is 9.9.0" in caplog.text
    assert "ERROR" not in caplog.text


def test_without_what_it_observes_by_it_is_inert(
    configuration: Any, policy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(configuration, "check_installed", lambda _: report(Feature.OBSERVE))
    config, untouched = made(policy), made(policy)
    configuration.configure(config)
    assert config == untouched
    assert "EngineArgs.create_engine_config(...) is not there; the plug-in does nothing" in caplog.text
    assert "The server starts with the plug-in disabled." in caplog.text


@pytest.mark.parametrize(
    ("lost", "flags", "depths"),
    [
        ((), [True, False], {0, 1, 2, 3, 4}),
        ((Feature.GATE,), [False], {0, 1, 2, 3, 4}),
        ((Feature.DEPTH,), [False], {1, 3}),
        ((Feature.SCHEDULE,), [], set()),
    ],
)
def test_what_is_asked_of_vllm(
    configuration: Any,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[Feature, ...],
    flags: list[bool],
    depths: set[int],
) -> None:
    monkeypatch.setattr(configuration, "check_installed", lambda _: report(*lost))
    drafter = {"method": "eagle3", "model": "head", "num_speculative_tokens": DEPTH}
    args = SimpleNamespace(
        speculative_config=drafter,
        max_num_seqs=64,
        data_parallel_size=1,
        additional_config=made(policy).additional_config,
    )
    wished = [wish for wish, _ in configuration.wishes(args)]
    assert [bool(wish.get(FLAG)) for wish in wished] == flags
    for wish in wished:
        assert {depth for _, _, depth in wish[TABLE]} <= depths
    if Feature.DEPTH in lost:
        assert wished[0][TABLE] == [[1, 2, 3], [3, 64, 1]]  # the schedule of the policy, and nothing else


def test_a_release_without_what_is_imported_starts_its_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class EngineArgs:
        def __init__(self) -> None:
            self.additional_config: Any = {"specmargin": {}}

        def create_engine_config(self) -> Any:
            scheduler = SimpleNamespace(scheduler_cls=f"{NAMES}.scheduler.SpecmarginScheduler")
            return SimpleNamespace(additional_config={"specmargin": {}}, scheduler_config=scheduler)

    register_in(monkeypatch, EngineArgs)
    monkeypatch.setitem(sys.modules, f"{NAMES}.configuration", None)
    config = EngineArgs().create_engine_config()
    assert config.scheduler_config.scheduler_cls is None
    assert "The server starts with the plug-in disabled." in caplog.text


# --- the scheduler ---


class OtherOutput(stub_engine.SchedulerOutput):
    """Of a release that has no depth to choose: the field has another name."""

    def __init__(self, scheduled: stub_engine.SchedulerOutput) -> None:
        vars(self).update(vars(scheduled))
        self.drafts = vars(self).pop("num_spec_tokens_to_schedule")


class OtherScheduler(stub_engine.Scheduler):
    """Methods that are overridden need one argument more, and there is no table of depths."""

    def schedule(self, throttle: bool) -> Any:  # type: ignore[override]
        assert throttle
        return OtherOutput(super().schedule())

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        del self.dynamic_sd_lookup

    def add_request(self, request: Any, priority: int) -> None:  # type: ignore[override]
        assert priority == 3
        super().add_request(request)

    def update_from_output(self, scheduled: Any, output: Any, *, now: float) -> Any:  # type: ignore[override]
        assert now == 1.0
        return super().update_from_output(scheduled, output)

    def shutdown(self, timeout: float) -> None:  # type: ignore[override]
        assert timeout == 2.0


def test_observing_counts_and_changes_nothing() -> None:
    config = stub_engine.configuration({"mode": "observe"})
    del config.compilation_config, config.parallel_config.worker_extension_cls  # read for decisions only
    with stub_engine.specmargin_scheduler("ObservingAsyncScheduler", stub=OtherScheduler) as kind:
        scheduler = kind(vllm_config=config, depth=DEPTH)
        driver = scheduler._driver
        for number in range(3):
            scheduler.add_request(stub_engine.Request(f"r{number}"), priority=3)
        for _ in range(20):
            scheduled = scheduler.schedule(throttle=True)
            assert scheduled.drafts == DEPTH  # as configured
            ids = list(scheduled.num_scheduled_tokens)
            rows = [[7, 7] for _ in ids]
            output = stub_engine.ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, rows)
            assert scheduler.update_from_output(scheduled, output, now=1.0) == ids
        scheduler._free_request(scheduler.running[0])
        scheduler.update_draft_token_ids(SimpleNamespace())
        scheduler.shutdown(timeout=2.0)
    assert driver.guard.faults.total() == 0
    assert driver.board["steps_total"] == 20
    assert driver.board["draft_tokens_total"] == 19 * 3 * DEPTH
    assert driver.mode is Mode.OBSERVE


def test_without_a_gate_depths_are_chosen(policy: Path) -> None:
    config = stub_engine.configuration(
        remaining_settings(settings(policy, gate="on"), report(Feature.GATE)).model_dump(mode="json")
    )
    config.speculative_config.enable_adaptive_verification = True  # the user's own
    with stub_engine.specmargin_scheduler() as kind:
        scheduler = kind(vllm_config=config, depth=DEPTH)
    assert not scheduler._driver.device_gate
    assert scheduler._driver.mode is Mode.ADAPTIVE
    assert scheduler._driver.draft_depth(["a"]) is not None
