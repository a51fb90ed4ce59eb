"""The front table as HTML: a plain table without scripts; `static/table.js` adds filters and sorting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Literal
from urllib.parse import urlencode

from specmargin.formats import ENGINES
from specmargin.show.explorer.front import BATCHES, Front, FrontCell, Mark, Row, bundled, bundled_front
from specmargin.show.explorer.words import size

_WORDS = {"uncertain": "uncertain", "off": "off", "full": "no room", "unsupported": "not run"}
_LEVELS = (1.25, 1.6, 2.0)  # speed-ups at which the blue gets deeper
#: By kind of prices; also in `static/answer.js`.
_PRICES = {"laws": "laws fitted to measured kernels", "tables": "tables of measured kernels"}
Switch = tuple[str, str, bool]  # shown, address, whether it is this page's


def bundled_page(engine: str, drafter: str) -> str:
    """Of the local server: switches are links to the same page."""
    data, front = bundled(), bundled_front(engine, drafter)
    engines = [
        (ENGINES[name].title, f"table?{urlencode({'engine': name, 'drafter': drafter})}", name == engine)
        for name in data["engines"]
    ]
    drafters = [
        (drafter_word(name), f"table?{urlencode({'engine': engine, 'drafter': name})}", name == drafter)
        for name in data["drafters"]
    ]
    return front_page(front, engines, drafters, basis("laws"))


def basis(prices: Literal["laws", "tables"]) -> str:
    """What all cells have in common, above them."""
    return (
        f"Context 1,024. Prices: {_PRICES[prices]}; for GPUs without any, laws scaled from the nearest measured GPU, "
        "or the datasheet. Acceptance is of benchmarks, borrowed from another model where a model has none. Weights as "
        "published, on the fewest GPUs with room for 32 sequences of 4,096 tokens. A model without a head of its own "
        "needs an EAGLE-3 head."
    )


def drafter_word(name: str) -> str:
    return {"own": "the model's own, or EAGLE-3", "ngram": "n-gram"}.get(name, name)


def front_page(front: Front, engines: Sequence[Switch], drafters: Sequence[Switch], note: str) -> str:
    page = (files("specmargin.show.explorer") / "static" / "table.html").read_text(encoding="utf-8")
    parts = {
        "<!--engines-->": "".join(map(_switch, engines)),
        "<!--drafters-->": "".join(map(_switch, drafters)),
        "<!--note-->": escape(note),
        "<!--table-->": "".join(_table(front)),
    }
    for place, text in parts.items():
        page = page.replace(place, text)
    return page


def _switch(switch: Switch) -> str:
    shown, address, here = switch
    return f'<a href="{escape(address)}"{" aria-current=true" if here else ""}>{escape(shown)}</a>'


def _table(front: Front) -> Iterator[str]:
    yield '<thead><tr><th scope="col" class="text" data-sort="model">Model</th>'
    for gpu, title in front.gpus:
        yield f'<th scope="col" data-gpu="{escape(gpu)}" data-sort="{escape(gpu)}" title="{escape(title)}">'
        yield f"{escape(gpu)}</th>"
    yield "</tr></thead><tbody>"
    for row in front.rows:
        kind = f"{row.experts} experts" if row.experts else "dense"
        yield f'<tr data-model="{escape(row.model)}" data-kind="{"moe" if row.experts else "dense"}">'
        yield f'<th scope="row" class="text" data-size="{row.billions:g}">{escape(row.model)}'
        yield f"<small>{size(row.billions * 1e9)}, {kind}</small></th>"
        for gpu, _ in front.gpus:
            yield from _cell(front, row, gpu)
        yield "</tr>"
    yield "</tbody>"


def _cell(front: Front, row: Row, gpu: str) -> Iterator[str]:
    cell = row.cells.get(gpu)
    start = f'<td data-gpu="{escape(gpu)}"'
    if cell is None:
        yield f'{start} class="none">–</td>'
        return
    if cell.refused is not None:
        yield f'{start} class="none" title="{escape(cell.refused)}">none</td>'
        return
    sorted_by = ",".join("" if mark.speedup is None else f"{mark.speedup:g}" for mark in cell.marks)
    yield f'{start} data-by="{sorted_by}"><a href="{escape(front.link(row.model, gpu, cell))}"'
    yield f' title="{escape(_whole(row.model, gpu, cell))}">'
    if cell.gpus > 1:
        yield f'<span class="count">{cell.gpus} GPUs</span>'
    for batch, mark in zip(BATCHES, cell.marks, strict=True):
        yield f'<b class="m b{batch} {mark.kind}{_level(mark)}"><i>{batch}</i> {_shown(mark)}</b>'
    yield f'<span class="stop">{_stop(cell)}</span></a></td>'


def _level(mark: Mark) -> str:
    if mark.kind != "pays" or mark.speedup is None:
        return ""
    return f" p{sum(mark.speedup >= level for level in _LEVELS)}"


def _shown(mark: Mark) -> str:
    return f"{mark.speedup:.2f}×" if mark.kind in ("pays", "loses") else _WORDS[mark.kind]


def _stop(cell: FrontCell) -> str:
    if cell.stops == 1:
        return "never pays"
    return f"pays to {cell.fits:,}" if cell.stops is None else f"stops at {cell.stops:,}"


def _whole(model: str, gpu: str, cell: FrontCell) -> str:
    """All of a cell in words, for hovering and for screen readers."""
    place = gpu if cell.gpus == 1 else f"{cell.gpus} × {gpu} (fewer do not fit)"
    parts = [f"{model} on {place}, {cell.drafter}"]
    for batch, mark in zip(BATCHES, cell.marks, strict=True):
        if mark.speedup is None:
            parts.append(f"batch {batch}: does not fit")
        else:
            parts.append(f"batch {batch}: {mark.speedup:.2f}×, 80% range {mark.low:.2f} to {mark.high:.2f}")
    return "; ".join([*parts, _stop(cell)])
