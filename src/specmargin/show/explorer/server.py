"""The application: pages, their API, and downloads. Every error is one sentence in JSON."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.resources import files
from string import Template
from threading import Thread
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi import Query as InQuery
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from specmargin._version import __version__
from specmargin.answers.request_schema import read_request
from specmargin.answers.verb import Verb
from specmargin.caches import forget, made_once
from specmargin.catalog.lookup import find_model
from specmargin.errors import InputError
from specmargin.files import csv_text
from specmargin.schema import complaint
from specmargin.show.explorer import choices, compare, gallery, report, story
from specmargin.show.explorer.card import card_png
from specmargin.show.explorer.fixes import fixes
from specmargin.show.explorer.guard import FRAMED, Guard
from specmargin.show.explorer.jobs import Jobs
from specmargin.show.explorer.previews import address, card_of, framed, previewed
from specmargin.show.explorer.reading import described
from specmargin.show.explorer.schema import (
    UPLOAD,
    ComparedError,
    ComparedQuery,
    Failure,
    FigureQuery,
    Fix,
    JobId,
    Progress,
    Query,
    ReportQuery,
    Resolved,
    ScenarioQuery,
    Uploaded,
    ViewQuery,
    query_of,
    read_query,
    refuse_files,
    resolved_model,
)
from specmargin.show.explorer.uploads import Kind, TooLargeError, Uploads
from specmargin.show.explorer.view import View, view_of, with_uploads
from specmargin.show.explorer.words import page_words, title
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.files import rendered
from specmargin.show.figures.overlay import OVERLAYS
from specmargin.show.figures.theme import THEMES
from specmargin.verbs import find_verb, verb_names

_STATIC = files("specmargin.show.explorer") / "static"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_DRAWN = {"svg": "image/svg+xml", "png": "image/png", "html": "text/html"}
_FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "The request cannot be answered; the error says why."},
    404: {"model": Failure, "description": "Not found."},
    422: {"model": Failure, "description": "Invalid field."},
}
PageQuery = Annotated[Query, InQuery()]
FigureName = Annotated[str, InPath(max_length=40)]


def make_app(
    *, hosts: frozenset[str] = frozenset(), token: str | None = None, uploads: Uploads | None = None
) -> FastAPI:
    files = uploads or Uploads(forget)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for part in (vega_bundle, _warm_up):  # in the background while the browser starts
            Thread(target=part, daemon=True).start()
        yield
        files.close()

    app = FastAPI(
        title="Specmargin explorer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses=_FAILURES,
    )
    app.add_middleware(Guard, hosts=hosts, token=token)
    _errors(app)
    _pages(app, files)
    _numbers(app, files)
    _verbs(app, files)
    _downloads(app, files)
    _uploads(app, files)
    return app


def _warm_up() -> None:
    """Precompute what the first page needs: the default scenario and its first figures."""
    choices.catalog()
    files = Uploads()
    default_view = view_of(Query(), files)
    choices.marked_row(default_view)
    _json(default_view.plan)
    for entry in list(gallery.GALLERY.values())[:4]:
        _figure_payload(entry.name, partial(gallery.figure, entry.name, default_view), set())
    files.close()


def _errors(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    async def refused(_: Request, error: InputError) -> Response:
        field = "vs" if isinstance(error, ComparedError) else None
        return _failure(413 if isinstance(error, TooLargeError) else 400, page_words(str(error)), field)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        loc = first["loc"][1:]  # without the part of the request
        message = complaint({**first, "loc": loc}, name=title)
        return _failure(422, page_words(message), str(loc[0]) if loc else None)

    @app.exception_handler(HTTPException)
    async def absent(_: Request, error: HTTPException) -> Response:
        return _failure(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return _failure(500, f"this is a bug ({type(error).__name__}); please report it with the address of the page")


def _failure(status: int, message: str, field: str | None = None) -> JSONResponse:
    return JSONResponse({"error": message, "field": field}, status_code=status)


# --- pages ---


_GLOBAL = "window.vegaEmbed = vegaEmbed;"
_BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle(sys.argv[1]).encode())"


@made_once(maxsize=1)
def vega_bundle() -> bytes:
    """Vega, Vega-Lite and Vega-Embed with its expression interpreter, from the package that also draws files.

    Bundling takes 1.5 s and holds the interpreter lock, so it runs in another process.
    """
    return subprocess.run([sys.executable, "-c", _BUNDLE, _GLOBAL], stdout=subprocess.PIPE, check=True).stdout


def _html(text: str) -> Response:
    return Response(text, media_type="text/html; charset=utf-8")


def _pages(app: FastAPI, uploads: Uploads) -> None:
    def page(name: str) -> Response:
        ending = name.rpartition(".")[2]
        return Response((_STATIC / name).read_bytes(), media_type=f"{_TYPES[ending]}; charset=utf-8")

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        text = (_STATIC / "index.html").read_text(encoding="utf-8")
        link = html.escape(f"plain?{request.url.query}")
        return _html(previewed(text.replace('href="plain"', f'href="{link}"'), request))

    @app.get(FRAMED, include_in_schema=False)
    def embed(request: Request) -> Response:
        """The page without controls: `static/page.css` leaves the question and its answer."""
        text = (_STATIC / "index.html").read_text(encoding="utf-8")
        return _html(previewed(framed(text), request))

    @app.get("/card.png", include_in_schema=False)
    def card(query: PageQuery) -> Response:
        """The preview image of a link: its question and its answer."""
        return Response(card_png(card_of(query, view_of(query, uploads))), media_type="image/png")

    @app.get("/plain", include_in_schema=False)
    def plain(query: PageQuery, request: Request) -> Response:
        """The answer without scripts: what the `noscript` of the page leads to."""
        text = Template((_STATIC / "plain.html").read_text(encoding="utf-8"))
        body = "\n".join(report.answer(view_of(query, uploads), heading="h1"))
        return _html(text.substitute(answer=body, query=html.escape(request.url.query)))

    @app.get("/table", include_in_schema=False)
    def front(engine: str = "vllm", drafter: str = "own") -> Response:
        return Response(_front_page(engine, drafter), media_type="text/html; charset=utf-8")

    @app.get("/story", include_in_schema=False)
    def story_page() -> Response:
        return page("story.html")

    @app.get("/static/fields.js", include_in_schema=False)
    def fields() -> Response:
        return Response(_fields_script(), media_type=f"{_TYPES['js']}; charset=utf-8")

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in _static_names():
            raise HTTPException(404, f"no static file {name[:60]!r}")
        return page(name)

    @app.get("/static/lib/vega.js", include_in_schema=False)
    def vega() -> Response:
        # Constant per version of the server, so a browser may cache it.
        return Response(vega_bundle(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return page("icon.svg")


@lru_cache(maxsize=8)
def _front_page(engine: str, drafter: str) -> str:
    from specmargin.show.explorer.front_page import bundled_page  # noqa: PLC0415

    return bundled_page(engine, drafter)


@lru_cache(maxsize=1)
def _fields_script() -> str:
    """The fields of a scenario in the page's address, and their defaults as text: those of `Query`."""
    fields = Query.model_fields
    defaults = {name: str(field.default) for name, field in fields.items() if field.default is not None}
    return f"export const FIELDS = {json.dumps(list(fields))};\nexport const DEFAULTS = {json.dumps(defaults)};\n"


