"""Several engines and several API servers, without starting them: settings and `/metrics` of each."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specmargin.live.settings_schema import Mode
from specmargin.live.vllm.names import WORKER_EXTENSIONS
from specmargin.live.vllm.worker_vote import VotingExtension

scheduling = pytest.importorskip("specmargin.live.vllm.scheduler", reason="vLLM is not installed here")
votes = pytest.importorskip("specmargin.live.vllm.voting", reason="vLLM is not installed here")


class NoScheduler:
    def _update_after_schedule(self, _: Any) -> None:
        pass


def started(settings: dict[str, Any] | None = None, **parallel: Any) -> Any:
    """A Specmargin scheduler without an engine, with these settings and this `parallel_config`."""

    class Host(scheduling._Decisions, NoScheduler):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            drafter = SimpleNamespace(model="draft", method="draft_model", num_speculative_tokens=4)
            defaults = {"worker_extension_cls": "", "data_parallel_size": 1, "data_parallel_index": 0}
            self.vllm_config = SimpleNamespace(
                scheduler_config=SimpleNamespace(async_scheduling=parallel.pop("async_scheduling", False)),
                additional_config={"specmargin": settings or {"mode": "schedule", "schedule": [[1, 8, 2]]}},
                speculative_config=drafter,
                parallel_config=SimpleNamespace(**defaults | parallel),
                compilation_config=SimpleNamespace(cudagraph_mode=None),
                model_config=SimpleNamespace(model="target"),
            )
            self.scheduler_config = SimpleNamespace(async_scheduling=False, max_num_seqs=8)
            self.num_spec_tokens, self.dynamic_sd_lookup = 4, None
            self._start()

    return Host()


def test_one_engine_decides() -> None:
    host = started()
    assert host._driver.mode is Mode.SCHEDULE
    assert host._driver.draft_depth(["a"]) == 2
    assert host.dynamic_sd_lookup == [4] * 9


def test_data_parallel_ranks_of_a_mixture_of_experts_draft_to_the_same_depth() -> None:
    """vLLM: "data-parallel ranks can select different speculative-token counts, causing … deadlocks"."""
    host = started(data_parallel_size=2, data_parallel_index=1)
    assert host._driver.mode is Mode.OBSERVE
    assert host._driver.draft_depth(["a"]) is None
    assert host.dynamic_sd_lookup is None  # vLLM's own behaviour, untouched


def test_every_api_server_shows_the_boards() -> None:
    """As vLLM starts several: the parent configures, children inherit its environment, metrics come from files."""
    code = """
        import os, sys, tempfile
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
        from types import SimpleNamespace
        from fastapi import FastAPI
        from fastapi.testclient import TestClient
        from prometheus_client import Counter
        from specmargin.live.board import Board
        from specmargin.live.vllm.configuration import _board_folder
        from vllm.entrypoints.serve.instrumentator.metrics import attach_router
        folder = _board_folder(SimpleNamespace(_api_process_rank=-1))
        Board(folder / "engine-0.board").add("steps_total", 5)
        assert _board_folder(SimpleNamespace(_api_process_rank=1)) == folder
        Counter("vllm:own", "one of vLLM's").inc()
        app = FastAPI()
        attach_router(app)
        print(TestClient(app).get("/metrics").text)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('specmargin_steps_total{engine="0"} 5.0') == 1
    assert "vllm:own_total 1.0" in done.stdout


# --- votes among data-parallel ranks ---


def voting(tmp_path: Path, *, ranks: int = 2, mode: str = "adaptive", **parallel: Any) -> Any:
    """A scheduler of one of two ranks, whose policy was planned for so many."""
    from lab.live.policies import small_policy  # noqa: PLC0415 (compiled)

    policy = tmp_path / "a.policy.json"
    policy.write_text(small_policy(4, ranks=ranks))
    settings = {"mode": mode, "policy": str(policy)}
    rank = {"data_parallel_size": 2, "worker_extension_cls": WORKER_EXTENSIONS[True, True]}
    elastic = {"enable_elastic_ep": False, "enable_fault_tolerance": False}
    return started(settings, **rank | elastic | parallel)


