"""The SGLang plug-in's metrics on the page that SGLang serves: the Prometheus client's own collector."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from specmargin.live.policy_schema import policy_text
from specmargin.live.readings import parse_metrics
from tests.sglang_engine import sglang
from tests.unit.live import policy_file

multiprocess = pytest.importorskip("prometheus_client.multiprocess")


def add_prometheus_middleware(app: list[str]) -> None:
    """As SGLang's, with a list for its server."""
    client = import_module("prometheus_client")
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    app.append(client.generate_latest(registry).decode())


def test_metrics_are_on_sglangs_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(multiprocess.MultiProcessCollector, "collect", multiprocess.MultiProcessCollector.collect)
    file = tmp_path / "adaptive.json"
    part = {"mode": "adaptive", "policy": json.loads(policy_text(policy_file(gated=False)))}
    file.write_text(json.dumps({"1": {"candidate_steps": [3]}, "4": {"candidate_steps": [1]}, "specmargin": part}))
    page: list[str] = []
    with sglang() as engine:
        vars(sys.modules["sglang.srt.utils.common"])["add_prometheus_middleware"] = add_prometheus_middleware
        engine.load_plugins()
        rank = engine.rank(file, 3)
        lengths = np.random.default_rng(0).integers(0, 4, (100, 2)).tolist()
        depths = [rank.round(row) for row in lengths]
        import_module("sglang.srt.utils.common").add_prometheus_middleware(page)
    samples = {(sample.name, sample.labels.get("depth")): sample.value for sample in parse_metrics(page[0])}
    assert samples["specmargin_steps_total", None] == 100
    assert samples["specmargin_enabled", None] == 1
    assert samples["specmargin_accepted_tokens_total", None] == sum(
        min(length, depth) for row, depth in zip(lengths, depths, strict=True) for length in row
    )
    for depth in set(depths):
        assert samples["specmargin_depth_chosen_total", str(depth)] == depths.count(depth)
