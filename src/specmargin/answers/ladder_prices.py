"""Prices at which `profile acceptance` replays the ladder of policies."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.modes import RooflineForm
from specmargin.policies.kernel.prices import PriceTable
from specmargin.policies.study.ladder import CONCURRENCIES
from specmargin.policies.tables import profiled_seconds, scenario_table, study_table
from specmargin.prices.work import Scope
from specmargin.step import FloatArray


class LadderPrices(StrEnum):
    STUDY_BLOCK = "study-block"
    STUDY_PASSES = "study-passes"
    REAL = "real"
    POST = "post"


PRICE_TITLES = {
    LadderPrices.STUDY_BLOCK: "study prices, block head",
    LadderPrices.STUDY_PASSES: "study prices, autoregressive head, early stop",
    LadderPrices.REAL: "Qwen3.6-35B-A3B on H200, MTP, vLLM, measured laws, its routing",
    LadderPrices.POST: "published post's assumptions, B200 roofline, one max per step, uniform routing",
}


def price_table(prices: LadderPrices) -> tuple[PriceTable, FloatArray | None]:
    """And verify seconds by positions as vLLM profiles them; None: the study's prices know no context."""
    match prices:
        case LadderPrices.STUDY_BLOCK:
            return study_table(by_pass=False), None
        case LadderPrices.STUDY_PASSES:
            return study_table(by_pass=True), None
        case LadderPrices.REAL:
            request = ScenarioRequest(model="qwen3.6-35b-a3b", gpu="h200", prices="laws", drafter="mtp")
        case LadderPrices.POST:
            request = ScenarioRequest(
                model="qwen3.6-35b-a3b",
                gpu="b200",
                prices="datasheet",
                form=RooflineForm.WHOLE_STEP,
                drafter="mtp",
                routing="uniform-with-replacement",
                context=512,
            )
        case _:
            assert_never(prices)
    _, scenario = scenario_of(request)
    if prices is LadderPrices.POST:
        scenario = replace(scenario, scope=Scope(sampling=False, state_writes=False, draft_catch_up=False))
    pricer, most = Pricer(scenario).with_every_graph(), max(CONCURRENCIES)
    table = scenario_table(pricer, Setting(max_depth=8), max_batch=most)
    return table, profiled_seconds(pricer, max_batch=most, max_depth=8)
