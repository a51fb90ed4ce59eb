"""Time steps of your own llama.cpp and fit a price file.

From a llama-server that runs (--url), or from llama-server or llama-bench, which are started with your model file
(--binary, --model-file) and your own options (--options). A step with several positions, as speculation verifies them,
is a prompt that adds so many tokens to a cached one. A server that drafts shows the time of its drafter: time it after
the same server without speculation, with the same command. Every row is written to FILE.rows.jsonl immediately: run the
command again to resume.

Examples:

  specmargin measure llamacpp qwen3-30b-a3b --weights q4_k_m --url http://localhost:8080 -o mine.json
  specmargin measure llamacpp qwen3-30b-a3b --weights q4_k_m --binary ~/llama.cpp/llama-bench \\
    --model-file Qwen3-30B-A3B-Q4_K_M.gguf --options '-ngl 99 --n-cpu-moe 30' -o mine.json
  specmargin plan qwen3-30b-a3b --weights q4_k_m --gpu rtx-4090 --engine llamacpp --prices mine.json
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from specmargin.answers.measurement import MeasurementAnswer
from specmargin.answers.numbers_schema import Numbers
from specmargin.answers.outputs_schema import ContinuedOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Bars, no_bars, verb
from specmargin.architecture.precision import precision_named
from specmargin.architecture.types import Architecture
from specmargin.catalog.lookup import find_model
from specmargin.errors import InputError
from specmargin.hardware.layout import Layout
from specmargin.measure.llamacpp.order import DRAFTER, STEPS, Order
from specmargin.measure.records import Records

if TYPE_CHECKING:
    from specmargin.measure.llamacpp.launch import Program
    from specmargin.measure.llamacpp.server import Properties, Server

_LIST = Shown(metavar="LIST")
_NEAR = 0.25  # of the model's bytes: a file of another precision differs by more
_BATCHES = (1, 2, 4)


class MeasureLlamacppRequest(Request):
    """Which steps of which model are timed, and where."""

    model: Annotated[
        str,
        Field(min_length=1, description="The model that is served: a bundled name, a config.json or a folder."),
        Shown(argument=True),
    ]
    weights: Annotated[
        str | None,
        Field(description="Precision of its GGUF file, as in `plan`: Q4_K_M, q8_0 ..."),
        Shown(metavar="NAME"),
    ] = None
    url: Annotated[str | None, Field(description="Address of a llama-server that runs."), Shown(metavar="URL")] = None
    binary: Annotated[
        str | None, Field(description="llama-server or llama-bench, to be started."), Shown(metavar="PATH")
    ] = None
    model_file: Annotated[
        Path | None, Field(description="The model as GGUF, for --binary."), Shown(metavar="FILE.gguf")
    ] = None
    options: Annotated[
        str,
        Field(description="Options of your own for --binary, such as '-ngl 99 --n-cpu-moe 30 -t 8'."),
        Shown(metavar="TEXT"),
    ] = ""
    drafter: Annotated[
        str | None,
        Field(description="With llama-server as --binary: a draft model's GGUF file, or a type such as draft-mtp."),
        Shown(metavar="FILE|TYPE"),
    ] = None
    draft_depth: Annotated[int, Field(ge=1, le=32, description="Most tokens of a timed draft."), Shown(metavar="N")] = 7
    positions: Annotated[Numbers, Field(description="Positions of one sequence in a step: draft depth + 1."), _LIST] = (
        tuple(range(1, 17))
    )
    batches: Annotated[
        Numbers | None,
        Field(description="Sequences that decode together (llama-server)."),
        _LIST.as_("LIST", "1, 2 and 4, as slots allow"),
    ] = None
    contexts: Annotated[Numbers, Field(description="Tokens in the cache before the step."), _LIST] = (512,)
    repeats: Annotated[
        int, Field(ge=2, description="Timings of each point; all points are timed in turn."), Shown(metavar="N")
    ] = 7
    patience: Annotated[
        float, Field(gt=0, description="How long one answer of the server may take."), Shown(metavar="SECONDS")
    ] = 120.0
    minutes: Annotated[
        float,
        Field(ge=0.1, description="Start no timing after this time; the rows measured so far are fitted."),
        Shown(metavar="MINUTES"),
    ] = 10.0
    fit_only: Annotated[bool, Field(description="Time nothing: fit the rows measured so far.")] = False

    @model_validator(mode="after")
    def _one_place(self) -> MeasureLlamacppRequest:
        if self.fit_only:
            return self
        if (self.url is None) is (self.binary is None):
            raise ValueError("give either --url of a llama-server, or --binary with --model-file")
        if self.binary is not None and self.model_file is None:
            raise ValueError("--binary needs --model-file FILE.gguf")
        if self.drafter is not None and self.binary is None:
            raise ValueError("--drafter starts a server, so it needs --binary; a server at --url shows its own drafter")
        return self

    def order(self, *, slots: int) -> Order:
        return Order(
            model=self.model,
            weights=self.weights or "",
            options=self.options,
            positions=self.positions,
            batches=self.batches or tuple(batch for batch in _BATCHES if batch <= max(slots, 1)),
            contexts=self.contexts,
            repeats=self.repeats,
        )


# --- verb ---


@verb(MeasureLlamacppRequest, outputs=ContinuedOutputs)
def measure_llamacpp(
    request: MeasureLlamacppRequest, *, outputs: ContinuedOutputs, bars: Bars = no_bars
) -> MeasureLlamacppAnswer:
    architecture = find_model(request.model, weights=precision_named(request.weights) if request.weights else None)
    import scipy.optimize  # noqa: F401 (found missing before anything is timed, not after)

    log = outputs.output.with_suffix(".log")
    records = Records(path=outputs.output.with_suffix(".rows.jsonl"))
    header = request.order(slots=1).header()
    records.check(header, fresh=outputs.force and not request.fit_only)
    if not request.fit_only:
        _measure(request, architecture, records, fresh=outputs.force, log=log, bars=bars)
    from specmargin.measure.price_file import price_file

    fitted = price_file(records.rows(), records.engines(), architecture, drafter_method=_method(records))
    return MeasureLlamacppAnswer(request=request, fitted=fitted, failures={}, output=outputs.output, log=log)


def _measure(
    request: MeasureLlamacppRequest, model: Architecture, records: Records, *, fresh: bool, log: Path, bars: Bars
) -> None:
    """Everything that can be wrong with what was given is found before the records are begun."""
    deadline = time.time() + 60.0 * request.minutes
    if request.url is not None:
        from specmargin.measure.llamacpp.server import Server

        server = Server.at(request.url, request.patience)
        _check_bytes(server.about().weight_bytes, request.url, model, request)
        records.begin(request.order(slots=1).header(), fresh=fresh)
        with records.interruptible(), bars() as update:
            _time(server, request, records, deadline=deadline, watch=update)
        return
    from specmargin.measure.llamacpp.gguf import read_gguf
    from specmargin.measure.llamacpp.launch import Program

    program = Program.at(str(request.binary))
    file = read_gguf(_given(request.model_file))
    _check_bytes(file.weight_bytes, str(file.path), model, request)
    if request.drafter is not None and request.drafter.endswith(".gguf"):
        read_gguf(Path(request.drafter))
    records.begin(request.order(slots=1).header(), fresh=fresh)
    with records.interruptible(), bars() as update:
        _start(program, request, records, deadline=deadline, log=log, watch=update)


def _start(
    program: Program,
    request: MeasureLlamacppRequest,
    records: Records,
    *,
    deadline: float,
    log: Path,
    watch: Callable[[str, int, int], None],
) -> None:
    from specmargin.measure.llamacpp.bench import measure_bench
    from specmargin.measure.llamacpp.launch import ProgramKind, speculation_options, started

    model, order = _given(request.model_file), request.order(slots=max(_BATCHES))
    if program.kind is ProgramKind.BENCH:
        if request.drafter is not None:
            raise InputError("--drafter: llama-bench has no drafter; give llama-server as --binary")
        said = measure_bench(program, model, order, records, deadline=deadline, log=log, watch=watch)
        if said:
            machine = " ".join(dict.fromkeys(str(said.get(name, "")) for name in ("cpu_info", "gpu_info"))).strip()
            build = program.build or f"b{said.get('build_number', '')}"
            _note(records, STEPS, request, f"llama.cpp {build} (llama-bench)", machine, interleaved=False)
        return
    runs = [[], *([speculation_options(request.drafter, request.draft_depth)] if request.drafter else [])]
    for speculation in runs:
        with started(program, model, order, speculation=speculation, log=log, patience=request.patience) as server:
            _time(server, request, records, deadline=deadline, watch=watch)


def _time(
    server: Server,
    request: MeasureLlamacppRequest,
    records: Records,
    *,
    deadline: float,
    watch: Callable[[str, int, int], None],
) -> None:
    from specmargin.measure.llamacpp.steps import measure_server

    about = server.about()
    run = DRAFTER if about.speculation else STEPS
    _note(records, run, request, f"llama.cpp {about.build} (llama-server)", "", interleaved=True, about=about)
    measure_server(server, request.order(slots=about.slots), records, deadline=deadline, watch=watch)


def _note(
    records: Records,
    run: str,
    request: MeasureLlamacppRequest,
    engine: str,
    machine: str,
    *,
    interleaved: bool,
    about: Properties | None = None,
) -> None:
    """The engine and the machine, as conditions of the price file."""
    conditions = {
        "engine": engine,
        "machine": machine or f"the server's, asked from {platform.node()}",
        "options": request.options or "-",
        "weights": request.weights or "as the model's configuration",
        "software": f"{platform.system()} {platform.machine()}",
        "clock": "wall clock",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    records.append(
        {
            "record": "engine",
            "run": run,
            "graph_mode": "none",
            "capture_sizes": [],
            "gpu": "",
            "interleaved": interleaved,
            "speculation": [] if about is None else list(about.speculation),
            "conditions": conditions,
        }
    )


def _given(path: Path | None) -> Path:
    if path is None:
        raise InputError("--binary needs --model-file FILE.gguf")
    return path


def _check_bytes(found: int, where: str, model: Architecture, request: MeasureLlamacppRequest) -> None:
    """Whether the file can be that model in that precision."""
    from specmargin.prices.memory import weight_bytes

    wanted = float(weight_bytes(model, Layout()))
    if found and abs(found / wanted - 1.0) > _NEAR:
        given = f"--weights {request.weights}" if request.weights else "its own precision"
        raise InputError(
            f"{where} holds {found / 1e9:.3g} GB of weights, and {request.model} in {given} {wanted / 1e9:.3g} GB: "
            "name its model, and its precision with --weights"
        )


def _method(records: Records) -> str:
    types = records.engines().get(DRAFTER, {}).get("speculation") or []
    return ", ".join(types)


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasureLlamacppAnswer(MeasurementAnswer[MeasureLlamacppRequest]):
    """Fitted to steps of llama.cpp."""

    def _warnings(self) -> list[str]:
        rows = self.fitted.file.rows
        warnings = []
        if all(row.batch == 1 for row in rows):
            warnings += ["only one sequence was timed; prices of several rest on the model (llama-server times them)"]
        if all(row.depth == 0 for row in rows if row.run == STEPS):
            warnings += ["no step with several positions was timed; prices of drafts rest on the model"]
        return warnings
