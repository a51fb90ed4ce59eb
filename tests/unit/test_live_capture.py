"""Capture: parts are complete, limits keep requests whole, and banks are read back as they were written."""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from specmargin.acceptance.bank import read_bank
from specmargin.cli.main import run
from specmargin.live import capture as capturing
from specmargin.live.board import Board
from specmargin.live.capture import BankWriter
from specmargin.live.guard import Guard
from specmargin.live.sequences import LiveRequest
from specmargin.live.settings_schema import CaptureSettings
from tests.conftest import ROOT
from tests.unit.live import DEPTH, IDENTITY, bare, built, done


def writer(folder: Path, faults: list[str] | None = None, **given: Any) -> BankWriter:
    clock = given.pop("clock", time.monotonic)
    settings = CaptureSettings(folder=folder, **{"part_seconds": 0.02} | given)
    fault = (faults if faults is not None else []).append
    return BankWriter(settings=settings, identity=IDENTITY, max_depth=DEPTH, board=Board(), fault=fault, clock=clock)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def parts(folder: Path) -> list[Path]:
    """Complete parts. A part is renamed when it is complete, possibly while this walks through the folder."""
    while True:
        with suppress(FileNotFoundError):
            return sorted(folder.rglob("part-*"))


def fill(bank: BankWriter, requests: int, rounds: int, generator: np.random.Generator) -> list[tuple[Any, ...]]:
    """Rounds of several requests; returns them as a bank orders them."""
    written = []
    for r in range(requests):
        request = LiveRequest.of(f"request {r} {generator.random()}", {"specmargin_class": "code"} if r % 2 else None)
        for _ in range(rounds):
            verified = int(generator.integers(1, DEPTH + 1))
            accepted = int(generator.integers(0, verified + 1))
            confidence = generator.random(DEPTH)
            written.append((request.number, request.rounds, request.group, verified, accepted, confidence))
            bank.round(request, verified, accepted, 10 * request.rounds, confidence)
    return sorted(written, key=lambda row: row[:2])


# --- what is written ---


def test_a_bank_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    bank, generator = writer(tmp_path), np.random.default_rng(0)
    written = fill(bank, 3, 5, generator)
    until(lambda: len(parts(tmp_path)) == 1)
    written = sorted(written + fill(bank, 4, 20, generator), key=lambda row: row[:2])
    bank.close()
    assert len(parts(tmp_path)) == 2
    rounds = read_bank([tmp_path])
    assert rounds.count == len(written) == bank.board["captured_rounds_total"]
    assert rounds.speculator == IDENTITY.speculator
    assert rounds.round_index.tolist() == [row[1] for row in written]
    assert list(rounds.category_by_round) == [row[2] for row in written]
    assert rounds.drafted_by_round.tolist() == [row[3] for row in written]
    assert rounds.accepted_by_round.tolist() == [row[4] for row in written]
    np.testing.assert_allclose(rounds.confidence_by_round_depth, np.array([row[5] for row in written]), atol=1e-6)
    files = [pl.read_parquet(part / "acceptance.parquet") for part in parts(tmp_path)]
    assert all((file["context_len"] == 10 * file["round_idx"]).all() for file in files)
    assert len(np.unique(rounds.prompt_by_round)) == 7
    assert rounds.has_confidence


def test_steps_are_captured_with_the_rounds(tmp_path: Path) -> None:
    bank = writer(tmp_path)
    bank.step(done(["a", "b"], [3, 0], [2, 0], seconds=0.25, prompt_tokens=7), 3)
    bank.step(done(["a"], [1], [1], seconds=math.nan), 2)
    bank.close()
    (part,) = parts(tmp_path)
    assert [file.name for file in part.iterdir()] == ["steps.parquet"]
    rows = pl.read_parquet(part / "steps.parquet").to_dicts()
    assert [(row["sequences"], row["verified"], row["accepted"], row["drafted"]) for row in rows] == [
        (2, 3, 2, 3),
        (1, 1, 1, 2),
    ]
    assert (rows[0]["prompt_tokens"], rows[0]["seconds"], rows[0]["context"]) == (7, 0.25, 100.0)


