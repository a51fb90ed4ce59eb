"""What a link shows where it is pasted, and the view that others may frame: both name the question."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request

from specmargin.errors import InputError
from specmargin.show.explorer.card import Card, CardRow, meta_tags, retitled
from specmargin.show.explorer.question import load, model, place, question
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.view import View
from specmargin.show.explorer.words import page_words

_TEXT = "Speed-up of speculative decoding with its range, draft depth by batch, and the engine's flags."


def previewed(page: str, request: Request) -> str:
    """With the question of the address as title and preview. Nothing is priced for it, so the page does not wait."""
    given = {name: value for name, value in request.query_params.items() if name in Query.model_fields and value}
    try:
        query = Query.model_validate(given)
    except ValueError:
        return page  # the page itself says what is wrong
    base, text, asked = request.base_url, address(query), question(query)
    return retitled(page, asked, meta_tags(asked, _TEXT, f"{base}card.png?{text}", f"{base}?{text}"))


def address(query: Query) -> str:
    """The scenario in the page's address: fields that differ from their defaults."""
    fields = query.model_dump(mode="json", include=set(Query.model_fields), exclude_defaults=True, exclude_none=True)
    return urlencode(fields)


def framed(page: str) -> str:
    """The same page without its controls: its style sheet leaves the question and the answer."""
    return page.replace("<body>", '<body class="embed">')


def card_of(query: Query, view: View) -> Card:
    name, scenario = model(query), f"on {place(query)} {load(query)}"
    try:
        rows = {row.batch: row for row in (*view.answer.plan.rows, view.row) if row.fits}
        line = str(view.plan["verdict"]).partition("\n")[0]
    except InputError as error:
        return Card(model=name, scenario=scenario, line=f"No answer: {page_words(str(error))}")
    bars = [CardRow(batch, rows[batch].depth, rows[batch].speedup) for batch in sorted(rows)]
    return Card(model=name, scenario=scenario, line=line, rows=bars, marked=view.batch)
