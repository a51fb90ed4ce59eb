"""The simulator's prefix cache against vLLM's own code: the same tokens found, the same blocks in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("vllm", reason="vLLM is not installed here")


def test_lookups_tables_and_free_blocks_are_those_of_vllms_cache_manager() -> None:
    """Every look-up, table and order of free blocks is compared while loads run, in `tests/live/prefix_cache.py`."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-m", "tests.live.prefix_cache"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen) == 6
    for counted in seen.values():
        assert counted["found tokens"] > 0 and counted["tables"] > counted["admissions"] > 0
    assert any(counted["preemptions"] for counted in seen.values())  # blocks ran out, and were reused
    assert seen["cancelled"]["cancelled"] > 0
