"""The request for a scenario. One field is an option of the command line, a key of a scenario file, a parameter of
the web page's address and an argument in Python; its description is the help text of all of them.

Adding an option that all scenarios share begins with a field of `ScenarioRequest`; docs/map.md lists the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError, model_validator

from specmargin.answers.numbers_schema import MAX_CONTEXT, NUMBER
from specmargin.errors import ScenarioError
from specmargin.limits import MAX_BATCH, MAX_DEPTH
from specmargin.modes import DRAFTERS, ENGINES, ExpertsOn, Parallel, Placement, RooflineForm
from specmargin.schema import StrictModel, first_complaint

#: Why some verbs refuse a field.
NO_ACCEPTANCE = "no price depends on acceptance"
FULL_DRAFTS = "drafts of their full depth are priced here"
NO_OFF_TIME = "no step with speculation configured but disabled is priced here"
_SIZES = {"tp", "dp", "pp"}  # of a layout: their product is the number of GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a field appears on the command line."""

    panel: str | None = None  # on the help page
    argument: bool = False  # positional, not an option
    metavar: str | None = None
    default: str | None = None  # text for a default that depends on other fields
    options: tuple[str, ...] = ()  # instead of the field's own name
    names: Callable[[], Iterable[str]] | None = None  # what a shell completes
    key: bool = False  # of files and in Python; no option of the command line
    often: bool = False  # on the short help page of a verb with many options

    def named(self, *options: str) -> Shown:
        """The same, as options of these names."""
        return replace(self, options=options)

    @property
    def needed(self) -> Shown:
        """The same, on the short help page too."""
        return replace(self, often=True)

    def completed(self, names: Callable[[], Iterable[str]]) -> Shown:
        return replace(self, names=names)

    def as_(self, metavar: str, default: str | None = None) -> Shown:
        """The same panel, with a metavar and a default text."""
        return replace(self, metavar=metavar, default=default)


MODEL = Shown(panel="Model and GPUs")
HOST = Shown(panel="Experts in main memory")
DRAFTS = Shown(panel="Drafter, acceptance and routing")
PRICES = Shown(panel="Prices and engine")
LOAD = Shown(panel="Load")
QUESTION = Shown(panel="Question")


# --- the scenario ---


def _models() -> list[str]:
    from specmargin.catalog.lookup import model_names  # noqa: PLC0415 (for a shell's completion alone)

    return list(model_names())


def _devices() -> list[str]:
    from specmargin.catalog.lookup import device_names  # noqa: PLC0415

    return list(device_names())


def _processors() -> list[str]:
    from specmargin.catalog.processors import processor_names  # noqa: PLC0415

    return list(processor_names())


def _drafters() -> list[str]:
    from specmargin.catalog.user import user_files  # noqa: PLC0415

    return [*DRAFTERS, *user_files("drafter"), "all"]


def _engine_times() -> list[str]:
    from specmargin.catalog.engine_times import engine_time_names  # noqa: PLC0415

    return engine_time_names()


