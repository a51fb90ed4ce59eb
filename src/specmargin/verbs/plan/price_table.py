"""`plan --sps-table FILE`: the plan's prices as SGLang's DSpark reads them, and the setting that uses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specmargin.answers.scenarios import engine_of
from specmargin.decisions.additive import fit_additive
from specmargin.errors import ScenarioError
from specmargin.files import write_text
from specmargin.formats import dspark
from specmargin.formats.base import EngineConfig
from specmargin.verbs.plan.drafter_plan import MAX_NUM_SEQS, DrafterPlan
from specmargin.verbs.plan.request_schema import PlanRequest


def check_price_table(request: PlanRequest) -> None:
    """Before anything is priced: only SGLang's DSpark reads such a table."""
    kind = (request.drafter or "").partition(":")[0].lower()
    if engine_of(request).name != "sglang" or kind != "dspark":
        raise ScenarioError("--sps-table is for SGLang's DSpark alone: add --engine sglang --drafter dspark")


def write_price_table(path: Path, best: DrafterPlan, *, force: bool) -> tuple[EngineConfig, str]:
    """Write the file; returns the setting with the table's flag, and a message for the user."""
    pricer, depth = best.plan.pricer, best.plan.setting.max_depth
    ranks = pricer.scenario.layout.sequence_ranks
    largest = best.request.max_batch or max(min(pricer.largest_batch(depth), MAX_NUM_SEQS), 1)
    fit = fit_additive(pricer, max_batch=max(largest // ranks, 1), depth=depth)
    write_text(path, dspark.price_table_text(fit.prices), force=force)
    lines = [
        f"{path}, prices of up to {fit.prices.batches[-1]} sequences{' per rank' if ranks > 1 else ''}:",
        f"{dspark.fit_text(fit)}",
    ]
    if fit.median_error > dspark.MEDIAN_LIMIT:
        lines.append("(warning: these prices are far from a sum of parts; profile the server instead)")
    text = f"{best.config.text} {dspark.price_table_flag(path)}" if best.config.text else ""
    limits = (f"environment: {dspark.ENVIRONMENT}, else the table is ignored",) if text else ()
    notes = (*best.config.notes, f"price table: {dspark.fit_text(fit)}")
    config = replace(best.config, text=text, limits=limits, notes=notes)
    return config, "\n".join(lines)
