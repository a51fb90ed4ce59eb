"""From what was asked and what the server says of itself to the scenario that it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specmargin.answers.scenarios import scenario_of
from specmargin.catalog.drafters import DraftChoice
from specmargin.catalog.engine_times import SECOND_DRAFT_LAUNCHES, names_release
from specmargin.catalog.lookup import device_named, find_model
from specmargin.decisions.scenario import Scenario
from specmargin.errors import InputError
from specmargin.live.observation import Observation, ServerSettings
from specmargin.modes import DRAFTERS
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.releases import parse_release
from specmargin.verbs.doctor.request_schema import DoctorRequest
from specmargin.verbs.doctor.seen import Seen

#: Parts of the engines' names of methods, and the drafter that each is; the first that is contained counts.
_METHODS = (
    ("mtp", "mtp"),
    ("nextn", "mtp"),
    ("eagle", "eagle"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
    ("ngram", "ngram"),
    ("suffix", "ngram"),
    ("lookup", "ngram"),
    ("draft", "model"),
    ("standalone", "model"),
)
_RELEASED = ("vllm", "sglang")  # engines whose releases have engine times of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the server runs, in the words of a request, and what of it could not be found out."""

    request: DoctorRequest
    scenario: Scenario | None = None
    choice: DraftChoice | None = None
    default_time: EngineTime | None = None  # that of the release, with its default graphs
    missing: tuple[str, ...] = ()  # sentences


def served(request: DoctorRequest, seen: Seen) -> Served:
    """What the user gave comes first; then what the server says."""
    of, missing = seen.observation, []
    model, unknown = _model(request, of.settings)
    missing += unknown
    gpu, unknown = _gpu(request, of.settings)
    missing += unknown
    update: dict[str, object] = {"model": model, "gpu": gpu}
    given = request.model_fields_set
    if "engine" not in given:
        update["engine"] = of.engine
    if "gpus" not in given and of.settings.gpus:
        update["gpus"] = of.settings.gpus
    if "context" not in given and of.context:
        update["context"] = max(round(of.context), 1)
    if request.engine_time is None:
        update["engine_time"] = _release_time(request, of)
    if not model or not gpu:
        return Served(request=request.model_copy(update=update), missing=tuple(missing))
    drafter, unknown = _drafter(request, of.settings, model)
    missing += unknown
    filled = request.model_copy(update=update | {"drafter": drafter, "draft_p_min": None})
    choice, scenario = scenario_of(_in_context(filled))
    return Served(
        request=filled,
        scenario=replace(scenario, engine_time=configured(scenario.engine_time, of.settings)),
        choice=choice,
        default_time=scenario.engine_time,
        missing=tuple(missing),
    )


def _in_context(request: DoctorRequest) -> DoctorRequest:
    """A context that was read never exceeds what the model has."""
    longest = find_model(request.model).max_context
    if longest is None or "context" in request.model_fields_set or request.context <= longest:
        return request
    return request.model_copy(update={"context": longest})


def _model(request: DoctorRequest, settings: ServerSettings) -> tuple[str, list[str]]:
    if request.model:
        return request.model, []
    if not settings.model:
        return "", ["the model is not shown: give --model to compare with what is expected"]
    try:
        find_model(settings.model)
    except InputError:
        return "", [f"{settings.model} is not known: give --model with its config.json"]
    return settings.model, []


def _gpu(request: DoctorRequest, settings: ServerSettings) -> tuple[str, list[str]]:
    if request.gpu:
        return request.gpu, []
    if not settings.gpu:
        return "", ["the GPU is not shown: give --gpu to compare with what is expected"]
    name = device_named(settings.gpu)
    if name is None:
        return "", [f"the GPU {settings.gpu!r} is not bundled: give --gpu with a file of it"]
    return name, []


def _drafter(request: DoctorRequest, settings: ServerSettings, model: str) -> tuple[str | None, list[str]]:
    if request.drafter is not None or not settings.method:
        return request.drafter, []
    method = settings.method.lower().replace("-", "_")
    kind = next((kind for part, kind in _METHODS if part in method), None)
    head = find_model(model).draft_head is not None
    if kind == "eagle" and "3" not in method and head:
        return "mtp", []  # SGLang's EAGLE runs the MTP heads too
    if kind == "mtp" and not head:
        return "eagle", []  # priced as a head of one layer: nearly what an MTP head is
    if kind == "model":
        return "free", ["the draft model is not named: its passes are priced at nothing; give --drafter model:NAME"]
    if kind is None or kind not in DRAFTERS:
        return None, [f"the drafter {settings.method!r} has no price here: give --drafter"]
    return kind, []


def _release_time(request: DoctorRequest, of: Observation) -> str | None:
    """The engine time of the server's release, where its steps are priced with engine time at all."""
    engine, text = of.engine, of.settings.release
    if request.prices is not None and request.prices not in ("laws", "tables", "scaled"):
        return None
    if text is None or engine not in _RELEASED or parse_release(text) is None:
        return None
    name = f"{engine}:{text}" + (":sync" if of.settings.overlaps is False and engine == "vllm" else "")
    return name if names_release(name) else None


# --- CUDA graphs ---


def configured(time: EngineTime, settings: ServerSettings) -> EngineTime:
    """With the graphs that the server says it has; by its release where it says nothing."""
    if settings.largest_graph:
        time = replace(time, graph_limit=settings.largest_graph)
    graph = told_graph(settings)
    if graph is not None:
        graphs = [max(graph, own, key=_ORDER.index) for own in (time.plain_graph, time.verify_graph)]
        drafting = [max(graph, own, key=_ORDER.index) for own in (time.first_draft_graph, time.draft_graph)]
        time = replace(time, plain_graph=graphs[0], verify_graph=graphs[1])
        time = _drafting(time, drafting[0], drafting[1])
    if settings.draft_graphs is False:
        without = [max(Graph.COMPILED, own, key=_ORDER.index) for own in (time.first_draft_graph, time.draft_graph)]
        time = _drafting(time, without[0], without[1])
    return time


def _drafting(time: EngineTime, first: Graph, later: Graph) -> EngineTime:
    """Passes outside full graphs have launches of their own too."""
    own = time.draft_launches or (0.0 if later is Graph.FULL else SECOND_DRAFT_LAUNCHES)
    return replace(time, first_draft_graph=first, draft_graph=later, draft_launches=own)


_ORDER = list(Graph)  # fewest launches first


def told_graph(settings: ServerSettings) -> Graph | None:
    """At best these graphs, as the server was told; None where full graphs are not ruled out."""
    mode = (settings.graph_mode or "").upper().rsplit(".", 1)[-1]
    if settings.eager:
        return Graph.EAGER
    if mode == "NONE" or settings.largest_graph == 0:
        return Graph.COMPILED
    return Graph.PIECEWISE if mode == "PIECEWISE" else None
