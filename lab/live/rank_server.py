"""A server with data-parallel ranks and expert parallelism on this processor, for tests and benchmarks of votes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.live import servers
from lab.live.measuring import ENVIRONMENT

_PATIENCE = 900.0  # seconds: all ranks import vLLM at once


@contextmanager
def rank_server(
    arguments: Mapping[str, Any], *, ranks: int, helper: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[servers.Running]:
    """`helper`: a module whose `register` runs in each of vLLM's processes."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([str(_plug_in(folder / "plug-in", helper)), str(ROOT), *before])
    parallel = {"data_parallel_size": ranks, "enable_expert_parallel": True}
    environment = {**ENVIRONMENT, "PYTHONPATH": path, **environment}
    server = servers.start({**arguments, **parallel}, folder=folder / "server", environment=environment)
    try:
        servers.wait(server, _PATIENCE)
        yield server
    finally:
        servers.end(server)


def _plug_in(folder: Path, helper: str) -> Path:
    """A folder for `PYTHONPATH` in which vLLM finds the helper."""
    package = folder / "rank_helper-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rank-helper\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[vllm.general_plugins]\nrank_helper = {helper}:register\n")
    return folder
