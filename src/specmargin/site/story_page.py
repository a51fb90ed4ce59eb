"""The story as a static page: its paragraphs and figures for the site's first model."""

from __future__ import annotations

import html
from collections.abc import Iterator

from specmargin.app.verbs_schema import ReportRequest
from specmargin.explorer import story
from specmargin.explorer.gallery import DoesNotApplyError, figure
from specmargin.explorer.view import View
from specmargin.figures.files import rendered
from specmargin.figures.theme import DARK, LIGHT
from specmargin.site.building import Outcome


def story_files(page: str, cell: Outcome) -> dict[str, bytes]:
    """By path in the folder of the story: the page, and each figure in both themes. `page`: the explorer's."""
    request = ReportRequest(model=cell.model, gpu=cell.gpu, gpus=cell.gpus, engine=cell.engine)
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
    for theme in (LIGHT, DARK):
        yield f"{name}-{theme.name}.svg", str(rendered(shown.chart(theme), "svg")).encode()


def _figure(name: str, view: View) -> str:
    shown = figure(name, view)
    label = _text(f"{shown.title}. {shown.takeaway}")
    images = "".join(
        f'<img class="{theme.name}" src="story/{name}-{theme.name}.svg" alt="{label}" loading="lazy">'
        for theme in (LIGHT, DARK)
    )
    return f'<figure class="figure drawn">{images}</figure>'


def _page(page: str, body: str) -> str:
    """The explorer's page without its script and its controls."""
    start, end = page.index('<p class="lead"'), page.index("</main>")
    text = page[:start] + body + page[end:]
    return "".join(line for line in text.splitlines(keepends=True) if "story.js" not in line)


def _text(value: object) -> str:
    return html.escape(str(value))
