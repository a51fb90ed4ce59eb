"""`measure vllm` in a real vLLM on the CPU, end to end: steps, price file, plan, and the goodput of the plan.

Needs vLLM's CPU build; about five minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.live.cpu import cpu_dtype
from lab.live.measuring import ENVIRONMENT, measure_arguments, plan, specmargin
from lab.live.models import Pair

from specmargin.measure.points import Kind, Point, Run, Surface
from specmargin.measure.prompts import read_prompts
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, measure_run
from tests.data import REFERENCE_BANK

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-live")

BATCHES = (1, 4, 16, 32)
DEPTHS = (1, 2, 3, 5)
CONTEXT = 128
TURNS = int(os.environ.get("SPECMARGIN_MEASURE_TURNS", "8"))  # per depth: more turns give narrower intervals
FLAGS: dict[str, Any] = {"dtype": cpu_dtype(), "max_model_len": 1024, "enforce_eager": True}


def _arguments(pair: Pair, output: Path) -> list[str]:
    arguments = measure_arguments(
        pair.folder, output, batches=BATCHES, depths=DEPTHS, context=CONTEXT, max_model_len=FLAGS["max_model_len"]
    )
    return [*arguments, "--clock", "cpu", "--steps", "4", "--repeats", "2"]  # processor time: the machine may be busy


def test_random_tokens_are_measured_where_no_prompts_are_given(pair: Pair, tmp_path: Path) -> None:
    """The default: no --prompts, no --drafter."""
    output = tmp_path / "random.json"
    flags = ("--set", f"dtype={cpu_dtype()}", "--set", "enforce_eager=True")
    grid = ("--batches", "1,2,4", "--depths", "1", "--contexts", "48", "--steps", "2", "--repeats", "1")
    specmargin("measure", "vllm", str(pair.target), "-o", str(output), *flags, *grid)
    rows = json.loads(output.read_text())["rows"]
    points = [(0, "off"), (1, "alike"), (1, "strangers")]
    wanted = [("none", batch, 0, "none") for batch in (1, 2, 4)]
    wanted += [("forced", batch, *point) for batch in (1, 2, 4) for point in points]
    assert sorted((row["run"], row["batch"], row["depth"], row["kind"]) for row in rows) == sorted(wanted)
    assert all(row["prompt"] == 48 <= row["context"] for row in rows)


MTP_MODEL = {  # GLM-4.5's family in small: the only one with an MTP head that vLLM serves from CPU attention
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 1024,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "float32",
    "use_qk_norm": False,
    "vocab_size": 512,
}


def test_the_models_own_head_is_measured_by_default(tmp_path: Path) -> None:
    """On the first model runner, which is the CPU's only one; the second needs a GPU."""
    (tmp_path / "config.json").write_text(json.dumps(MTP_MODEL))
    output = tmp_path / "prices.json"
    flags = {"dtype": cpu_dtype(), "enforce_eager": True, "load_format": "dummy", "skip_tokenizer_init": True}
    arguments = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
    grid = ("--batches", "1,2,4", "--depths", "1", "--contexts", "48", "--steps", "2", "--repeats", "1")
    specmargin("measure", "vllm", str(tmp_path), "-o", str(output), *arguments, *grid)
    file = json.loads(output.read_text())
    drafted = [row for row in file["rows"] if row["run"] == "drafter" and row["depth"] > 0]
    assert sorted(row["batch"] for row in drafted) == [1, 2, 4]
    assert all(0.0 < row["draft_seconds"] < row["seconds"] for row in drafted)
    assert file["drafter"]["method"] == "mtp"
    assert file["drafter"]["first_seconds"] + file["drafter"]["first_sequence_seconds"] > 0.0
    assert {row["run"] for row in file["rows"]} == {"none", "forced", "drafter"}  # no async scheduling on a CPU
    assert "async scheduling off" in file["conditions"]["engine"]


class _Drafting:
    """Stands for a model runner, or for the speculator of one."""

    def __init__(self) -> None:
        self.calls = 0

    def propose(self) -> str:
        self.calls += 1
        time.sleep(0.01)
        return "drafts"


def test_drafts_of_both_model_runners_are_timed() -> None:
    from specmargin.measure.vllm.hooks import DraftClock  # noqa: PLC0415 (needs PyTorch)

    first, second, none = _Drafting(), _Drafting(), _Drafting()
    first.propose_draft_token_ids = first.propose  # type: ignore[attr-defined]
    second.speculator = _Drafting()  # type: ignore[attr-defined]
    for runner, draft in ((first, "propose_draft_token_ids"), (second, "speculator.propose")):
        clock = DraftClock(runner, time.perf_counter)
        target: Any = runner
        for name in draft.split("."):
            target = getattr(target, name)
        assert target() == "drafts"
        assert 0.01 <= clock.seconds < 1.0
    assert first.calls == second.speculator.calls == 1  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no drafter that can be timed"):
        DraftClock(none, time.perf_counter)


