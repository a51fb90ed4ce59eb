"""`plan` and `simulate` answer the same question alike: 40 random services, and what must add up in each."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

import specmargin

MACHINES = (
    ("qwen3.6-35b-a3b", "h200", 1, "tp"),
    ("qwen3-30b-a3b", "h200", 1, "tp"),
    ("gpt-oss-120b", "h100-sxm", 4, "tp"),
    ("llama-3.1-8b", "l40s", 1, "tp"),
    ("deepseek-v3", "h200", 8, "ep"),
    ("qwen3-235b-a22b", "b200", 4, "tp"),
)
SIDES = {"none": "plain", "schedule": "speculating"}


def _asked(number: int) -> dict[str, Any]:
    """Rates from a tenth of what such a machine serves to more than it does; one to 300 users."""
    chance = random.Random(number)
    model, gpu, gpus, parallel = chance.choice(MACHINES)
    isl, osl = round(64 * 2 ** chance.uniform(0, 6)), round(32 * 2 ** chance.uniform(0, 5))
    options: dict[str, Any] = {"model": model, "gpu": gpu, "gpus": gpus, "parallel": parallel, "prices": "laws"}
    options |= {"isl": isl, "osl": osl, "range_ratio": chance.choice((0.0, 0.25, 0.5)), "depth": chance.choice((2, 5))}
    options |= {"engine": chance.choice(("vllm", "vllm", "sglang"))}
    if chance.random() < 0.5:
        return options | {"concurrency": round(300 ** chance.random())}
    return options | {"qps": round(20_000 / (isl + 8 * osl) * 3 ** chance.uniform(-2, 1), 2)}


def _name(number: int) -> str:
    chosen = ("model", "gpu", "engine", "qps", "concurrency", "isl", "osl", "range_ratio")
    return "-".join(f"{value}" for name, value in _asked(number).items() if name in chosen)


@cache
def _answers(number: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    asked = _asked(number)
    plan = specmargin.plan(**asked).to_dict()["service"]
    runs = specmargin.simulate(**asked, policy="none,schedule", gpu_hour_price=3.0)
    return plan, {row["policy"]: row for row in runs.rows}


ANOTHER_SEED = (0, 2, 3, 5, 11, 17, 18, 21, 29, 31)  # rates: chance decides less in a closed loop
SCENARIOS = pytest.mark.parametrize("number", range(40), ids=_name)


@SCENARIOS
def test_plan_and_simulate_agree(number: int) -> None:
    service, rows = _answers(number)
    for policy, side in SIDES.items():
        mine, row = service[side], rows[policy]
        assert row["goodput_tokens_per_second"] == pytest.approx(mine["tokens_per_second"], rel=0.02)
        assert row["tpot_seconds"]["mean"] == pytest.approx(mine["tpot_seconds"], rel=0.02)
        assert row["mean_batch"] == pytest.approx(mine["sequences"], rel=0.02)


@pytest.mark.parametrize("number", ANOTHER_SEED, ids=_name)
def test_another_seed_says_the_same(number: int) -> None:
    """Other arrivals, lengths and accepted drafts, in a window of their own: the steady state is not one of chance."""
    service, _ = _answers(number)
    runs = specmargin.simulate(**_asked(number), policy="none,schedule", seed=3)
    for row in runs.rows:
        mine = service[SIDES[row["policy"]]]
        assert row["goodput_tokens_per_second"] == pytest.approx(mine["tokens_per_second"], rel=0.05)
        assert row["tpot_seconds"]["mean"] == pytest.approx(mine["tpot_seconds"], rel=0.05)
        assert row["mean_batch"] == pytest.approx(mine["sequences"], rel=0.08)  # bursts count twice: also in the time


@SCENARIOS
def test_what_is_reported_adds_up(number: int) -> None:
    """No more is served than arrives; requests in the engine are rate × time (Little); cost is time × price."""
    asked, (_, rows) = _asked(number), _answers(number)
    for row in rows.values():
        served, gpus = row["goodput_tokens_per_second"], asked["gpus"]
        if "qps" in asked:
            offered = asked["qps"] * asked["osl"]
            assert served <= offered * (1.0 + 1e-9)
            assert served + row["queue_growth_per_second"] * asked["osl"] == pytest.approx(offered)
        decoding = served / asked["osl"] * (asked["osl"] - 1) * row["tpot_seconds"]["mean"]
        busy = served / row["busy_tokens_per_second"]
        assert row["mean_batch"] * busy == pytest.approx(decoding, rel=0.05)
        assert row["cost_per_million_tokens"] == pytest.approx(3.0 * gpus / 3600 * 1e6 / served)
