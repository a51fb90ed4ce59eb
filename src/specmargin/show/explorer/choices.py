"""Options of the page's controls, and the numbers shown next to them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from specmargin.architecture.types import Architecture
from specmargin.caches import made_once
from specmargin.catalog.drafter_titles import drafter_titles
from specmargin.catalog.drafters import acceptance_names, available_kinds
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.gpu_hours import gpu_hour
from specmargin.catalog.lookup import usable_devices, usable_models
from specmargin.catalog.prices import KINDS as PRICES
from specmargin.catalog.prices import law_book
from specmargin.catalog.routing_profiles import BUNDLED, bundled_categories
from specmargin.catalog.user import user_files
from specmargin.errors import InputError, ParallelismError
from specmargin.formats import ENGINES
from specmargin.hardware.device import Device
from specmargin.modes import DRAFTERS, Parallel
from specmargin.prices.kernels import store
from specmargin.show.explorer.gallery import GALLERY, absent_figures
from specmargin.show.explorer.schema import KV_CACHES, WEIGHTS
from specmargin.show.explorer.view import View, pricer_of
from specmargin.show.explorer.words import size
from specmargin.show.figures.overlay import OVERLAYS
from specmargin.show.figures.theme import THEMES, config
from specmargin.verbs.plan.commands import check_json
from specmargin.verbs.plan.values import row_values

#: What this provider of answers can do; `fields`: those with a control, None for all.
CAN = {
    "uploads": True,
    "report": True,
    "json": True,
    "files": True,
    "story": True,
    "compare": True,
    "previews": True,
    "fields": None,
}


@made_once(maxsize=1)
def catalog() -> dict[str, Any]:
    return {
        "models": [_model(model) for model in usable_models()],
        "gpus": [_gpu(device) for device in usable_devices()],
        "engines": [{"name": name, "title": engine.title} for name, engine in ENGINES.items()],
        "parallel": [str(kind) for kind in Parallel],
        "prices": [kind for kind in PRICES if kind != "tables" or store.available()],
        "drafters": [*(kind.name for kind in DRAFTERS.values() if not kind.needs_detail), *user_files("drafter")],
        "acceptance": list(acceptance_names()),
        "weights": list(WEIGHTS),
        "kv_cache": list(KV_CACHES),
        "routing": [{"name": name, "categories": bundled_categories(name)} for name in BUNDLED],
        "figures": [
            *(
                {"name": name, "title": overlay.title, "section": "Compared", "compare": True}
                for name, overlay in OVERLAYS.items()
            ),
            *(
                {"name": e.name, "title": e.title, "section": e.section, "slow": e.slow, "wait": e.wait}
                for e in GALLERY.values()
            ),
        ],
        "themes": {name: config(theme) for name, theme in THEMES.items()},
        "can": CAN,
    }


def _model(architecture: Architecture) -> dict[str, Any]:
    pools = architecture.pools
    return {
        "name": architecture.name,
        "size": size(architecture.parameters),
        "experts": pools[0].experts if pools else None,
        "experts_per_token": pools[0].experts_per_token if pools else None,
        "mtp": architecture.draft_head is not None,
        "max_context": architecture.max_context,
    }


def _gpu(device: Device) -> dict[str, Any]:
    hour = gpu_hour(device.name)
    return {
        "name": device.name,
        "title": device.title,
        "gigabytes": round(device.memory_bytes / 1e9),
        "measured": law_book(device) is not None,
        "engines": engines_of(device),
        "gpu_hour": None if hour is None else asdict(hour),
    }


def marked_row(view: View) -> dict[str, Any]:
    """The plan at the marked batch, with the keys of its rows, and the model's limits for the controls."""
    scenario, (row, sure) = view.scenario, view.row_and_range
    architecture = scenario.architecture
    return row_values(row, view.answer.gpu_hour_price) | {
        "speedup_low": sure.low,
        "speedup_high": sure.high,
        "check": check_json(view.answer, row, sure),
        "absent": absent_figures(view),
        "next_token": next_tokens(view)[-1],
        "next_token_by_row": next_tokens(view)[:-1],
        "experts": architecture.pools[0].experts if architecture.pools else None,
        "survival": [round(float(value), 4) for value in scenario.survival.up_to(max(view.max_depth, 1))],
        "drafter": scenario.drafter.name,
        "drafters": available_kinds(architecture),
        "drafter_titles": drafter_titles(architecture, view.choice),
        "moe_layers": sum(group.count for group, _ in architecture.expert_groups),
        "max_context": architecture.max_context,
        "prices": scenario.prices.name,
        "routing": scenario.routing.name if architecture.is_moe else None,
    }


def next_tokens(view: View) -> list[dict[str, Any]]:
    """What one more draft token would add to goodput, drafting included, by row of the plan and at the marked batch."""
    price = view.next_tokens
    columns = (price.batches.tolist(), price.survival.tolist(), price.gain_in_graphs.tolist())
    return [
        {"batch": batch, "survival": survival, "gain": gain} for batch, survival, gain in zip(*columns, strict=True)
    ]


def enough_gpus(view: View, error: InputError) -> int | None:
    """The smallest common number of GPUs that fits the scenario, if the error is too few GPUs."""
    if not isinstance(error, ParallelismError):
        return None
    for gpus in (2, 4, 8, 16, 32):
        if gpus <= view.plan_request.gpus:
            continue
        try:
            pricer_of(view.plan_request.scenario_only().model_copy(update={"gpus": gpus}))
        except InputError:
            continue
        return gpus
    return None
