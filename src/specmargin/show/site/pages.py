"""The pages of the site: those of the explorer, with answers from grids, a page and a preview card per model."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from specmargin._version import __version__
from specmargin.catalog.lookup import hub_id
from specmargin.catalog.measured_points import all_measured_points
from specmargin.decisions import verdict
from specmargin.decisions.plan import HORIZON
from specmargin.decisions.rows import ALWAYS_PAYS, NEVER_PAYS
from specmargin.errors import InputError
from specmargin.files import write_bytes
from specmargin.limits import MAX_BATCH
from specmargin.show.explorer import choices, story
from specmargin.show.explorer.card import Card, CardRow, card_png, meta_tags, retitled
from specmargin.show.explorer.drawings import dark_rules, drawings
from specmargin.show.explorer.previews import framed
from specmargin.show.explorer.report import answer
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.schema import Query
from specmargin.show.explorer.server import vega_bundle
from specmargin.show.explorer.view import View
from specmargin.show.figures import curve, overlay, pareto
from specmargin.show.site.build import BuiltCell, Selection, drafters_of
from specmargin.show.site.bundle import bundle, inlined, modules_of, without_modules
from specmargin.show.site.figures import FIGURES, structures
from specmargin.show.site.front import front_pages
from specmargin.show.site.grids import DEPTH
from specmargin.verbs.plan import plan
from specmargin.verbs.plan.drafter_plan import DEFAULT_BATCHES, MAX_NUM_SEQS
from specmargin.verbs.plan.request_schema import PlanRequest

#: Fields with a control: what the grids cover. The number of GPUs is that of the grid.
FIELDS = ("model", "gpu", "engine", "drafter", "acceptance", "batch", "context", "gpu_hour_price")
_FIXED = ("depth", "gpus")  # known without a control
_CAN = {
    "uploads": False,
    "report": False,
    "json": False,
    "files": False,
    "story": True,
    "compare": True,
    "previews": False,
}
_TITLE = "Specmargin: where speculation pays"
#: Charts wait for the first answer.
_LAZY = 'import { modules } from "../app.js";\nawait modules.api.firstAnswer;\nawait import("./vega-bundle.js");\n'
_NOT_HERE = ("report", "story")  # modules of the explorer: they need its server
#: Browsers load no module from a folder on disk: say so instead of an empty page.
_FROM_DISK = (
    '<script>if (location.protocol === "file:") addEventListener("DOMContentLoaded", () => {'
    ' document.querySelector("h1").textContent = "Open it through a web server: python -m http.server"; });</script>'
)
_NOSCRIPT = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)
_DARK_DRAWINGS = f"<style>{dark_rules(':root[data-theme=dark] ')}</style>"


def write_pages(folder: Path, selection: Selection, outcomes: Sequence[BuiltCell], url: str | None) -> None:
    """Everything but the grids. `url`: where the site will be, for the addresses of preview cards."""
    built = [outcome for outcome in outcomes if outcome.path is not None]
    if not built:
        raise InputError(f"no cell of this site can be priced: {outcomes[0].refused}")
    models = [name for name in selection.models if any(outcome.model == name for outcome in built)]
    _static(folder, selection, models)
    data = site_data(selection, models)
    for model in models:
        refused = {
            _cell(outcome): outcome.refused for outcome in outcomes if outcome.model == model and outcome.refused
        }
        _write(folder / "data" / model / "refused.json", _json(refused))
        best = next(outcome for outcome in built if outcome.model == model)
        card = _card(best, drafters_of(model, selection.drafters)[0])
        page = _with_data(_without_scripts(_text("index.html"), best), data | {"refused": {model: refused}})
        _write(folder / "cards" / f"{model}.png", card_png(card))
        title, text = f"Does speculation pay for {model} on {best.place}?", f"{model} {card.scenario}. {card.line}"
        _write(folder / model / "index.html", _page(page, model, title, text, model, url))
        if model == models[0]:
            text = f"{len(models)} models on {len(selection.gpus)} kinds of GPUs: speed-ups, depths and flags."
            _write(folder / "explore" / "index.html", _page(page, "explore", _TITLE, text, model, url))
            _write(folder / "embed" / "index.html", _page(framed(page), "embed", _TITLE, text, model, url))
            _write_story(folder, best, url)
    for path, page in front_pages(selection, models, outcomes):
        text = f"{len(models)} models on {len(selection.gpus)} kinds of GPUs: speed-ups by batch, and where they end."
        _write(folder / path / "index.html", _page(page, path, _TITLE, text, models[0], url))


def _card(cell: BuiltCell, drafter: str) -> Card:
    """The plan at its defaults, where it fits. A static host sends the same card for every load of a model."""
    request = PlanRequest(model=cell.model, gpu=cell.gpu, gpus=cell.gpus, engine=cell.engine, drafter=drafter)
    answer = plan(request)
    rows = [CardRow(row.batch, row.depth, row.speedup) for row in answer.best.plan.rows if row.fits]
    line = answer.verdict.partition("\n")[0]
    return Card(model=cell.model, scenario=f"on {cell.place}, {drafter} in {cell.engine}", line=line, rows=rows)


def _write_story(folder: Path, cell: BuiltCell, url: str | None) -> None:
    """Drawing takes seconds, so it is done once for a scenario."""
    written, drawn = folder / "story" / "index.html", folder / "data" / "story.key"
    key = f"{cell.key} {url}"
    if drawn.is_file() and drawn.read_text(encoding="utf-8") == key and written.is_file():
        return
    _write(written, _page(_story(cell), "story", story.TITLE, story.LEAD, cell.model, url))
    _write(drawn, key.encode())


def _story(cell: BuiltCell) -> str:
    """The explorer's page without its script and its controls, with the numbers and drawings of one cell."""
    request = PageRequest(model=cell.model, gpu=cell.gpu, gpus=cell.gpus, engine=cell.engine)
    view = View(request=request)
    paragraphs = story.paragraphs(view)
    drawn = drawings([part.figure for part in paragraphs], view, heading="h3")
    sections = (
        f'<section id="part-{part.id}"><h2>{html.escape(part.heading)}</h2><p>{html.escape(part.text)}</p>'
        f"{drawn[part.figure]}</section>"
        for part in paragraphs
    )
    lead = story.LEAD.replace("which this page computes for your scenario", "shown here for one model")
    note = f"Numbers of {cell.model} on {cell.place}, batch {request.batch}, context {request.context:,}."
    page = _text("story.html")
    start, end = page.index('<p class="lead"'), page.index("</main>")
    head = page[:start].replace("</head>", f"{_DARK_DRAWINGS}\n</head>")
    return (
        f'{head}<p class="lead">{html.escape(lead)}</p>\n<p class="quiet">{html.escape(note)}</p>\n'
        f'<div id="paragraphs">{"".join(sections)}</div>\n{page[end:]}'
    )


