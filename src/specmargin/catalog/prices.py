"""From `--prices` to a price model: the datasheet, the bundled laws, or the measured tables."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from specmargin.errors import CatalogError, nearest_names
from specmargin.hardware.device import Device
from specmargin.prices.model import PriceModel
from specmargin.prices.roofline import Roofline, RooflineForm
from specmargin.prices.silicon import store
from specmargin.prices.silicon.book import LawBook
from specmargin.prices.silicon.model import Refinement, SiliconPrices

KINDS = ("datasheet", "laws", "tables")


@cache
def _laws() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((files("specmargin.catalog") / "laws.json").read_text(encoding="utf-8"))
    return values


def law_book(device: Device) -> LawBook | None:
    book = LawBook.from_json(device.name, _laws())
    return book if book.laws else None


def find_prices(spec: str | None, device: Device, engine: str, form: RooflineForm) -> PriceModel:
    """None: the best there is for this device. A roofline has a form; measured prices are always by component."""
    datasheet = Roofline(device=device, form=form)
    if spec is not None and spec not in KINDS:
        raise CatalogError(f"unknown prices {spec!r}{nearest_names(spec, KINDS)}; known: {', '.join(KINDS)}")
    if spec == "datasheet" or form is not RooflineForm.PER_COMPONENT:
        return datasheet
    book = law_book(device)
    if book is None:
        if spec is None:
            return datasheet
        raise CatalogError(f"there are no measured laws for {device.name}; use --prices datasheet")
    if spec == "tables" or (spec is None and store.available()):
        refinement = _refinement(device)
        return SiliconPrices(name="tables", engine=engine, book=book, fallback=datasheet, refinement=refinement)
    return SiliconPrices(name="laws", engine=engine, book=book, fallback=datasheet)


@cache
def _refinement_of(system: str, bandwidth: float) -> Refinement:
    from specmargin.prices.silicon.tables import TableRefinement  # noqa: PLC0415 (Polars is an extra)

    return TableRefinement(system=system, bandwidth=bandwidth)


def _refinement(device: Device) -> Refinement:
    store.data_folder()  # says what to install where the tables are missing
    return _refinement_of(store.SYSTEMS[device.name], device.bandwidth_bytes_per_second)
