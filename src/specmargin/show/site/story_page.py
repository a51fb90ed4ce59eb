"""The story as a static page: its paragraphs and figures for the site's first model."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import product
from typing import Any

from specmargin.show.explorer import story
from specmargin.show.explorer.gallery import DoesNotApplyError, figure
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.view import View
from specmargin.show.figures.svg import drawers
from specmargin.show.figures.theme import DARK, LIGHT
from specmargin.show.site.build import BuiltCell

_SIZES = {"wide": (700, 380), "narrow": (470, 350)}  # pixels; a phone shows the narrow one at three quarters of that


def story_files(page: str, cell: BuiltCell) -> dict[str, bytes]:
    """By path in the folder of the story: the page, and each figure in both themes. `page`: the explorer's."""
    request = PageRequest(model=cell.model, gpu=cell.gpu, gpus=cell.gpus, engine=cell.engine)
    view = View(request=request)
    files: dict[str, bytes] = {}
    sections: list[str] = []
    for part in story.paragraphs(view):
        drawn = dict(_drawn(part.figure, view))
        files |= drawn
        shown = _figure(part.figure, view) if drawn else ""
        sections.append(
            f'<section id="part-{part.id}"><h2>{_text(part.heading)}</h2><p>{_text(part.text)}</p>{shown}</section>'
        )
    place = cell.gpu if cell.gpus == 1 else f"{cell.gpus} × {cell.gpu}"
    note = f"Numbers of {cell.model} on {place}, batch {request.batch}, context {request.context:,}."
    lead = story.LEAD.replace("which this page computes for your scenario", "shown here for one model")
    body = (
        f'<p class="lead">{_text(lead)}</p>\n<p class="quiet">{_text(note)}</p>\n'
        f'<div id="paragraphs">{"".join(sections)}</div>\n'
    )
    return {"index.html": _page(page, body).encode(), **files}


def _drawn(name: str, view: View) -> Iterator[tuple[str, bytes]]:
    try:
        shown = figure(name, view)
    except DoesNotApplyError:
        return
    wanted = list(product((LIGHT, DARK), _SIZES.items()))
    begun = [drawers().draw({**shown.drawing(theme), **_fitted(*size)}) for theme, (_, size) in wanted]
    for (theme, (size_name, _)), drawing in zip(wanted, begun, strict=True):
        yield f"{name}-{theme.name}-{size_name}.svg", drawing.result().encode()


def _fitted(width: int, height: int) -> dict[str, Any]:
    return {"width": width, "height": height, "autosize": {"type": "fit", "contains": "padding"}}


def _figure(name: str, view: View) -> str:
    shown = figure(name, view)
    images = "".join(
        f'<picture><source media="(max-width: 40rem)" srcset="story/{name}-{theme.name}-narrow.svg">'
        f'<img class="{theme.name}" src="story/{name}-{theme.name}-wide.svg" alt="{_text(shown.title)}" loading="lazy">'
        "</picture>"
        for theme in (LIGHT, DARK)
    )
    return (
        f'<figure class="figure drawn"><h3>{_text(shown.title)}</h3><p class="takeaway">{_text(shown.takeaway)}</p>'
        f"{images}<footer><p>Source: {_text(shown.source)}</p></footer></figure>"
    )


def _page(page: str, body: str) -> str:
    """The explorer's page without its script and its controls."""
    start, end = page.index('<p class="lead"'), page.index("</main>")
    text = page[:start] + body + page[end:]
    return "".join(line for line in text.splitlines(keepends=True) if "story.js" not in line)


def _text(value: object) -> str:
    return html.escape(str(value))