def test_a_driver_captures_its_rounds(tmp_path: Path) -> None:
    bank = writer(tmp_path)
    driver = bare(None, capture=bank)
    driver.add("a", {"specmargin_class": "code"})
    driver.add("b", None)
    driver.drafts(["a", "b"], [[0.9] * DEPTH, [0.5] * DEPTH])
    driver.done(done(["a", "b"], [DEPTH, 2], [3, 0]), DEPTH)
    driver.drafts(["a"], [[0.8] * DEPTH])
    driver.done(done(["a", "b"], [2, 0], [2, 0]), DEPTH)  # b drafted nothing: no round
    driver.close()
    rounds = read_bank([tmp_path])
    rows = zip(
        rounds.category_by_round, rounds.round_index, rounds.drafted_by_round, rounds.accepted_by_round, strict=True
    )
    assert sorted((c, int(i), int(d), int(a)) for c, i, d, a in rows) == [
        ("all", 0, 2, 0),
        ("code", 0, 4, 3),
        ("code", 1, 2, 2),
    ]
    assert rounds.has_confidence


def test_first_drafts_without_confidence_are_left_out_of_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first drafts of an engine have no confidence; their requests are left out of the calibration."""
    bank, generator = writer(tmp_path / "bank"), np.random.default_rng(0)
    request = LiveRequest.of("first", None)
    bank.round(request, 3, 1, context=5)
    fill(bank, 12, 30, generator)
    bank.close()
    rounds = read_bank([tmp_path / "bank"])
    assert not rounds.has_confidence
    with_confidence = rounds.with_confidence()
    assert with_confidence is not None
    assert (with_confidence.count, rounds.count) == (360, 361)
    out = tmp_path / "live.acceptance.json"
    assert run("profile", ["acceptance", str(tmp_path / "bank"), "-o", str(out), "--splits", "2"]) == 0
    assert "excluded: 1 rounds" in capsys.readouterr().out
    assert '"weights"' in out.read_text()


# --- limits ---


def test_the_rate_limit_keeps_whole_requests(tmp_path: Path) -> None:
    now = [0.0]
    bank = writer(tmp_path, rounds_per_second=100.0, clock=lambda: now[0])
    rounds_by_request: Counter[str] = Counter()
    for r in range(200):
        now[0] += 0.01  # 100 requests per second of ten rounds each: ten times the limit
        request = LiveRequest.of(f"request {r}", None)
        if not bank.wants():
            continue
        for _ in range(10):
            bank.round(request, 2, 1, context=0)
            rounds_by_request[f"request {r}"] += 1
    bank.close()
    assert set(rounds_by_request.values()) == {10}
    assert 200 <= sum(rounds_by_request.values()) <= 320  # two seconds, and the initial allowance
    bank_rounds = read_bank([tmp_path])
    assert bank_rounds.count == sum(rounds_by_request.values())
    assert set(Counter(bank_rounds.prompt_by_round.tolist()).values()) == {10}


def test_memory_is_bounded_and_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "_MAX_QUEUED", 50)
    monkeypatch.setattr(capturing, "_WAKE_SECONDS", 30.0)
    bank = writer(tmp_path, part_seconds=1e6)
    for _ in range(80):
        bank.round(LiveRequest(number=1), 1, 0, context=0)
        bank.step(done(["a"], [1], [0]), 1)
    assert (bank.board["captured_rounds_total"], bank.board["capture_dropped_total"]) == (50, 30)
    assert (len(bank._rounds), len(bank._steps)) == (50, 50)
    bank.close()


def test_the_size_limit_stops_the_capture_and_is_reported_once(tmp_path: Path) -> None:
    faults: list[str] = []
    bank, generator = writer(tmp_path, faults, max_megabytes=0.001), np.random.default_rng(0)
    fill(bank, 2, 50, generator)
    until(lambda: bank._writer.stopped)
    dropped = len(fill(bank, 2, 50, generator))
    assert not bank.wants()
    bank.close()
    assert bank.board["capture_dropped_total"] == dropped
    assert len(faults) == 1
    assert "has reached 0.001 MB; capture stops" in faults[0]
    assert read_bank([tmp_path]).count == 100


# --- failures ---


def test_a_full_disk_is_counted_once_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    guard = Guard(log=log.append)
    bank = writer(tmp_path)
    bank.fault = lambda detail: guard.fault("capture", detail)
    bank._writer._fault = bank.fault
    generator = np.random.default_rng(0)
    fill(bank, 1, 5, generator)
    until(lambda: len(parts(tmp_path)) == 1)

    def full(self: pl.DataFrame, path: Path) -> None:
        path.write_bytes(b"PAR1")  # a partial file
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    fill(bank, 1, 5, generator)
    until(lambda: bank._writer.stopped)
    fill(bank, 1, 5, generator)
    bank.close()
    assert dict(guard.faults) == {"capture": 1}
    assert "No space left on device; capture stops" in log[0]
    assert list(tmp_path.rglob(".part-*")) == []  # no partial file is left
    assert read_bank([tmp_path]).count == 5
    assert not guard.off


def test_a_real_write_that_fails_leaves_whole_parts(tmp_path: Path) -> None:
    """A process with a file size limit of 2 kB: the first part fits, the next does not."""
    code = """
        import resource, sys, time
        from pathlib import Path
        import numpy as np
        from tests.unit.test_live_capture import fill, until, writer, parts
        folder, faults = Path(sys.argv[1]), []
        bank, generator = writer(folder, faults), np.random.default_rng(0)
        fill(bank, 1, 2, generator)
        until(lambda: len(parts(folder)) == 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        fill(bank, 4, 500, generator)
        until(lambda: bank._writer.stopped)
        bank.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(len(faults), "capture stops" in faults[0])
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done_ = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done_.stdout.split() == ["1", "True"], done_.stderr
    assert read_bank([tmp_path]).count == 2


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    faults: list[str] = []
    bank, generator = writer(tmp_path / "bank", faults), np.random.default_rng(0)
    fill(bank, 1, 5, generator)
    until(lambda: len(parts(tmp_path)) == 1)
    shutil.rmtree(tmp_path / "bank")
    fill(bank, 1, 7, generator)
    bank.close()
    assert faults == []
    assert read_bank([tmp_path / "bank"]).count == 7


def test_a_folder_that_cannot_be_made_stops_it(tmp_path: Path) -> None:
    faults: list[str] = []
    (tmp_path / "bank").write_text("a file")
    bank, generator = writer(tmp_path / "bank", faults), np.random.default_rng(0)
    fill(bank, 1, 5, generator)
    until(lambda: bank._writer.stopped)
    fill(bank, 1, 5, generator)
    bank.close()
    assert len(faults) == 1
    assert bank.board["capture_dropped_total"] == 5


def test_a_short_run_is_kept_when_its_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's server kills its engine at the end: the first parts are written long before `part_seconds`."""
    monkeypatch.setattr(capturing, "_FIRST_PART_SECONDS", 0.01)
    bank = writer(tmp_path, part_seconds=1e6)
    bank.round(LiveRequest(number=1), 1, 0, context=0)
    until(lambda: any(tmp_path.rglob("part-000001")))
    assert read_bank([tmp_path]).count == 1
    assert bank._writer._part_seconds == 0.02
    bank.close()


def test_closing_ends_the_thread_and_is_safe_twice(tmp_path: Path) -> None:
    bank = writer(tmp_path, part_seconds=1e6)
    bank.round(LiveRequest(number=1), 1, 0, context=0)
    bank.close()
    bank.close()
    assert not bank._writer._thread.is_alive()
    assert read_bank([tmp_path]).count == 1


def test_a_killed_process_leaves_readable_parts(tmp_path: Path) -> None:
    """Killed while writing, several times: every part is complete, and its rounds are in order."""
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from specmargin.live import capture
        capture._WAKE_SECONDS = 0.001
        from tests.unit.test_live_capture import fill, writer
        bank, generator = writer(Path(sys.argv[1]), part_seconds=0.001), np.random.default_rng(int(sys.argv[2]))
        print("ready", flush=True)
        while True:
            fill(bank, 20, 20, generator)
    """
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), str(attempt)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda least=3 * (attempt + 1): len(parts(tmp_path)) >= least)  # type: ignore[misc]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        written = sum(pl.read_parquet(path).height for path in tmp_path.rglob("part-*/acceptance.parquet"))
        assert read_bank([tmp_path]).count == written > 0
    for part in parts(tmp_path):
        assert {file.name for file in part.iterdir()} == {"acceptance.parquet", "speculator.parquet"}


def test_a_disabled_driver_writes_what_it_captured(tmp_path: Path) -> None:
    log: list[str] = []
    settings = {
        "mode": "observe",
        "capture": {"folder": str(tmp_path / "bank"), "part_seconds": 1e6},
        "faults_in_a_row": 1,
    }
    driver = built(tmp_path, settings, log=log)
    driver.add("a", None)
    driver.done(done(["a"], [2], [1]), 2)
    driver.settle()
    driver.guard.fault("outcome", "one is enough here")
    assert driver.guard.off
    driver.close()
    assert read_bank([tmp_path / "bank"]).count == 1
