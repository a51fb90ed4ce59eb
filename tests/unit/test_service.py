"""A load as whole requests: `plan --concurrency` and `--qps` against the simulator, and the physics of a service."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from specmargin.answers.request_schema import read_request
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import Schedule
from specmargin.errors import InputError
from specmargin.simulator.service import service
from specmargin.verbs.plan.drafter_plan import drafter_plans, service_load
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.values import answer_text
from tests.command_line import run
from tests.verdict_form import form_faults

MODELS = (
    ("qwen3.6-35b-a3b", "h200", 1, "tp"),
    ("deepseek-v3", "h200", 8, "ep"),
    ("gpt-oss-120b", "h100", 1, "tp"),
    ("llama-3.1-8b", "h200", 1, "tp"),
    ("qwen3-235b-a22b", "b200", 4, "tp"),
)


def planned(model: str, gpu: str, gpus: int, parallel: str, **load: object):  # type: ignore[no-untyped-def]
    request = {"model": model, "gpu": gpu, "gpus": gpus, "parallel": parallel, "prices": "laws", "depth": 4, **load}
    return drafter_plans(read_request(PlanRequest, request))[0]


def test_equal_lengths_keep_requests_in_step_until_drafts_separate_them() -> None:
    """In step, requests share the steps of their prompts. With varied lengths they do not, with drafts or without."""
    load: dict[str, Any] = {"concurrency": 32, "isl": 500, "osl": 300}
    varied = planned(*MODELS[0], **load).service
    equal = planned(*MODELS[0], **load, range_ratio=0).service
    assert varied.load.range_ratio == 0.5 and equal.load.range_ratio == 0.0
    assert equal.plain.prefill_share < 0.5 * min(varied.plain.prefill_share, equal.speculating.prefill_share)
    assert varied.speculating.tokens_per_second == pytest.approx(equal.speculating.tokens_per_second, rel=0.1)
    assert equal.speedup < varied.speedup


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "4 concurrent requests of 256 input and 32 output tokens (±50%, assumed)\n"),
        (("--range-ratio", "0.5"), "4 concurrent requests of 256 input and 32 output tokens (±50%)\n"),
        (("--range-ratio", "0"), "4 concurrent requests of 256 input and 32 output tokens\n"),
    ],
)
def test_the_spread_of_lengths_is_shown(options: tuple[str, ...], said: str) -> None:
    load = ("--concurrency", "4", "--isl", "256", "--osl", "32")
    text = run("plan", "llama-3.1-8b", "--gpu", "h200", "--prices", "laws", *load, *options).out
    assert said in text


def test_requests_that_are_too_long_only_by_their_spread_are_refused() -> None:
    model = ("llama-3.1-8b", "h200", 1, "tp")
    load: dict[str, Any] = {"concurrency": 1, "isl": 100_000, "osl": 64, "memory_utilization": 0.24}
    assert planned(*model, **load, range_ratio=0).service is not None
    with pytest.raises(
        InputError, match="the longest requests do not fit in memory: lower --isl, --osl or --range-ratio"
    ):
        planned(*model, **load)


@pytest.mark.parametrize(
    ("gpu", "engine", "tokens"),
    [
        ("gb300", "vllm", 16384),
        ("h200", "vllm", 8192),
        ("a100", "vllm", 2048),
        ("l40s", "vllm", 2048),
        ("gb300", "sglang", 8192),
    ],
)
def test_tokens_per_step_are_the_engines_default(gpu: str, engine: str, tokens: int) -> None:
    """vLLM 0.32, engine/arg_utils.py: by memory, 160 GiB and 70 GiB, and less on an A100."""
    load = {"concurrency": 8, "isl": 512, "osl": 64}
    asked = {"model": "llama-3.1-8b", "gpu": gpu, "engine": engine, **load}
    request = read_request(PlanRequest, asked)
    scenario = scenario_of(request)[1]
    of = service_load(request, scenario)
    assert of is not None and of.max_num_batched_tokens == tokens
    given = service_load(read_request(PlanRequest, asked | {"max_num_batched_tokens": 512}), scenario)
    assert given is not None and given.max_num_batched_tokens == 512


def test_decoding_alone_bounds_what_the_service_gains() -> None:
    long_output = planned("qwen3.6-35b-a3b", "h200", 1, "tp", concurrency=16, isl=64, osl=2048).service
    short_output = planned("qwen3.6-35b-a3b", "h200", 1, "tp", concurrency=16, isl=16_384, osl=32).service
    decode_only = planned("qwen3.6-35b-a3b", "h200", 1, "tp", batch="16", context=1088).plan.rows[0].speedup
    assert short_output.speedup < long_output.speedup < 1.02 * decode_only
    assert long_output.speedup > 0.9 * decode_only
    assert short_output.speedup < 1.1  # next to nothing: 93% of the time are prompts


def test_a_benchmark_is_judged_with_its_ramp_and_its_drain() -> None:
    """One generation of users: their prompts come at once, which is a ramp and no service."""
    plan = planned(*MODELS[3], concurrency=64, isl=1024, osl=256, range_ratio=0)
    request = {"model": "llama-3.1-8b", "gpu": "h200", "prices": "laws", "context": 1152, "drafter": "eagle"}
    pricer = Pricer(scenario_of(read_request(PlanRequest, request))[1])
    assert plan.service is not None
    schedule = Schedule.fixed(3, last=64)
    served = service(pricer, plan.service.load, schedule)
    once = service(pricer, replace(plan.service.load, requests=64), schedule)
    often = service(pricer, replace(plan.service.load, requests=6400), schedule)
    assert once.plain.tokens_per_second < served.plain.tokens_per_second
    assert once.plain.ttft_seconds > 1.5 * served.plain.ttft_seconds
    assert often.plain.tokens_per_second == pytest.approx(served.plain.tokens_per_second, rel=0.03)
    assert "requests" not in served.values(1.4, 1.6)


def test_a_prefix_cache_shortens_the_first_token_and_helps_speculation() -> None:
    cold = planned("llama-3.1-8b", "h200", 1, "tp", concurrency=16, isl=8192, osl=256).service
    warm = planned("llama-3.1-8b", "h200", 1, "tp", concurrency=16, isl=8192, osl=256, prefix_hit=0.9).service
    assert warm.speculating.ttft_seconds < 0.5 * cold.speculating.ttft_seconds
    assert warm.speedup > cold.speedup


def test_smaller_chunks_interrupt_decoding_less() -> None:
    def service(tokens: int):  # type: ignore[no-untyped-def]
        load = {"concurrency": 16, "isl": 8192, "osl": 256, "max_num_batched_tokens": tokens}
        return planned("llama-3.1-8b", "h200", 1, "tp", **load).service

    assert service(1024).plain.tpot_seconds < service(8192).plain.tpot_seconds


def test_the_headline_is_the_services() -> None:
    options = ["--gpu", "h200", "--prices", "laws", "--isl", "4096", "--osl", "64", "--concurrency", "64"]
    text = run("plan", "llama-3.1-8b", *options).out
    assert re.match(r"\w+: \d\.\d\d× as fast at concurrency 64 with eagle, likely ", text)
    assert "\nPrefill takes " in text and "as fast at batch 64" not in text  # in place of decode steps, not before them
    payload = json.loads(run("plan", "llama-3.1-8b", *options, "--json").out)
    assert payload["service"]["concurrency"] == 64
    assert payload["service"]["range_ratio"] == payload["options"]["range_ratio"] == 0.5
    assert payload["service"]["plain"]["tokens_per_second_per_gpu"] > 0
    assert text.startswith(payload["verdict"].splitlines()[0])


def test_a_load_that_speculation_slows_down_is_told_so() -> None:
    answer = planned("qwen3.6-35b-a3b", "h200", 1, "tp", concurrency=256, isl=2048, osl=64)
    assert answer.service is not None and answer.service.speedup < 1.0
    text = answer_text(answer)
    assert text.startswith("No: ") and " at concurrency 256 with mtp, likely " in text and "\nDraft" not in text
    assert list(form_faults(text, answer.advice)) == []


def test_a_load_for_which_nothing_is_drafted_is_named_and_its_range_includes_the_prefill() -> None:
    answer = planned(*MODELS[3], concurrency=4, isl=4096, osl=64, acceptance="0.02")
    assert answer.service is not None and answer.refused is not None and answer.service.speculating.depth == 0.0
    text, (row, sure) = answer_text(answer), answer.refused
    assert " at concurrency 4 with eagle, likely " in text.splitlines()[0]
    low = float(re.findall(r"likely (\d\.\d\d)–", text)[0])
    assert sure.low < low < 1.0 and row.speedup < 1.0
    assert list(form_faults(text, answer.advice)) == []


def test_an_acceptance_just_under_the_one_needed_is_printed_with_more_digits() -> None:
    needed = planned(*MODELS[3], depth=1, batch="4", acceptance="0.02").refused[0].break_even_acceptance
    text = answer_text(planned(*MODELS[3], depth=1, batch="4", acceptance=f"{needed - 1e-4:.5f}"))
    shown, used = map(float, re.findall(r"acceptance of (0\.\d+) per token at batch 4; given: (0\.\d+)\.", text)[0])
    assert used < shown and shown == pytest.approx(needed, abs=1e-3) and used == pytest.approx(needed - 1e-4, abs=1e-3)


@pytest.mark.parametrize(
    ("load", "complaint"),
    [
        ({"concurrency": 4}, "--concurrency needs --isl and --osl"),
        ({"concurrency": 4, "qps": 1.0, "isl": 8, "osl": 8}, "give one load"),
        ({"isl": 8, "osl": 8}, "add --concurrency or --qps"),
        ({"range_ratio": 0.2}, "add --concurrency or --qps"),
        ({"concurrency": 4, "isl": 8, "osl": 8, "range_ratio": 1.0}, "range_ratio must be below 1, got 1"),
        ({"concurrency": 4, "isl": 8, "osl": 8, "batch": "4"}, "leave out --batch"),
        ({"tpot_slo": 9.0}, "--tpot-slo needs a load"),
        ({"concurrency": 4, "isl": 8, "osl": 8, "at_batch": 4}, "leave out --batch, --at-batch"),
        ({"concurrency": 4, "isl": 8, "osl": 8, "prefix_hit": 1.0}, "prefix_hit"),
    ],
)
def test_half_a_load_is_refused(load: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        planned("llama-3.1-8b", "h200", 1, "tp", **load)


def test_requests_of_one_token_have_no_time_between_tokens() -> None:
    service = planned("llama-3.1-8b", "h200", 1, "tp", qps=2.0, isl=64, osl=1).service
    assert service.speedup == 1.0


def test_requests_of_one_token_are_left_out_of_the_time_between_tokens() -> None:
    service = planned("llama-3.1-8b", "h200", 1, "tp", qps=2.0, isl=64, osl=2).service  # 1 to 3 tokens
    equal = planned("llama-3.1-8b", "h200", 1, "tp", qps=2.0, isl=64, osl=2, range_ratio=0).service
    assert service.plain.tpot_seconds == pytest.approx(equal.plain.tpot_seconds, rel=0.1)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("load", [{"qps": 8.0}, {"concurrency": 48}], ids=["rate", "users"])
def test_decode_rows_are_the_batches_of_the_service(engine: str, load: dict[str, object]) -> None:
    plan = planned("qwen3-30b-a3b", "h200", 1, "tp", engine=engine, isl=1024, osl=300, **load)
    assert plan.service is not None
    sides = {round(plan.service.plain.sequences), round(plan.service.speculating.sequences)}
    assert {row.batch for row in plan.plan.rows} == sides


@pytest.mark.parametrize("qps", [0.5, 5.0, 20.0])
def test_no_more_tokens_are_delivered_than_arrive(qps: float) -> None:
    """Drawn arrivals and lengths differ from their means by chance: 6,174 of 6,000 tokens per second were reported."""
    service = planned("qwen3-30b-a3b", "h200", 1, "tp", qps=qps, isl=1024, osl=300).service
    assert service is not None
    for side in (service.plain, service.speculating):
        assert 0.9 * qps * 300 < side.tokens_per_second <= qps * 300


def test_a_service_that_does_not_keep_up_delivers_less_than_arrives() -> None:
    request = {"model": "qwen3-30b-a3b", "gpu": "h200", "prices": "laws", "qps": 200.0, "isl": 64, "osl": 300}
    pricer = Pricer(scenario_of(read_request(PlanRequest, request))[1])
    load = service_load(read_request(PlanRequest, request), pricer.scenario)
    assert load is not None
    assert service(pricer, load, Schedule.fixed(0, last=1)).plain.tokens_per_second < 0.8 * 200 * 300


def test_a_price_shows_what_a_million_tokens_cost_on_both_sides() -> None:
    load = ("--gpu", "h200", "--prices", "laws", "--concurrency", "8", "--isl", "256", "--osl", "64")
    asked = ("plan", "qwen3.6-35b-a3b", *load, "--gpus", "2", "--gpu-hour-price", "3")
    service = json.loads(run(*asked, "--json").out)["service"]
    text = run(*asked).out
    for side in ("plain", "speculating"):
        cost = service[side]["cost_per_million_tokens"]
        assert cost == pytest.approx(2 * 3 / 3600 * 1e6 / service[side]["tokens_per_second"])
        assert f" {cost:.3f}\n" in text
    assert max(map(len, text.partition("flags (for")[0].splitlines())) <= 80


@pytest.mark.parametrize(
    ("target", "said"),
    [("1000", "met with these flags (_) and without (_)"), ("0.1", "missed with these flags (_) and")],
)
def test_a_target_is_judged_on_both_sides(target: str, said: str) -> None:
    load = ("--qps", "1", "--isl", "256", "--osl", "64", "--tpot-slo", target)
    text = run("plan", "llama-3.1-8b", "--gpu", "h200", "--prices", "laws", *load).out
    (line,) = (line for line in text.splitlines() if line.startswith("target of"))
    assert said in re.sub(r"[0-9.]+ ms\)", "_)", line)
