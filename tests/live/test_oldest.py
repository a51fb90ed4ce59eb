"""The oldest supported release of vLLM: the same output, every decision counted, no fault.

`scripts/live_environment.py` unpacks it beside the newest, whose requirements it shares. vLLM 0.30 is not supported:
its CPU build fails in its own rejection sampler, so the plug-in cannot be tested there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.live.conftest import Result

Run = Callable[..., Result]


def test_the_oldest_supported_release(run_engine: Run, policy: Path) -> None:
    folder = (Path(sys.prefix) / "oldest-vllm").read_text().strip()
    oldest = {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}
    plain = run_engine(speculative=False, environment=oldest)
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, environment=oldest)
    assert "v0.31" in result.log or "0.31.0" in result.log
    assert result.tokens == plain.tokens
    assert "depth by learned acceptance" in result.log
    assert result.metric("specmargin_faults_total") == 0
    assert result.metric("specmargin_steps_total") > 0