def site_data(selection: Selection, models: Sequence[str]) -> dict[str, Any]:
    """What every page has inside: its controls, numbers and words of the planner, and the templates of figures."""
    known = choices.catalog()
    kinds = list(dict.fromkeys(kind for model in models for kind in drafters_of(model, selection.drafters)))

    def chosen(what: str, names: Sequence[str]) -> list[Any]:
        return [entry for name in names for entry in known[what] if entry["name"] == name]

    return {
        "version": __version__,
        "catalog": {
            "models": chosen("models", models),
            "gpus": chosen("gpus", selection.gpus),
            "engines": chosen("engines", selection.engines),
            "drafters": kinds,
            "acceptance": [],
            "parallel": ["tp"],
            "prices": [],
            "routing": [],
            "weights": [],
            "kv_cache": [],
            "figures": FIGURES,
            "themes": known["themes"],
            "can": {**_CAN, "fields": list(FIELDS)},
        },
        "ids": {hub_id(model).lower(): model for model in models},
        "dropped": sorted(set(Query.model_fields) - {*FIELDS, *_FIXED}),
        "structures": structures(),
        "limits": _limits(),
        "phrases": {**verdict.PHRASES, **overlay.PHRASES, **pareto.PHRASES},
        "measured": _measured(selection, models),
    }


def _measured(selection: Selection, models: Sequence[str]) -> list[dict[str, Any]]:
    """Measured points of this site's machines, with the rows of the figure."""
    here = (point for point in all_measured_points() if point.model in models and point.gpu in selection.gpus)
    names = ("model", "gpu", "gpus", "weights", "drafter", "engine")
    return [{name: getattr(p, name) for name in names} | {"rows": pareto.measured_rows(p)} for p in here]


