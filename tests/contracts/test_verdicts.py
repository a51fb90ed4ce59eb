"""The verdicts of all bundled models on three GPUs: read in a hurry, in 80 columns."""

from __future__ import annotations

import pytest

from specmargin.answers.scenarios import scenarios_of
from specmargin.catalog.lookup import model_names
from specmargin.decisions.advice import Advice
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ParallelismError
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plan, drafter_plans
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.values import answer_text, plan_values
from tests.matrix import fewest_gpus
from tests.verdict_form import form_faults

GPUS = {"h200": "vllm", "rtx-pro-6000": "vllm", "m4-max": "llamacpp"}


def planned(model: str, gpu: str) -> DrafterPlan | None:
    """None where the model does not fit."""
    try:
        gpus = fewest_gpus(model, gpu, "tp")
    except ParallelismError:
        return None
    if gpu == "m4-max" and gpus > 1:
        return None
    request = PlanRequest(model=model, gpu=gpu, gpus=gpus, engine=GPUS[gpu], prices=None if gpu == "m4-max" else "laws")
    ((choice, scenario),) = scenarios_of(request)
    return drafter_plan(choice, Pricer(scenario), request)


def test_every_verdict_can_be_read_in_a_hurry() -> None:
    seen, wrong = set(), []
    for model in model_names():
        for gpu in GPUS:
            answer = planned(model, gpu)
            if answer is not None:
                seen.add(answer.advice)
                wrong += [f"{model} on {gpu}: {fault}" for fault in form_faults(answer_text(answer), answer.advice)]
    assert wrong == []
    assert {Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN, Advice.DO_NOT} <= seen


_YES = "Yes: 1.50× as fast at batch 1 with mtp, likely 1.20–1.80×."


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("does not answer", "Speculate: it is 1.50× as fast at batch 1."),
        ("does not answer", _YES.replace("Yes", "Uncertain")),
        (
            "5 lines",
            f"{_YES}\nDraft: nothing.\nPays at batch 1.\nPrefill takes 9%.\nPays at batch 2.",
        ),
        ("too long", f"{_YES.replace('mtp', 'm' * 400)}"),
        ("no known shape", f"{_YES}\nDraft: 4 tokens (a (b))."),
        ("no known shape", f"{_YES}\nIt loses at batch 9, where drafting is off."),
        ("twice", f"{_YES}\nDraft: nothing.\nDraft: nothing."),
    ],
)
def test_the_check_can_fail(fault: str, text: str) -> None:
    assert any(fault in each for each in form_faults(text, Advice.SPECULATE))


def test_fewer_sequences_lead_where_they_lower_the_peak() -> None:
    """A model with recurrent states: the headline is not a plain yes, and the sequences come next."""
    (answer,) = drafter_plans(PlanRequest(model="nemotron-3-super-120b-a12b", gpu="h200", prices="laws"))
    first, second, *_ = answer_text(answer).splitlines()
    plan = answer.plan
    assert answer.advice is Advice.UP_TO_BATCH and plan.largest_batch == 1
    assert first == f"Only if 1 sequence at a time is enough: {plan.no_spec_largest_batch} fit without drafts."
    assert second.startswith("Estimate: ")
    peaks = plan.peak_tokens_per_second, plan.no_spec_peak_tokens_per_second
    assert peaks[0] < peaks[1]
    said = plan_values([answer])["verdict_details"]
    assert f"Peak throughput: {peaks[0]:,.0f} tok/s with drafts, {peaks[1]:,.0f} tok/s without." in said


def test_the_depth_is_that_of_the_batch_asked_for() -> None:
    (answer,) = drafter_plans(PlanRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", batch=(16,)))
    row = answer.plan.rows[0]
    lines = answer_text(answer).splitlines()
    assert f"Draft: {row.depth} tokens at batch 16." in lines
    (acceptance,) = [line for line in lines if line.startswith("Pays above")]
    assert acceptance.startswith(f"Pays above an acceptance of {row.break_even_acceptance:.2f} per token at batch 16; ")


def test_where_nothing_pays_the_best_draft_is_told_with_its_range() -> None:
    request = PlanRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter="mtp", acceptance="0.05")
    (answer,) = drafter_plans(request)
    values = plan_values([answer])
    said = values["headline"]
    assert values["advice"] == "do-not-speculate" and values["config"] == ""
    assert said["depth"] >= 1 and said["speedup_low"] < said["speedup"] < 1.0
    assert list(form_faults(values["verdict"], answer.advice)) == []
    best = answer.plan.pricer.grid([row.batch for row in answer.plan.rows if row.fits], 8).speedup[:, 1:].max()
    assert said["speedup"] == pytest.approx(best)


def test_memory_is_named_only_where_it_sets_the_limit() -> None:
    """Where larger batches lose anyway, how many would fit decides nothing."""
    (answer,) = drafter_plans(PlanRequest(model="deepseek-v4-flash", gpu="rtx-pro-6000", gpus=2, prices="laws"))
    assert answer.plan.loses_capacity and answer.plan.limit is not None
    assert answer.plan.limit < answer.plan.largest_batch
    text = answer_text(answer)
    assert text.startswith(f"Yes, up to batch {answer.plan.limit}: ") and " fit without drafts" not in text
    assert any(fact.startswith("Fits in memory: ") for fact in plan_values([answer])["verdict_details"])
