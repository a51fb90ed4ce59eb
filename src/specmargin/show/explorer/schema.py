"""Queries of the page, validated on entry. Names only, never paths: a page must not read files by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, ValidationInfo, create_model, field_validator

from specmargin.answers.numbers_schema import MAX_CONTEXT, NUMBER
from specmargin.answers.options_schema import request_options
from specmargin.answers.request_schema import ScenarioRequest, listing
from specmargin.answers.verb import Verb
from specmargin.architecture.precision import precision_named
from specmargin.catalog.drafters import acceptance_names, drafter_names
from specmargin.catalog.engine_times import engine_time_names, names_release
from specmargin.catalog.lookup import bundled_of_id, device_names, find_device, model_by_id, model_names, nearest_model
from specmargin.catalog.machines import network_names
from specmargin.catalog.prices import KINDS as PRICES
from specmargin.catalog.processors import bundled_processors
from specmargin.catalog.routing_profiles import BUNDLED
from specmargin.errors import InputError, UnknownModelError, nearest_names
from specmargin.files import existing
from specmargin.formats import ENGINES, find_engine
from specmargin.hardware.link import pcie_lanes
from specmargin.modes import DRAFTERS
from specmargin.prices.llamacpp.backends import Backend
from specmargin.schema import first_complaint
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.uploads import Kind
from specmargin.show.explorer.words import title

UPLOAD = re.compile(r"upload:([0-9a-f]{16})(?::([^\x00-\x1f/\\]{1,80}))?")
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_CURVE = re.compile(r"((length|accepted):)?[0-9.]{1,12}(,[0-9.]{1,12}){0,63}(@[0-9]{1,2})?")
_CATEGORY = re.compile(r"[A-Za-z0-9_ .+-]{1,60}")
_HIT_RATE = re.compile(r"[0-9.]{1,8}")

#: Precisions that the page offers.
WEIGHTS = ("bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int4-g128")
KV_CACHES = ("bf16", "fp8")
Text = Annotated[str, Field(max_length=200)]
Value = TypeVar("Value")


def _either(names: tuple[str, ...]) -> dict[str, Any]:
    """JSON schema: one of these names, an uploaded file, or a Hugging Face id."""
    return {"pattern": f"^({'|'.join(map(re.escape, names))}|upload:[0-9a-f]{{16}}|{HUB_ID.pattern})$"}


def _nullable(**schema: Any) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", **schema}, {"type": "null"}]}


# --- what text fields may say ---


def _model(value: str) -> str:
    if UPLOAD.fullmatch(value) or value.lower() in model_names():
        return value
    if HUB_ID.fullmatch(value) and existing(value) is None:  # a folder of this name would be read instead
        return _known_id(value)
    raise ValueError(
        f"{value!r} is neither a bundled model nor a Hugging Face id{nearest_names(value, model_names())}; or drop a "
        f"config.json"
    )


def _known_id(value: str) -> str:
    try:
        model_by_id(value)
    except UnknownModelError:
        raise ValueError(
            f"{value!r} is not known here and not in the local hub cache (nearest bundled: {nearest_model(value)}); "
            f"run `hf download {value} config.json` and paste it again, or paste the text of its config.json"
        ) from None
    except InputError as error:
        raise ValueError(str(error)) from None
    return value


def resolved_model(text: str) -> str:
    """The value of the field `model` for a pasted name or id: the name of a bundled model for its own id."""
    try:
        return _model(bundled_of_id(text) or text)
    except ValueError as error:
        raise InputError(str(error)) from None


def _gpu(value: str) -> str:
    if value.lower() in device_names():
        return _found(find_device, value).name
    with suppress(InputError):
        if value.isascii() and not set("./\\") & set(value) and not value.endswith("toml"):
            return find_device(value).name
    raise ValueError(f"{value!r} is not a bundled GPU{nearest_names(value, device_names())}")


def _engine(value: str) -> str:
    return _found(find_engine, value).name


def _precision(value: str) -> str:
    _found(precision_named, value)
    return value


def _pcie(value: str) -> str:
    _found(pcie_lanes, value)
    return value


def _drafter(value: str) -> str:
    kind, _, detail = value.partition(":")
    _one_of("drafter", kind, drafter_names())
    inner, _, rate = detail.partition("@")
    of_model = kind == "model" and detail in model_names()
    of_ssd = kind == "ssd" and inner in ("", "mtp", "eagle", "dflash") and _HIT_RATE.fullmatch(rate or "0")
    if detail and not of_model and not of_ssd:
        raise ValueError(f"drafter {value!r} is not understood; use model:NAME of a bundled model, or ssd:mtp@0.8")
    return value


def _acceptance(value: str) -> str:
    if value in acceptance_names() or UPLOAD.fullmatch(value) or _CURVE.fullmatch(value):
        return value
    raise ValueError(
        f"acceptance {value!r} is not understood; give 0.8, 0.78,0.58,0.44, length:2.4@3, accepted:1.4@3, a "
        f"bundled curve, or drop a bank"
    )


def _routing(value: str) -> str:
    if value == "uniform" or UPLOAD.fullmatch(value):
        return value
    name, colon, category = value.partition(":")
    _one_of("routing", name, ("uniform", *BUNDLED))
    if colon and not _CATEGORY.fullmatch(category):
        raise ValueError(f"routing: {category!r} is not a category")
    return value


def _engine_time(value: str) -> str:
    return value if names_release(value) else _one_of("engine time", value, engine_time_names())


def _one_of(what: str, value: str, names: Collection[str]) -> str:
    if value not in names:
        raise ValueError(f"unknown {what} {value!r}{nearest_names(value, names)}; known: {', '.join(names)}")
    return value


def _found(find: Callable[[str], Value], name: str) -> Value:
    """Turn an `InputError` into the `ValueError` that Pydantic reports."""
    try:
        return find(name)
    except InputError as error:
        raise ValueError(str(error)) from None


_CHECKS: dict[str, Callable[[str], str]] = {
    "model": _model,
    "gpu": _gpu,
    "engine": _engine,
    "backend": partial(_one_of, "backend", names=tuple(Backend)),
    "prices": partial(_one_of, "prices", names=PRICES),
    "engine_time": _engine_time,
    "drafter": _drafter,
    "acceptance": _acceptance,
    "routing": _routing,
    "weights": _precision,
    "draft_weights": _precision,
    "kv_cache": _precision,
    "pcie": _pcie,
    "cpu": lambda value: _one_of("processor", value, tuple(bundled_processors())),
    "fabric": lambda value: _one_of("fabric", value, network_names()),
}


class ScenarioQuery(ScenarioRequest):
    """A scenario by names that are checked: nothing that could name a file."""

    model: Annotated[
        Text,
        Field(description="A bundled name, a Hugging Face id or upload:ID.", json_schema_extra=_either(model_names())),
    ] = "qwen3.6-35b-a3b"
    gpu: Annotated[Text, Field(description="A bundled device.", json_schema_extra={"enum": list(device_names())})] = (
        "h200"
    )
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    engine: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=list(ENGINES)))] = None
    backend: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=[str(name) for name in Backend]))] = None
    prices: Annotated[
        Text | None,
        Field(
            description="datasheet, laws or tables; default: the most accurate available.",
            json_schema_extra=_nullable(enum=list(PRICES)),
        ),
    ] = None
    engine_time: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=engine_time_names()))] = None
    drafter: Annotated[
        Text | None,
        Field(
            description=f"{listing(DRAFTERS)}; model:NAME with a bundled model.",
            json_schema_extra=_nullable(enum=[kind.name for kind in DRAFTERS.values() if not kind.needs_detail]),
        ),
    ] = None
    acceptance: Annotated[
        Text | None,
        Field(
            description="0.8, a survival curve, length:L@D, accepted:A@D, a bundled name or upload:ID.",
            json_schema_extra=_nullable(
                pattern=rf"^(0\.[0-9]{{1,3}}|{'|'.join(acceptance_names())}|upload:[0-9a-f]{{16}})$"
            ),
        ),
    ] = None
    routing: Annotated[
        Text | None,
        Field(
            description="uniform, a bundled name[:category] or upload:ID[:category].",
            json_schema_extra=_nullable(enum=["uniform", *BUNDLED]),
        ),
    ] = None
    fabric: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=network_names()))] = None
    cpu: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=list(bundled_processors())))] = None
    pcie: Annotated[Text | None, Field(json_schema_extra=_nullable(pattern=r"^[345]x(1|2|4|8|16)$"))] = None
    weights: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=list(WEIGHTS)))] = None
    kv_cache: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=list(KV_CACHES)))] = None
    draft_weights: Annotated[Text | None, Field(json_schema_extra=_nullable(enum=list(WEIGHTS)))] = None
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9

    def model_post_init(self, _context: object, /) -> None:
        """The page sends its controls' defaults too: then the share of memory is the engine's own, as without one."""
        if self.memory_utilization == type(self).model_fields["memory_utilization"].default:
            self.__pydantic_fields_set__.discard("memory_utilization")

    @field_validator(*_CHECKS)
    @classmethod
    def _names_no_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else _CHECKS[str(info.field_name)](value)


class Query(ScenarioQuery, PageRequest):
    """One scenario, as the page's address has it: every field of a request, its names checked."""

    isl: Annotated[int, Field(ge=1, le=MAX_CONTEXT), NUMBER] = 1000
    osl: Annotated[int, Field(ge=1, le=MAX_CONTEXT), NUMBER] = 300
    layer: Annotated[int | None, Field(ge=0, le=1000, description="MoE layer shown in the routing figures.")] = None