@pytest.fixture(scope="module")
def prices(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measure") / "prices.json"
    print(specmargin(*_arguments(pair, path)))
    return path


def test_the_price_file_has_counted_experts_the_drafter_and_off_times(prices: Path) -> None:
    file = json.loads(prices.read_text())
    assert file["evidence"]["counted_experts"]
    assert file["drafter"]["method"] == "draft_model"
    off = file["modes"]["none"]
    assert off["off_step_seconds"] + off["off_sequence_seconds"] > 0  # the drafter runs even at depth 0
    rows = {(row["run"], row["batch"], row["depth"], row["kind"]): row for row in file["rows"]}
    assert {key[0] for key in rows} == {"none", "forced", "drafter"}
    plain, random, repeated = (
        rows["forced", 1, d, k]["distinct"] for d, k in ((0, "off"), (5, "strangers"), (5, "alike"))
    )
    assert plain == 4.0  # one position touches its 4 experts and no more
    assert random > repeated >= plain
    assert rows["forced", 32, 5, "strangers"]["seconds"] > rows["forced", 1, 0, "off"]["seconds"]


def test_a_second_call_measures_nothing_twice(prices: Path, pair: Pair) -> None:
    rows = prices.with_suffix(".rows.jsonl")
    before = rows.read_text()
    specmargin(*_arguments(pair, prices), "--fit-only", "--force")
    assert rows.read_text() == before


def test_the_plan_is_as_good_as_the_best_fixed_depth(prices: Path, pair: Pair, tmp_path: Path) -> None:
    """Paired: depths take turns in one engine; the best is picked on half of the turns and judged on the other.

    Goodput is tokens per second of processor time, which on an idle machine equals wall time.
    """
    planned = _planned(prices, pair, tmp_path)
    goodput = _measured_goodput(pair, planned, tmp_path)
    lines = []
    for batch, depth in planned.items():
        best, ratio, low, high = _against_best(goodput[batch], depth)
        lines.append(f"batch {batch}: plan {depth}, best {best}, ratio {ratio:.3f} ({low:.3f} to {high:.3f})")
    print("\n".join(lines))
    for batch, depth in planned.items():
        _, ratio, low, high = _against_best(goodput[batch], depth)
        if ratio < 0.95 and high - low > 0.2:
            pytest.skip(f"this machine is too busy to tell: {'; '.join(lines)}")
        assert high >= 0.95, lines


def _planned(prices: Path, pair: Pair, scratch: Path) -> dict[int, int]:
    """The planned depth by batch, with the measured acceptance and the routing of the reference bank."""
    rows = [row for row in json.loads(prices.read_text())["rows"] if row["kind"] == "drafted"]
    deepest = [row for row in rows if row["depth"] == max(DEPTHS)]
    mean_survival = np.average(
        [row["survival"] for row in deepest], axis=0, weights=[row["batch"] * row["steps"] for row in deepest]
    )
    survival = ",".join(f"{value:.4f}" for value in np.minimum.accumulate(mean_survival))
    options = ("--depth", str(max(DEPTHS)), "--json")
    text = plan(
        pair.folder,
        prices,
        scratch,
        *options,
        bank=REFERENCE_BANK,
        acceptance=survival,
        batches=BATCHES,
        context=CONTEXT,
    )
    return {row["batch"]: row["depth"] for row in json.loads(text)["rows"]}


def _measured_goodput(pair: Pair, planned: dict[int, int], scratch: Path) -> dict[int, dict[int, Any]]:
    """By batch and depth: (seconds, tokens) of every turn."""
    points = tuple(
        Point(batch=batch, depth=depth, context=CONTEXT, kind=Kind.DRAFTED if depth else Kind.OFF)
        for batch, chosen in planned.items()
        for depth in sorted({0, *DEPTHS, chosen})
    )
    speculative = {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": max(DEPTHS)}
    run = Run(
        name="drafter",
        kind="drafter",
        drafts=max(DEPTHS),
        engine_args={"speculative_config": speculative},
        points=points,
    )
    order = Order(
        model=str(pair.target),
        surface=Surface(batches=BATCHES, depths=DEPTHS, contexts=(CONTEXT,)),
        engine_args=FLAGS,
        prompts=read_prompts(pair.folder / "prompts.json", str(pair.target)),
        temperature=0.0,
        clock="cpu",
        steps=6,
        repeats=TURNS,
        rounds=400,
        seed=1,
    )
    records = Records(path=scratch / "goodput.rows.jsonl")
    os.environ.update(ENVIRONMENT)
    measure_run(order, run, records, deadline=time.time() + 50 * TURNS, log=scratch / "log", watch=lambda *_: None)
    turns_by_batch_and_depth: dict[int, dict[int, Any]] = {}
    for row in records.rows():
        turns_by_batch_and_depth.setdefault(row["batch"], {})[row["depth"]] = np.array(row["turns"])
    assert turns_by_batch_and_depth.keys() == planned.keys(), records.failures()
    return turns_by_batch_and_depth


def _against_best(turns: dict[int, Any], depth: int) -> tuple[int, float, float, float]:
    """The best depth of the even turns; the plan's goodput over its on the odd ones, with a 95% interval."""

    def rate(at_depth: int, chosen: Any) -> float:
        seconds, tokens = turns[at_depth][chosen].T
        # Mean tokens, median rate: tokens vary with the text, seconds with the load.
        return float(np.median(tokens.sum() / tokens.size / seconds))

    count = len(turns[depth])
    even, odd = np.arange(0, count, 2), np.arange(1, count, 2)
    best = max(turns, key=lambda candidate: rate(candidate, even))
    random = np.random.default_rng(0)
    drawn = [rate(depth, some) / rate(best, some) for some in (random.choice(odd, odd.size) for _ in range(2000))]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return best, rate(depth, odd) / rate(best, odd), float(low), float(high)
