"""Several engines and several API servers, without starting them: settings and `/metrics` of each."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

from specmargin.live.settings_schema import Mode

scheduling = pytest.importorskip("specmargin.live.vllm.scheduler", reason="vLLM is not installed here")


def started(**parallel: Any) -> Any:
    """A Specmargin scheduler without an engine, with this `parallel_config`."""

    class Host(scheduling._Decisions):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            settings = {"mode": "schedule", "schedule": [[1, 8, 2]]}
            drafter = SimpleNamespace(model="draft", method="draft_model", num_speculative_tokens=4)
            defaults = {"worker_extension_cls": "", "data_parallel_size": 1, "data_parallel_index": 0}
            self.vllm_config = SimpleNamespace(
                additional_config={"specmargin": settings},
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