@lru_cache(maxsize=1)
def _static_names() -> frozenset[str]:
    return frozenset(entry.name for entry in _STATIC.iterdir() if entry.is_file())


# --- numbers ---


def _numbers(app: FastAPI, uploads: Uploads) -> None:
    @app.get("/api/catalog")
    def catalog() -> dict[str, Any]:
        """All options of the controls, and the chart themes."""
        return choices.catalog()

    @app.get("/api/plan")
    def plan(query: PageQuery) -> dict[str, Any]:
        """What `specmargin plan --json` prints."""
        return view_of(query, uploads).plan

    @app.get("/api/view")
    def view(query: Annotated[ViewQuery, InQuery()]) -> Response:
        """The plan of each scenario, and figures as tables of rows; a chart's structure only where the page lacks it.

        A scenario that cannot be priced is not an HTTP error: `refused` says why, `gpus` how many GPUs would suffice.
        """
        began = time.perf_counter()
        queries, views = _side_by_side(query, uploads)
        answers = [_answered(each) for each in views]
        drafters = [each["plan"]["drafter"] if "plan" in each else None for each in answers]
        for answer, label in zip(answers, compare.labels(queries, drafters), strict=True):
            answer["label"] = label
        shown = [] if "refused" in answers[0] else [name for name in query.show.split(",") if name]
        have = set(query.have.split("|"))
        names = [answer["label"] for answer in answers]
        figures = [_figure_payload(name, partial(_drawn, name, views, names), have) for name in shown]
        seconds = round(time.perf_counter() - began, 4)
        return _json({"answers": answers, "figures": figures, "seconds": seconds})

    @app.get("/api/alternatives/{field}")
    def alternatives(field: compare.Alternatives, query: PageQuery) -> list[str]:
        """Drafters that this model has, or GPUs that the scenario fits on."""
        return compare.alternatives(view_of(query, uploads), field)

    @app.get("/api/resolve")
    def resolve(model: Annotated[str, InQuery(max_length=200)]) -> Resolved:
        """A pasted name or Hugging Face id: from the catalog or the local hub cache, nothing is downloaded."""
        if UPLOAD.fullmatch(model):
            raise InputError(f"{model} is the id of a dropped file, not a model: drop the file")
        name = resolved_model(model)
        return Resolved(model=name, summary=described(find_model(name)))

    @app.get("/api/fixes")
    def possible(query: PageQuery) -> list[Fix]:
        """Changes, each tried, with which a refused scenario can be answered: fields and their values."""
        return fixes(view_of(query, uploads))

    @app.get("/api/story")
    def paragraphs(query: PageQuery) -> Response:
        """The explanation with the numbers of this scenario; each paragraph names its figure."""
        return _json(
            {"lead": story.LEAD, "paragraphs": [vars(part) for part in story.paragraphs(view_of(query, uploads))]}
        )