def query_of(verb: Verb[Any, Any]) -> type[ScenarioQuery]:
    """The request of a verb as a query of an address."""
    return create_model(
        f"{verb.name.title()}Query",
        __base__=(ScenarioQuery, verb.request),
        __validators__={"joined": field_validator("*", mode="before")(_joined)},
    )


def _joined(value: Any) -> Any:
    """`?positions=1,8` and `?positions=1&positions=8` are the same list."""
    return ",".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value


def refuse_files(verb: Verb[Any, Any], given: Iterable[str]) -> None:
    """Fields of free text that `ScenarioQuery` does not check name files, which a page must not read."""
    texts = {option.field for option in request_options(verb.request) if option.kind is str and not option.parsed}
    for field in texts - set(ScenarioQuery.model_fields):
        if field in given:
            raise InputError(f"{field} may name a file, which this server does not read; use the command line")


class ComparedError(InputError):
    """A compared scenario of a link: the field `vs`."""


def read_query(text: str) -> Query:
    """A compared scenario, as the address has it: `gpu=b200&drafter=eagle`."""
    try:
        return Query.model_validate(dict(parse_qsl(text, max_num_fields=100)))
    except ValueError as error:
        raise ComparedError(f"a compared scenario of the link: {first_complaint(error, name=title)}") from None


