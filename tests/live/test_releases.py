"""The oldest and the newest release of vLLM that run with this PyTorch: the same output, depths decided, no fault.

`scripts/live_environment.py` unpacks them beside the release of all other live tests, whose requirements they share.
The index has no CPU build of the newest: its own Python files run with the kernels of the other. The oldest runs a
dense model, as its CPU build has no kernel for the experts of the small one. The CPU builds of 0.28 to 0.30 are not
run: that of 0.30 fails in vLLM's own rejection sampler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.live.models import Pair

from specmargin.live.parts import check_sources
from tests.engine_files import absent, fetch_engines
from tests.live.conftest import Result

Run = Callable[..., Result]
RELEASES = ("0.27.0", "0.31.0", "0.33.0")


def engine_folder(release: str) -> Path:
    return Path((Path(sys.prefix) / "other-releases").read_text().strip()) / release


@pytest.mark.parametrize("release", RELEASES)
def test_a_release(run_engine: Run, pair: Pair, policy: Path, release: str) -> None:
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(engine_folder(release)), os.environ.get("PYTHONPATH"))))}
    dense = {"model": str(pair.draft), "per_request_spec_decode_metrics": None} if release == "0.27.0" else {}
    plain = run_engine(speculative=False, environment=path, engine=dense)
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, environment=path, engine=dense)
    assert f"(v{release})" in result.log
    assert result.tokens == plain.tokens
    assert "depth by learned acceptance" in result.log
    assert result.metric("specmargin_faults_total") == 0
    assert result.metric("specmargin_steps_total") > 0


@pytest.mark.parametrize("release", RELEASES)
def test_the_fetched_files_say_what_the_whole_package_says(release: str) -> None:
    """`docs/results/releases.md` is made from a few files of each release."""
    if not fetch_engines.is_fetched("vllm", release):
        absent(f"vllm {release} is not there")
    fetched = check_sources("vllm", fetch_engines.package("vllm", release))
    assert fetched.problems == check_sources("vllm", engine_folder(release)).problems
