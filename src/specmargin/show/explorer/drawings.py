"""Figures as HTML without scripts: drawn once for both themes, in colours that a style sheet turns dark."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from specmargin.show.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.show.explorer.view import View
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.svg import drawers
from specmargin.show.figures.theme import DARK, DARK_OF, LIGHT, PAIRED

_SCALES = ('"heatmap"', '"diverging"')  # between the colours of a scale, no style sheet can tell dark from light
# The first simulation loads compiled code, for which other Python code need not wait: it has a thread of its own, and
# the figure that needs the same code comes last.
_LOADS, _WAITS = "day", "policies"
_Drawing = tuple[Figure, Future[str], Future[str] | None]


def drawings(
    names: Sequence[str], view: View, *, heading: str, advance: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """By name; "" where one does not apply. Figures are computed here while others are drawn in other processes.

    `heading`: the element of a title. `advance` is called after each figure, in any thread.
    """
    order = sorted(names, key=lambda name: (name != _LOADS, name == _WAITS, GALLERY[name].slow))
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="figure") as threads:
        begun = dict(zip(order, threads.map(lambda name: _begun(name, view, advance), order), strict=True))
        found = ((name, begun[name]) for name in names)
        return {name: "" if drawing is None else _drawn(*drawing, heading) for name, drawing in found}


def dark_rules(scope: str = "") -> str:
    """Style rules that turn drawings dark inside `scope`, a selector; the few that are drawn twice are switched."""
    recoloured = (
        f'{scope}.both [{attribute}="{light}"]{{{attribute}:{dark}}}'
        for light, dark in DARK_OF.items()
        for attribute in ("fill", "stroke")
    )
    return f"{scope}.light{{display:none}}{scope}.dark{{display:block!important}}{''.join(recoloured)}"


def _begun(name: str, view: View, advance: Callable[[], None]) -> _Drawing | None:
    """A figure, and its drawings: one for both themes, or one for each if it has a continuous scale of colours."""
    try:
        shown = figure(name, view)
    except DoesNotApplyError:
        advance()
        return None
    draw = drawers().draw
    if any(scale in json.dumps(shown.structure) for scale in _SCALES):
        return shown, draw(shown.drawing(LIGHT)), draw(shown.drawing(DARK), drawn=advance)
    return shown, draw(shown.drawing(PAIRED), drawn=advance), None


def _drawn(shown: Figure, light: Future[str], dark: Future[str] | None, heading: str) -> str:
    themes = {"both": light} if dark is None else {"light": light, "dark": dark}
    svgs = "".join(
        f'<div class="{theme}">{_svg(drawing.result(), f"{shown.name}-{theme}-")}</div>'
        for theme, drawing in themes.items()
    )
    title, takeaway, source = (html.escape(text) for text in (shown.title, shown.takeaway, shown.source))
    return (
        f'<figure class="figure"><{heading}>{title}</{heading}><p class="takeaway">{takeaway}</p>'
        f'<div class="drawing" role="img" aria-label="{title}. {takeaway}">{svgs}</div>'
        f"<figcaption>Source: {source}</figcaption></figure>"
    )


def _svg(text: str, prefix: str) -> str:
    """Ids get a prefix per drawing, because drawings in one page must not share them."""
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', text)