class ComparedQuery(Query):
    """A scenario, and those it is compared with."""

    vs: Annotated[
        list[Annotated[str, Field(max_length=2000)]],
        Field(default_factory=list, max_length=11, description="Scenarios to compare with: queries of addresses."),
    ]


class ViewQuery(ComparedQuery):
    """Scenarios, the figures to draw, and the chart structures that the page has already."""

    show: Annotated[str, Field(max_length=400, description="Comma-separated names of figures.")] = ""
    have: Annotated[str, Field(max_length=4000, description="Keys of structures that the page has already.")] = ""


class FigureQuery(ComparedQuery):
    theme: Literal["light", "dark"] = "light"


JobId = Annotated[str, Field(pattern="^[0-9a-f]{8,32}$", description="Chosen by the page, to ask for progress.")]


class ReportQuery(Query):
    """A scenario, and the id under which the progress of its report is kept."""

    job: JobId | None = None


class Progress(BaseModel):
    """Figures that are drawn, and all of them; zero of zero for an unknown job."""

    done: int = 0
    total: int = 0


class Failure(BaseModel):
    """The body of every error."""

    error: str
    field: str | None = None


class Fix(BaseModel):
    """Fields and their values with which a refused scenario can be answered."""

    text: str
    changes: dict[str, str]


class Resolved(BaseModel):
    """What a Hugging Face id is: the value of the field `model`, and the architecture behind it."""

    model: str
    summary: str


class Uploaded(BaseModel):
    id: str
    kind: Kind
    name: str
    summary: str
    categories: list[str] = []