def listing(names: Iterable[str]) -> str:
    """The names as a help text lists them: `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


GpuField = Annotated[
    str,
    Field(min_length=1, description="A bundled device (`specmargin gpus`) or your own as FILE.toml."),
    MODEL.as_("GPU").completed(_devices).needed,
]
DRAFTER_HELP = f"Drafter: {listing(kind.name + kind.detail for kind in DRAFTERS.values())}."
DrafterField = Annotated[
    str | None,
    Field(description=DRAFTER_HELP),
    DRAFTS.as_("KIND", "mtp where the model has a head, else eagle").completed(_drafters).needed,
]
ContextField = Annotated[
    int,
    Field(ge=0, le=MAX_CONTEXT, description="Tokens in the KV cache per sequence: 1024, 64k."),
    NUMBER,
    LOAD.as_("TOKENS").needed,
]

DepthField = Annotated[
    int, Field(ge=0, le=MAX_DEPTH, description="Maximum draft depth to consider."), QUESTION.as_("N")
]
BatchField = Annotated[int, Field(ge=1, le=MAX_BATCH, description="Sequences in the step."), LOAD.as_("N")]
DEFAULT_DEPTH = 8


class Request(StrictModel):
    """The request of a command: every field is an option."""

    #: Fields that cannot change the answer of this request, with the reason: they are refused, not ignored.
    unused: ClassVar[Mapping[str, str]] = {}


class ScenarioRequest(Request):
    """A model on GPUs, a drafter, a load and prices, by names."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="A bundled name, a config.json, a model folder, or an id in the local hub cache.",
        ),
        Shown(panel=MODEL.panel, argument=True, names=_models),
    ]
    gpu: GpuField
    gpus: Annotated[
        int, Field(ge=1, le=65_536, description="GPUs that serve one copy of the model."), MODEL.as_("N").needed
    ] = 1
    parallel: Annotated[
        Parallel,
        Field(
            description="tp: split everything; ep: tensor-parallel attention, expert-parallel experts; dp-ep: "
            "data-parallel attention, expert-parallel experts."
        ),
        MODEL.as_("LAYOUT"),
    ] = Parallel.TP
    tp: Annotated[
        int | None,
        Field(ge=1, le=65_536, description="Tensor-parallel GPUs of each data-parallel group."),
        MODEL.as_("N", "--gpus over --dp and --pp"),
    ] = None
    dp: Annotated[
        int, Field(ge=1, le=65_536, description="Data-parallel groups, each with its own sequences."), MODEL.as_("N")
    ] = 1
    ep: Annotated[
        bool,
        Field(description="Spread whole experts over all --tp × --dp GPUs; else each is split over them."),
        MODEL,
    ] = False
    pp: Annotated[
        int,
        Field(ge=1, le=1024, description="Pipeline stages, each with --tp × --dp GPUs; batches fill all of them."),
        MODEL.as_("N"),
    ] = 1
    redundant_experts: Annotated[
        int,
        Field(
            ge=0,
            le=4096,
            description="Copies of popular experts per layer (EPLB). Balance gains only "
            "where the routing profile identifies experts.",
        ),
        MODEL.as_("N"),
    ] = 0
    nodes: Annotated[
        int | None,
        Field(ge=1, le=4096, description="Nodes that the GPUs are in."),
        MODEL.as_("N", "as few as hold --gpus"),
    ] = None
    fabric: Annotated[
        str | None,
        Field(min_length=1, description="Network between nodes: infiniband-ndr, roce-400, efa-400 or your own."),
        MODEL.as_("NAME", "the datasheet's network bandwidth"),
    ] = None
    placement: Annotated[
        Placement,
        Field(
            description="Placement of experts on ranks: contiguous, round-robin or balanced. Matters only where "
            "the routing profile identifies experts."
        ),
        MODEL.as_("KIND"),
    ] = Placement.CONTIGUOUS
    experts_on: Annotated[
        ExpertsOn,
        Field(description="Where routed experts are: gpu, or cpu (in main memory, where the processor computes them)."),
        HOST.as_("PLACE"),
    ] = ExpertsOn.GPU
    n_cpu_moe: Annotated[
        int | None,
        Field(
            ge=0, le=4096, description="llama.cpp only: routed experts of the model's first N layers in main memory."
        ),
        HOST.as_("N", "with --cpu or --host-memory the fewest that fit, else 0"),
    ] = None
    gpu_experts: Annotated[
        int,
        Field(ge=0, le=4096, description="With --experts-on cpu: most popular experts per layer that stay on the GPU."),
        HOST.as_("N"),
    ] = 0
    cpu: Annotated[
        str | None,
        Field(min_length=1, description="Processor beside the GPU: a bundled name, or your own as FILE.toml."),
        HOST.as_("NAME", "a desktop with dual-channel DDR5-5600").completed(_processors),
    ] = None
    host_memory: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Main memory in GB."),
        HOST.as_("GB", "the processor's usual"),
    ] = None
    pcie: Annotated[
        str | None,
        Field(min_length=1, description="Link from main memory to the GPU: generation and lanes, such as 4x16, 5x8."),
        HOST.as_("LINK", "the older generation of the two, 16 lanes"),
    ] = None
    weights: Annotated[
        str | None,
        Field(description="Weight precision of linear layers: fp8, nvfp4, mxfp4, int4-g128, Q4_K_M ..."),
        MODEL.as_("PRECISION", "from the model's configuration").needed,
    ] = None
    kv_cache: Annotated[
        str | None,
        Field(description="Precision of the KV cache: bf16, fp8."),
        MODEL.as_("PRECISION", "from the model's configuration"),
    ] = None
    memory_utilization: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Fraction of GPU memory that the engine may use. Apple GPUs: 0.75 (2/3 up to 36 GB) unless "
            "more than 0.9 says that iogpu.wired_limit_mb is raised.",
        ),
        MODEL.as_("FRACTION"),
    ] = 0.9
    drafter: DrafterField = None
    draft_weights: Annotated[
        str | None,
        Field(description="Weight precision of the drafter's linear layers: bf16, fp8, int4-g128, Q8_0 ..."),
        DRAFTS.as_("PRECISION", "from the checkpoint that holds it; llama.cpp: --weights"),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Tokens that the drafter's LM head scores, where it is a reduced one."),
        DRAFTS.as_("TOKENS", "the drafter's own: the target's for MTP and DFlash"),
    ] = None
    acceptance: Annotated[
        str | None,
        Field(
            description="0.8 (every token), 0.78,0.58,0.44 (survival by depth), length:2.4@3 (accept length at depth 3 "
            "including the bonus token, as engines report it), accepted:1.4@3 (excluding it), a bank of rounds or its "
            "profile (PATH or PATH:CATEGORY), or a bundled curve (mtp, dflash, "
            "eagle ..., reference-moe[:CATEGORY])."
        ),
        DRAFTS.as_("CURVE", "the bundled curve of the drafter or its kind").needed,
    ] = None
    routing: Annotated[
        str | None,
        Field(
            description="How positions choose experts: uniform, a bundled NAME[:CATEGORY], or "
            "FILE[:CATEGORY[=WEIGHT],...] made by `specmargin profile routing`."
        ),
        DRAFTS.as_("PROFILE", "the model's bundled profile, else one borrowed from qwen3.6-35b-a3b"),
    ] = None
    draft_p_min: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="llama.cpp only: a draft stops at the first token whose confidence is below this; the depth "
            "is then the maximum draft length.",
        ),
        DRAFTS.as_("P", "no threshold"),
    ] = None
    context: ContextField = 1024
    engine: Annotated[
        str | None,
        Field(description=f"Engine whose kernels and overhead are priced: {', '.join(ENGINES)}."),
        PRICES.as_("NAME", "the first of these that runs on the GPU").completed(lambda: list(ENGINES)).needed,
    ] = None
    backend: Annotated[
        str | None,
        Field(
            min_length=1,
            description="llama.cpp only: cuda, hip, metal or vulkan, whose kernels are priced.",
        ),
        PRICES.as_("NAME", "cuda on NVIDIA, hip on AMD, metal on Apple, vulkan on Intel GPUs"),
    ] = None
    prices: Annotated[
        str | None,
        Field(
            description="datasheet (a roofline), laws (fitted to measured kernels), tables (the measured kernels; "
            "needs the extra `tables`), scaled (laws of the nearest measured GPU, scaled by datasheet ratios), "
            "FILE.json with your own laws or measured steps (`specmargin measure`), or a bundled measurement."
        ),
        PRICES.as_(
            "SOURCE",
            "tables if installed, else laws; scaled for a GPU without measurements; llama.cpp: its own kernels",
        ),
    ] = None
    form: Annotated[
        RooflineForm,
        Field(description="per-component: one roofline per kernel; whole-step: one roofline over the step."),
        PRICES.as_("FORM"),
    ] = RooflineForm.PER_COMPONENT
    engine_time: Annotated[
        str | None,
        Field(
            description="Engine time outside the kernels: none, vllm (0.32), sglang, trtllm, llamacpp, vllm:sync "
            "(synchronous scheduling), a release (vllm:0.24, vllm:0.27.1:sync, sglang:0.5.23), vllm:slow-host, "
            "vllm:piecewise."
        ),
        PRICES.as_("NAME", "the engine's with measured prices, none with datasheet prices").completed(_engine_times),
    ] = None
    graph_limit: Annotated[
        int | None,
        Field(ge=1, le=1 << 24, description="Positions of the largest captured CUDA graph."),
        PRICES.as_("POSITIONS", "the engine's default"),
    ] = None
    step_ms: Annotated[
        float | None,
        Field(ge=0, lt=1e6, description="Engine time per step outside the kernels, in ms."),
        PRICES.as_("MS"),
    ] = None
    sequence_ms: Annotated[
        float | None, Field(ge=0, lt=1e6, description="Engine time per step and sequence, in ms."), PRICES.as_("MS")
    ] = None
    position_us: Annotated[
        float | None, Field(ge=0, lt=1e9, description="Engine time per step and position, in µs."), PRICES.as_("µS")
    ] = None
    layer_us: Annotated[
        float | None, Field(ge=0, lt=1e9, description="Fixed kernel time per layer, in µs."), PRICES.as_("µS")
    ] = None
    verify_ms: Annotated[
        float | None,
        Field(ge=0, lt=1e6, description="Engine time that a verify step adds to a plain step, in ms."),
        PRICES.as_("MS"),
    ] = None
    verify_sequence_ms: Annotated[
        float | None,
        Field(ge=0, lt=1e6, description="Engine time per verified sequence, in ms."),
        PRICES.as_("MS"),
    ] = None
    verify_token_us: Annotated[
        float | None,
        Field(ge=0, lt=1e9, description="Engine time per verified draft token, in µs."),
        PRICES.as_("µS"),
    ] = None
    draft_pass_ms: Annotated[
        float | None,
        Field(ge=0, lt=1e6, description="Engine time per pass of the drafter, in ms."),
        PRICES.as_("MS"),
    ] = None
    off_ms: Annotated[
        float | None,
        Field(ge=0, lt=1e6, description="Time that speculation adds per step while configured but disabled, in ms."),
        PRICES.as_("MS"),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _count_gpus(cls, given: Any) -> Any:
        """Without --gpus, as many as the layout has. Sizes that are no numbers are refused with their fields."""
        if not isinstance(given, Mapping) or "gpus" in given:
            return given
        sizes = [given.get(name) or 1 for name in _SIZES]
        counts = [int(size) for size in sizes if isinstance(size, int) or (isinstance(size, str) and size.isdecimal())]
        whole = len(counts) == len(sizes) and min(counts) > 0
        return {**given, "gpus": prod(counts)} if whole and _SIZES & given.keys() else given

    def scenario_only(self) -> ScenarioRequest:
        """The scenario without the fields of a verb: the key for a cache of scenarios."""
        fields = {name: getattr(self, name) for name in ScenarioRequest.model_fields}
        unset = {"memory_utilization"} - self.model_fields_set  # the engine's own share
        return ScenarioRequest.model_construct(_fields_set=fields.keys() - unset, **fields)


RequestKind = TypeVar("RequestKind", bound=Request)


def read_request(
    kind: type[RequestKind], given: Mapping[str, Any], *, option: Callable[[str], str] = str, source: str = ""
) -> RequestKind:
    """The validated request, or a one-sentence error. `option`: the name of a field where the request came from."""
    where = f"{source}: " if source else ""
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise ScenarioError(f"{where}{first_complaint(error, name=option, known=kind.model_fields)}") from None
    for field, why in kind.unused.items():
        if field in request.model_fields_set:
            raise ScenarioError(f"{where}{option(field)}: {why}; leave it out")
    return request
