"""Captured banks can be read, and agree with the engine's own counters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from lab.live.models import Pair

from specmargin.acceptance.bank import Rounds, read_bank
from tests.live.conftest import Result, standard_batches


@pytest.fixture(scope="session")
def captured(
    run_engine: Callable[..., Result], pair: Pair, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("capture")
    settings = {"mode": "adaptive", "policy": str(policy), "capture": {"folder": str(folder), "part_seconds": 0.4}}
    batches = standard_batches(pair)
    for request, category in zip(batches[2], ["cpp", "python", "prose"] * 6, strict=False):
        request["extra_args"] = {"specmargin_class": category}
    return folder, run_engine(settings, batches=batches)


def test_rounds_agree_with_the_engine(captured: tuple[Path, Result]) -> None:
    folder, result = captured
    assert len(list(folder.rglob("part-*"))) > 2  # rotated
    rounds = read_bank([folder])
    assert rounds.count == result.metric("vllm:spec_decode_num_drafts_total")
    assert rounds.drafted_by_round.sum() == result.metric("vllm:spec_decode_num_draft_tokens_total")
    assert rounds.accepted_by_round.sum() == result.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert set(rounds.categories) == {"all", "cpp", "python", "prose"}
    _agree_with_requests(rounds, result)


def _agree_with_requests(rounds: Rounds, result: Result) -> None:
    """The rounds of every request, in order, are those that the engine reports."""
    reported = sorted((tuple(r["per_step_drafted"]), tuple(r["per_step_accepted"])) for r in result.requests if r)
    captured = []
    for prompt in set(rounds.prompt_by_round.tolist()):
        request_rounds = rounds.chosen(rounds.prompt_by_round == prompt)
        order = request_rounds.round_index.argsort()
        captured.append((tuple(request_rounds.drafted_by_round[order]), tuple(request_rounds.accepted_by_round[order])))
    assert sorted(captured) == reported


def test_confidences_are_there(captured: tuple[Path, Result]) -> None:
    folder, _ = captured
    frame = pl.concat([pl.read_parquet(path) for path in folder.rglob("part-*/speculator.parquet")])
    assert frame["conf0"].is_not_nan().all()


def test_profiles_can_be_made(captured: tuple[Path, Result], pair: Pair, tmp_path: Path) -> None:
    folder, _ = captured
    for kind, options in (("acceptance", ()), ("routing", ("--model", str(pair.target)))):
        out = tmp_path / f"live.{kind}.json"
        done = _specmargin("profile", kind, str(folder), "-o", str(out), "--json", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["schema"].startswith("specmargin.profile-")
        assert out.is_file()


def test_routing_joins_with_the_rounds(captured: tuple[Path, Result]) -> None:
    """Both banks have the same keys, though different processes of the engine write them."""
    folder, _ = captured
    rounds = pl.concat([pl.read_parquet(path) for path in folder.rglob("part-*/acceptance.parquet")])
    routing = pl.concat([pl.read_parquet(path) for path in folder.rglob("part-*/routing_meta.parquet")])
    blocks = routing.group_by("prompt_idx", "round_idx").agg(
        pl.len().alias("positions"), (pl.col("accepted").sum() - 1).alias("taken")
    )
    joined = rounds.join(blocks, on=["prompt_idx", "round_idx"], how="inner")
    assert joined.height > 0.9 * rounds.height
    assert (joined["positions"] == joined["depth"] + 1).all()
    assert (joined["taken"] == joined["accept"]).all()


def test_a_killed_server_leaves_readable_files(serve: Callable[..., Any], pair: Pair, tmp_path: Path) -> None:
    settings = {"mode": "observe", "capture": {"folder": str(tmp_path), "part_seconds": 0.3}}
    with serve(settings) as server:
        for prompt in pair.prompts["cpp"][:6]:
            server.complete(prompt)
        time.sleep(0.8)
        written = server.metrics().metric("specmargin_captured_rounds_total")
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(timeout=30)
    rounds = read_bank([tmp_path])
    assert 0 < rounds.count <= written
    assert rounds.count >= 0.7 * written


def _specmargin(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("specmargin")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