def _verbs(app: FastAPI, uploads: Uploads) -> None:
    """`/api/price`, `/api/duel` and others: what the verb prints with `--json`."""
    for verb in map(find_verb, verb_names()):
        if verb.served:
            described = f"What `specmargin {verb.name} --json` prints."
            app.get(f"/api/{verb.name}", name=verb.name, description=described)(_endpoint(verb, uploads))


def _endpoint(verb: Verb[Any, Any], uploads: Uploads) -> Callable[..., dict[str, Any]]:
    def answer(query: ScenarioQuery) -> dict[str, Any]:
        refuse_files(verb, query.model_fields_set)
        given = {name: getattr(query, name) for name in query.model_fields_set | {"model", "gpu"}}
        found: dict[str, Any] = verb(read_request(verb.request, with_uploads(given, uploads))).to_dict()
        return found

    answer.__annotations__["query"] = Annotated[query_of(verb), InQuery()]
    return answer


def _side_by_side(query: ComparedQuery, uploads: Uploads) -> tuple[list[Query], list[View]]:
    """The scenario of the address, then those that it is compared with."""
    first, others = view_of(query, uploads), [read_query(text) for text in query.vs]
    try:
        return [query, *others], [first, *(view_of(each, uploads) for each in others)]
    except InputError as error:  # a file that is not here
        raise ComparedError(str(error)) from None


def _answered(view: View) -> dict[str, Any]:
    try:
        return {"plan": view.plan, "here": choices.marked_row(view)}
    except InputError as error:
        return {"refused": page_words(str(error)), "gpus": choices.enough_gpus(view, error)}


