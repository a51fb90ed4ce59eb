"""Several scenarios side by side: their names, and the alternatives that one click adds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from specmargin.catalog.drafters import available_kinds
from specmargin.catalog.lookup import device_names, named_device
from specmargin.catalog.prices import law_book
from specmargin.decisions.plan import Plan
from specmargin.errors import InputError
from specmargin.modes import DRAFTERS
from specmargin.show.explorer.gallery import DoesNotApplyError
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.view import View
from specmargin.show.explorer.words import title
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.overlay import overlay_figure

Alternatives = Literal["drafter", "gpu"]
_PLAIN = ("model", "engine", "parallel", "weights", "kv_cache", "prices")  # values that speak for themselves


def overlay(name: str, views: Sequence[View], names: Sequence[str]) -> Figure:
    """All scenarios as series of one chart; those that cannot be priced are left out."""
    sides: list[tuple[str, Plan]] = []
    for view, label in zip(views, names, strict=True):
        with suppress(InputError):
            sides.append((label, view.answer.plan))
    if not sides:
        raise DoesNotApplyError("none of the compared scenarios can be priced")
    return overlay_figure(name, sides, batch=views[0].batch)


def labels(queries: Sequence[Query], drafters: Sequence[str | None]) -> list[str]:
    """What distinguishes each scenario from the others: `8 × b200, eagle`. `drafters`: as priced, if it was."""
    parts = [_parts(query, drafter) for query, drafter in zip(queries, drafters, strict=True)]
    differing = [name for name in parts[0] if len({part[name] for part in parts}) > 1]
    shown = differing or ["model", "gpu"]
    texts = [", ".join(part[name] for name in shown if part[name]) or "defaults" for part in parts]
    return [text if texts.index(text) == i else f"{text} ({i + 1})" for i, text in enumerate(texts)]


def _parts(query: Query, drafter: str | None) -> dict[str, str]:
    """Every field as text, in the order in which a name lists them."""
    gpu = query.gpu if query.gpus == 1 else f"{query.gpus} × {query.gpu}"
    model = "dropped model" if query.model.startswith("upload:") else query.model
    first = {"model": model, "gpu": gpu, "engine": query.engine or "", "drafter": drafter or query.drafter or ""}
    rest = {name: _text(query, name) for name in Query.model_fields if name not in (*first, "gpus", "layer")}
    return first | rest


def _text(query: Query, name: str) -> str:
    value = getattr(query, name)
    if value is None:
        return ""
    text = "dropped file" if str(value).startswith("upload:") else f"{value:g}" if isinstance(value, float) else value
    return str(text) if name in _PLAIN else f"{title(name)} {text}"


def alternatives(view: View, field: Alternatives) -> list[str]:
    """Values of the field that can be priced in this scenario."""
    if field == "drafter":
        return [kind for kind in available_kinds(view.scenario.architecture) if _is_real(kind)]
    fitting = [name for name in device_names() if _fits(view, name)]
    return sorted(fitting, key=lambda name: law_book(named_device(name)) is None)  # those with measured kernels first


def _is_real(kind: str) -> bool:
    """Drafters that `plan --drafter all` ranks."""
    return DRAFTERS[kind].ranked


def _fits(view: View, gpu: str) -> bool:
    """Whether the model and the marked batch fit, with the drafts of its flags, and prices of the chosen kind exist."""
    try:
        return replace(view, request=view.request.model_copy(update={"gpu": gpu})).row.fits
    except InputError:
        return False
