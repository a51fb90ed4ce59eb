"""Every kind of drafter: the controller uses learned acceptance, and a capture has confidences if there are any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from lab.live.models import Pair

from tests.live.conftest import DEPTH, Result
from tests.live.heads import make_eagle3, make_mtp_target

Run = Callable[..., Result]


def test_ngram_uses_learned_acceptance(run_engine: Run, plain: Result, policy: Path) -> None:
    drafter = {"method": "ngram", "num_speculative_tokens": DEPTH, "prompt_lookup_max": 4}
    result = run_engine({"mode": "adaptive", "policy": str(policy)}, engine={"speculative_config": drafter})
    assert result.tokens == plain.tokens
    assert result.metric("specmargin_faults_total") == 0
    assert result.metric("specmargin_steps_total") > 0


def test_eagle3(run_engine: Run, plain: Result, pair: Pair, policy: Path, tmp_path: Path) -> None:
    head = make_eagle3(pair.target, tmp_path / "head")
    drafter = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    result = run_engine(_capture_settings(policy, tmp_path), engine={"speculative_config": drafter})
    assert result.tokens == plain.tokens
    _check_confidence(tmp_path, result)


def test_mtp(run_engine: Run, pair: Pair, policy: Path, tmp_path: Path) -> None:
    """The head has random weights, so hardly anything is drafted but in probes: there are steps enough for some."""
    target = make_mtp_target(tmp_path / "target", pair.target)
    batches = [[{"prompt": list(range(1 + i, 25 + i))} for i in range(4)]]
    model = {"model": str(target), "load_format": "dummy"}
    drafter = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    plain_result = run_engine(speculative=False, batches=batches, engine=model, max_tokens=250)
    settings = _capture_settings(policy, tmp_path)
    result = run_engine(settings, batches=batches, engine=model | drafter, max_tokens=250)
    assert result.tokens == plain_result.tokens
    _check_confidence(tmp_path, result)


def _capture_settings(policy: Path, folder: Path) -> dict[str, Any]:
    capture = {"folder": str(folder / "bank"), "part_seconds": 0.3}
    return {"mode": "adaptive", "policy": str(policy), "capture": capture}


def _check_confidence(folder: Path, result: Result) -> None:
    assert result.metric("specmargin_faults_total") == 0
    assert "depth by learned acceptance" in result.log
    frame = pl.concat([pl.read_parquet(path) for path in folder.rglob("part-*/speculator.parquet")])
    assert frame.height > 0
    assert frame["conf0"].is_not_nan().all()