def _drawn(name: str, views: Sequence[View], names: Sequence[str]) -> Figure:
    return compare.overlay(name, views, names) if name in OVERLAYS else gallery.figure(name, views[0])


def _figure_payload(name: str, draw: Callable[[], Figure], have: set[str]) -> dict[str, Any]:
    try:
        figure = draw()
    except gallery.DoesNotApplyError as error:
        return {"name": name, "reason": str(error)}
    return {
        "name": name,
        "title": figure.title,
        "takeaway": figure.takeaway,
        "source": figure.source,
        "key": figure.key,
        "tables": figure.tables,
        "structure": None if figure.key in have else figure.structure,
    }


def _json(body: Any) -> Response:
    return Response(
        json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False), media_type="application/json"
    )


# --- downloads ---


def _downloads(app: FastAPI, uploads: Uploads) -> None:
    @app.get("/api/figures/{name}.{ending}", response_class=Response, responses={200: {"content": _contents()}})
    def figure(
        name: FigureName,
        ending: Literal["json", "csv", "svg", "png", "html"],
        query: Annotated[FigureQuery, InQuery()],
    ) -> Response:
        """One figure as Vega-Lite JSON, CSV rows, an image, or an HTML page."""
        known = (*gallery.GALLERY, *OVERLAYS)
        if name not in known:
            raise HTTPException(404, f"no figure {name!r}; known: {', '.join(known)}")
        queries, views = _side_by_side(query, uploads)
        drafters = [each.scenario.drafter.name for each in views]
        drawn = _drawn(name, views, compare.labels(queries, drafters))
        if ending == "csv":
            return _attached(csv_text(drawn.table_rows()), "text/csv; charset=utf-8", f"{name}.csv")
        chart = drawn.chart(THEMES[query.theme])
        if ending == "json":
            return _attached(json.dumps(chart.to_dict()), "application/json", f"{name}.json")
        return _attached(rendered(chart, ending), _DRAWN[ending], f"{name}.{ending}")

    jobs = Jobs()

    @app.get("/api/report", response_class=Response, responses={200: {"content": {"text/html": {}}}})
    def whole(query: Annotated[ReportQuery, InQuery()], request: Request) -> Response:
        """The explanation and all figures as one HTML file without scripts; `job`: an id to ask for progress."""
        origin = report.Origin(made=datetime.now(UTC), link=f"{request.base_url}?{address(query)}")
        advance = jobs.started(query.job, len(gallery.GALLERY))
        text = report.page(view_of(query, uploads), origin, advance=advance)
        return _attached(text, "text/html; charset=utf-8", "report.html")

    @app.get("/api/report/progress")
    def progress(job: Annotated[JobId, InQuery()]) -> Progress:
        """How many figures of a report are drawn."""
        return jobs.progress(job)


def _contents() -> dict[str, Any]:
    return {kind: {} for kind in (*_DRAWN.values(), "text/csv", "application/json")}


def _attached(body: str | bytes, media_type: str, name: str) -> Response:
    """Always a download: content derived from an upload is never rendered as a page of this server."""
    return Response(body, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'})


# --- uploads ---


def _uploads(app: FastAPI, uploads: Uploads) -> None:
    @app.post(
        "/api/uploads/{kind}",
        responses={413: {"model": Failure}, 201: {"model": Uploaded}},
        status_code=201,
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    )
    async def upload(
        kind: Kind,
        request: Request,
        name: Annotated[str, InQuery(max_length=200)] = "file",
        beside: Annotated[str | None, InQuery(pattern="^[0-9a-f]{16}$")] = None,
    ) -> Uploaded:
        """Upload a file; links refer to it by id (`upload:ID`)."""
        stored = await uploads.receive(kind, name, request.stream(), beside)
        return Uploaded(
            id=stored.id, kind=stored.kind, name=stored.name, summary=stored.summary, categories=list(stored.categories)
        )
