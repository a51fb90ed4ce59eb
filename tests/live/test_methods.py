"""Every kind of drafter: confidences arrive where it has them, and the controller goes by acceptance where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.live.models import Pair

from tests.live.conftest import DEPTH, Result
from tests.live.heads import make_eagle3, make_mtp_target
from tests.live.test_output import plain  # noqa: F401  # a fixture

Run = Callable[..., Result]


def test_ngram_goes_by_acceptance(run_engine: Run, plain: Result, policy: Path) -> None:  # noqa: F811
    drafter = {"method": "ngram", "num_speculative_tokens": DEPTH, "prompt_lookup_max": 4}
    found = run_engine({"mode": "adaptive", "policy": str(policy)}, engine={"speculative_config": drafter})
    assert found.tokens == plain.tokens
    assert found.metric("specmargin_faults_total") == 0
    assert found.metric("specmargin_steps_total") > 0


def test_eagle3(run_engine: Run, plain: Result, pair: Pair, policy: Path, tmp_path: Path) -> None:  # noqa: F811
    head = make_eagle3(pair.target, tmp_path / "head")
    drafter = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    found = run_engine(_captured(policy, tmp_path), engine={"speculative_config": drafter})
    assert found.tokens == plain.tokens
    _confident(tmp_path, found)


def test_mtp(run_engine: Run, pair: Pair, policy: Path, tmp_path: Path) -> None:
    target = make_mtp_target(tmp_path / "target", pair.target)
    batches = [[{"prompt": list(range(1 + i, 25 + i))} for i in range(4)]]
    model = {"model": str(target), "load_format": "dummy"}
    drafter = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    alone = run_engine(speculative=False, batches=batches, engine=model)
    found = run_engine(_captured(policy, tmp_path), batches=batches, engine=model | drafter)
    assert found.tokens == alone.tokens
    _confident(tmp_path, found)


def _captured(policy: Path, folder: Path) -> dict[str, Any]:
    capture = {"folder": str(folder / "bank"), "part_seconds": 0.3}
    return {"mode": "adaptive", "policy": str(policy), "capture": capture}


def _confident(folder: Path, found: Result) -> None:
    assert found.metric("specmargin_faults_total") == 0
    assert "gated by the drafter's confidence" in found.log
    frame = pl.concat([pl.read_parquet(path) for path in folder.rglob("part-*/speculator.parquet")])
    assert frame.height > 0
    assert frame["conf0"].is_not_nan().all()