class Core:
    """What a voter uses of an engine core; the other rank is a copy of this one."""

    def __init__(self, host: Any) -> None:
        self.scheduler, self.dp_rank, self.dp_size, self.dp_group = host, 0, 2, None
        self.step_counter, self.dp_sync_interval, self.dp_store = 1, 16, self
        self.model_executor, self.calls = self, list[Any]()
        self.values: dict[str, str] = {}

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[None]:
        self.calls.append((method, *args))
        return [None]

    def set(self, key: str, value: str) -> None:
        self.values |= {key: value, key.replace("/0", "/1"): value}

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def wait(self, keys: list[str], _: Any) -> None:
        assert set(keys) <= set(self.values)

    def compare_set(self, key: str, _: str, desired: str) -> bytes:
        return self.values.setdefault(key, desired).encode()


def test_ranks_vote_from_their_first_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = voting(tmp_path)
    core, sent = Core(host), list[Any]()

    def gather(row: Any) -> Any:
        sent.append(row)
        return lambda: [row, row]

    monkeypatch.setattr(votes, "_Gather", lambda *_: gather)
    host.running = [SimpleNamespace(is_prefill_chunk=index == 0) for index in range(4)]
    assert [host.voter.depth, host.dynamic_sd_lookup] == [None, None]
    for step in range(1, 6):
        core.step_counter = step
        host.voter.stepped(core, True)
    assert core.calls == [("follow_votes",)]
    assert host.dynamic_sd_lookup == [4] * 9
    assert len(sent) == 1
    assert sent[0][4] == 3  # requests that decode
    assert host.voter.depth == host._driver.draft_depth(["a"]) < 4
    votes._dummy_batch(lambda *_: core.calls.append("vLLM's own depth"), core)
    assert core.calls[-1] == ("dummy_batch_of_depth", host.voter.depth)


def test_a_driver_that_failed_changes_no_depth(tmp_path: Path) -> None:
    """The depth that ranks agreed on is set whatever happens here, and the rank votes static."""
    host = voting(tmp_path)
    host.voter.ballot = SimpleNamespace(depth=2)
    host._driver.guard.off = True
    output = SimpleNamespace(num_scheduled_tokens={"a": 1}, num_spec_tokens_to_schedule=4)
    host._update_after_schedule(output)
    assert output.num_spec_tokens_to_schedule == 2
    host.running = []
    assert host._own_vote() is None
    host._driver = None
    assert host._own_vote() is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"enable_elastic_ep": True}, "the number of ranks may change"),
        ({"enable_fault_tolerance": True}, "the number of ranks may change"),
        ({"worker_extension_cls": "other.Extension"}, "another worker extension"),
        ({"ranks": 4}, "planned for 4 data-parallel ranks and the server has 2; plan it with --dp 2 --ep"),
        ({"mode": "schedule"}, "votes need mode adaptive"),
        ({"async_scheduling": True}, "--no-async-scheduling allows them"),
    ],
)
def test_a_rank_that_cannot_vote_says_so_and_observes(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    host = voting(tmp_path, **given)
    assert why in host.voter.problem
    assert host._driver.mode is Mode.OBSERVE
    host.voter.stepped(Core(host), True)
    assert host.voter.depth is None
    assert host.dynamic_sd_lookup is None


def test_a_core_of_another_kind_is_no_fault(tmp_path: Path) -> None:
    host = voting(tmp_path)
    host.voter.stepped(SimpleNamespace(), True)
    host.voter.stepped(SimpleNamespace(), True)
    assert host.voter.depth is None
    assert host._driver.mode is Mode.OBSERVE


def test_a_worker_follows_in_dummy_batches_and_drafts_that_do_not_fit() -> None:
    """vLLM's drafter runs one pass at depth 0, and its dummy draft as many as its last draft."""
    seen: list[int] = []
    drafter = SimpleNamespace(num_speculative_tokens=4)
    runner = SimpleNamespace(drafter=drafter, execute_model=lambda _: seen.append(drafter.num_speculative_tokens))
    worker = VotingExtension()
    worker.model_runner = runner  # type: ignore[attr-defined]
    worker.execute_dummy_batch = lambda: seen.append(drafter.num_speculative_tokens)  # type: ignore[attr-defined]
    assert worker.follow_votes() is None
    runner.execute_model(SimpleNamespace(num_spec_tokens_to_schedule=3))
    worker.dummy_batch_of_depth(2)
    worker.dummy_batch_of_depth(0)
    assert seen == [3, 2, 1]


def test_a_worker_of_the_second_runner_cannot_follow() -> None:
    worker = VotingExtension()
    worker.model_runner = SimpleNamespace()  # type: ignore[attr-defined]
    assert "first model runner" in (worker.follow_votes() or "")
