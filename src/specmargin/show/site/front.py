"""The front table of a site: one page per engine and drafter, the first of them at the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlencode

from specmargin.catalog.lookup import find_device, named_model
from specmargin.formats import find_engine
from specmargin.prices.kernels import store
from specmargin.show.explorer.front import Front, FrontCell, Row, cell_from
from specmargin.show.explorer.front_page import basis, drafter_word, front_page
from specmargin.show.site.build import BuiltCell, Selection, drafters_of

#: A scenario in the root's address, as links had it before the table was there, leads to the explorer.
_REDIRECT = '<script src="static/root.js"></script>\n</head>'


def front_pages(
    selection: Selection, models: Sequence[str], outcomes: Sequence[BuiltCell]
) -> Iterator[tuple[str, str]]:
    """Folders of the site and the pages there."""
    first = selection.engines[0], selection.drafters[0]

    def path(engine: str, drafter: str) -> str:
        return "" if (engine, drafter) == first else f"table/{engine}-{drafter}"

    for engine in selection.engines:
        for drafter in selection.drafters:
            engines = [
                (find_engine(name).title, f"{path(name, drafter) or '.'}/", name == engine)
                for name in selection.engines
            ]
            drafters = [
                (drafter_word(name), f"{path(engine, name) or '.'}/", name == drafter) for name in selection.drafters
            ]
            front = _front(selection, models, outcomes, engine, drafter)
            page = front_page(front, engines, drafters, basis("tables" if store.available() else "laws"))
            at = path(engine, drafter)
            yield at, page if at else page.replace("</head>", _REDIRECT)


def _front(
    selection: Selection, models: Sequence[str], outcomes: Sequence[BuiltCell], engine: str, drafter: str
) -> Front:
    def link(model: str, gpu: str, cell: FrontCell) -> str:
        fields = {"gpu": gpu, "engine": engine} | (
            {} if drafter == selection.drafters[0] else {"drafter": cell.drafter}
        )
        return f"{quote(model)}/?{urlencode(fields)}"

    here = [outcome for outcome in outcomes if outcome.engine == engine]
    return Front(
        engine=engine,
        drafter=drafter,
        gpus=[(name, find_device(name).title) for name in selection.gpus],
        rows=[_row(model, drafter, [outcome for outcome in here if outcome.model == model]) for model in models],
        link=link,
    )


def _row(model: str, drafter: str, outcomes: Sequence[BuiltCell]) -> Row:
    target, kind = named_model(model), drafters_of(model, (drafter,))[0]
    cells = {}
    for outcome in outcomes:
        if outcome.refused is not None:
            cells[outcome.gpu] = FrontCell(refused=outcome.refused)
        elif kind in outcome.front:
            cells[outcome.gpu] = cell_from(outcome.front[kind])
    return Row(
        model=model,
        billions=round(target.parameters / 1e9, 1),
        experts=target.pools[0].experts if target.pools else None,
        cells=cells,
    )