def _limits() -> dict[str, Any]:
    """Numbers and words of the planner, so that the browser has none of its own."""
    return {
        "batches": DEFAULT_BATCHES,
        "min_gain": PlanRequest.model_fields["min_gain"].default,
        "max_num_seqs": MAX_NUM_SEQS,
        "horizon": HORIZON,
        "max_batch": MAX_BATCH,
        "long_spans": verdict.LONG_SPANS,
        "mostly": verdict.MOSTLY,
        "most_lines": verdict.MOST_LINES,
        "never_pays": NEVER_PAYS,
        "always_pays": ALWAYS_PAYS,
        "curve_batches": curve.BATCHES,
        "label_characters": overlay.LABEL,
    }


def _cell(outcome: BuiltCell) -> str:
    return f"{outcome.model}/{outcome.gpu}-{outcome.engine}"


# --- files ---


def _explorer() -> Traversable:
    return files("specmargin.show.explorer") / "static"


def _text(name: str) -> str:
    """A static file: the site's own before the explorer's."""
    own = files("specmargin.show.site") / "static" / name
    return (own if own.is_file() else _explorer() / name).read_text(encoding="utf-8")


def _static(folder: Path, selection: Selection, models: Sequence[str]) -> None:
    """The icon, the charts' library, and per module of a page one file with all that it imports."""
    fields = fields_script(selection, models)
    pages = [entry.read_text(encoding="utf-8") for entry in _explorer().iterdir() if entry.name.endswith(".html")]
    for name in sorted({name for page in pages for name in modules_of(page)} - set(_NOT_HERE)):
        text = bundle(name, lambda file: fields if file == "fields.js" else _text(file))
        _write(folder / "static" / f"{name}.js", text.encode())
    _write(folder / "static" / "icon.svg", (_explorer() / "icon.svg").read_bytes())
    _write(folder / "static" / "lib" / "vega.js", _LAZY.encode())
    _write(folder / "static" / "lib" / "vega-bundle.js", vega_bundle())


def _without_scripts(page: str, cell: BuiltCell) -> str:
    """The answer at the page's defaults, for readers without JavaScript."""
    view = View(request=PageRequest(model=cell.model, gpu=cell.gpu, gpus=cell.gpus, engine=cell.engine))
    said = "Controls and figures need JavaScript. Without it, the answer at the defaults of this page:"
    body = "\n".join([f"<p>{said}</p>", *answer(view, heading="h2")])
    return _NOSCRIPT.sub(lambda _: f"<noscript>{body}</noscript>", page)


def _with_data(page: str, data: dict[str, Any]) -> str:
    """The explorer's page with the site's data inside, and a script that asks for its grid while the rest loads."""
    text = _json(data).decode().replace("<", "\\u003c")
    block = f'<script type="application/json" id="site">{text}</script>\n'
    early = f'<script type="module" async>\n{bundle("early", _text)}</script>\n'
    return page.replace("</body>", f"{block}{early}</body>")


def fields_script(selection: Selection, models: Sequence[str]) -> str:
    """The fields of the page's address and their defaults; a model's own page has it as its default."""
    defaults = {"gpu": selection.gpus[0], "gpus": "1", "depth": str(DEPTH), "batch": "16", "context": "1024"}
    return (
        'import { folderModel, keepFolders } from "./address.js";\n'
        f"const MODELS = {json.dumps(list(models))};\n"
        f"export const FIELDS = {json.dumps([*FIELDS, *_FIXED])};\n"
        f"export const DEFAULTS = {{ ...{json.dumps(defaults)}, model: folderModel(MODELS) }};\n"
        "keepFolders(MODELS, DEFAULTS.model);\n"
    )


def _page(page: str, path: str, title: str, text: str, model: str, url: str | None) -> bytes:
    """The explorer's page in the folder `path` of the site, with its preview card."""
    root = "../" * len(path.split("/")) if path else "./"
    image = f"{url.rstrip('/')}/cards/{model}.png" if url else f"{root}cards/{model}.png"
    page = page.replace('<a href="./"', '<a href="explore/"').replace('<a href="table"', '<a href="./"')
    own = None if url is None else f"{url.rstrip('/')}/{path}/" if path else f"{url.rstrip('/')}/"
    tags = f"{meta_tags(title, text, image, own)}\n{_FROM_DISK}"
    based = without_modules(page, _NOT_HERE).replace("<title>", f'<base href="{root}">\n<title>')
    return inlined(retitled(based, title, tags), _text).encode()


def _json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
