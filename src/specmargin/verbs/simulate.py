"""Simulate an engine like vLLM that serves a workload under one policy or several.

Models arrivals, chunked prefill, KV blocks, preemption, and drafts that are verified one step later.

Options given together with a scenario file override the file.

Examples:

  specmargin simulate qwen3.6-35b-a3b --gpu h200 --qps 6 --policy controller,fixed:2,none
  specmargin simulate day.toml --plot day.png
  specmargin simulate llama-3.1-70b --gpu h100-sxm --gpus 4 --drafter eagle --users 64 --requests 1000
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, bold, dim, left, right, sourced
from specmargin.answers.outputs_schema import FILE, ChartOutputs, Outputs
from specmargin.answers.request_schema import (
    DRAFTS,
    LOAD,
    MAX_CONTEXT,
    MODEL,
    NUMBER,
    PRICES,
    QUESTION,
    ScenarioRequest,
    Shown,
)
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError, ScenarioError, needs_extra
from specmargin.files import check_table, read_toml, write_columns
from specmargin.limits import MAX_BATCH, MAX_DEPTH
from specmargin.modes import POLICIES
from specmargin.words import duration

if TYPE_CHECKING:
    from specmargin.answers.simulation_schema import SimulationFile
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.figures.figure import Chart
    from specmargin.simulator.results import Result

_MAX_REQUESTS = 10_000_000
_HOURS = 3  # shortest run whose figure compares policies by hour
_ASSUMED = "assumed: the vLLM V1 scheduler; no prefix cache; one round per step"
_SHOWN_TIMES = (
    ("ttft_seconds", "p50"),
    ("ttft_seconds", "p99"),
    ("tpot_seconds", "p50"),
    ("tpot_seconds", "p99"),
    ("e2e_seconds", "p50"),
)


# --- request ---


class SimulateRequest(ScenarioRequest):
    """A load served by an engine under policies. A scenario file given as the model provides all fields."""

    unused: ClassVar[Mapping[str, str]] = {"draft_p_min": "policies decide here how long drafts are"}

    model: Annotated[
        str,
        Field(min_length=1, description="A model (with --gpu and a load), or a scenario file."),
        Shown(panel="Model and GPUs", argument=True, metavar="MODEL|FILE.toml"),
    ]
    gpu: Annotated[str, Field(description="A bundled device, or your own as FILE.toml."), MODEL.as_("GPU")] = ""
    policy: Annotated[
        str,
        Field(description=f"{', '.join(POLICIES)}; separate several with commas to compare them."),
        QUESTION.as_("NAMES"),
    ] = "controller,none"
    qps: Annotated[
        float | None, Field(gt=0, le=1e6, description="Requests per second (Poisson)."), LOAD.as_("RATE")
    ] = None
    users: Annotated[
        int | None,
        Field(ge=1, le=_MAX_REQUESTS, description="Closed loop with this many concurrent users."),
        LOAD.as_("N"),
    ] = None
    trace: Annotated[str | None, Field(description="Request trace, CSV or JSONL."), LOAD.as_("FILE")] = None
    requests: Annotated[int, Field(ge=1, le=_MAX_REQUESTS, description="Number of requests."), LOAD.as_("N")] = 400
    burst: Annotated[
        int, Field(ge=1, le=_MAX_REQUESTS, description="Requests per arrival, at the same mean rate."), LOAD.as_("N")
    ] = 1
    isl: Annotated[
        int, Field(ge=1, le=MAX_CONTEXT, description="Prompt tokens: 1000, 4k."), NUMBER, LOAD.as_("TOKENS")
    ] = 1000
    osl: Annotated[
        int, Field(ge=1, le=MAX_CONTEXT, description="Output tokens: 200, 1k."), NUMBER, LOAD.as_("TOKENS")
    ] = 200
    bank: Annotated[
        str | None,
        Field(description="Bank of rounds to replay. Otherwise rounds are drawn from --acceptance."),
        DRAFTS.as_("FOLDER"),
    ] = None
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="Maximum draft depth."), QUESTION.as_("N")] = 4
    max_num_seqs: Annotated[
        int, Field(ge=1, le=MAX_BATCH, description="Maximum sequences per step, as in vLLM."), PRICES.as_("N")
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        Field(ge=1, le=MAX_CONTEXT, description="Maximum tokens per step, as in vLLM: 8192, 16k."),
        NUMBER,
        PRICES.as_("N"),
    ] = 8192
    ttft_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time to first token, in ms."), QUESTION.as_("MS")
    ] = None
    tpot_slo: Annotated[
        float | None, Field(gt=0, lt=1e9, description="Target for the time between tokens, in ms."), QUESTION.as_("MS")
    ] = None
    gpu_hour_price: Annotated[
        float | None, Field(gt=0, lt=1e9, description="US dollars per GPU-hour, to show costs."), QUESTION.as_("PRICE")
    ] = None
    seed: Annotated[
        int, Field(ge=0, description="Random seed; equal seeds give identical results."), QUESTION.as_("N")
    ] = 0


class SimulateOutputs(ChartOutputs):
    save_requests: Annotated[
        Path | None, Field(description="Write all requests to FILE.parquet or FILE.csv (one policy only)."), FILE
    ] = None
    save_steps: Annotated[
        Path | None, Field(description="Write all steps to FILE.parquet or FILE.csv (one policy only)."), FILE
    ] = None
    plot: Annotated[
        Path | None,
        Field(
            description="Draw depth and load over time, or several policies side by side: FILE.png, .svg, .html or "
            ".json."
        ),
        FILE,
    ] = None

    def check(self) -> None:
        super().check()
        for path in (self.save_requests, self.save_steps):
            if path is not None:
                check_table(path, force=self.force)


_LOADS = {"users", "requests_per_second", "hours", "rates", "trace"}
_DEFAULTS: dict[str, Any] = {"workload": {"requests": 400}, "policy": "controller,none"}
_FILE_KEYS = {
    "qps": ("workload", "requests_per_second"),
    "users": ("workload", "users"),
    "trace": ("workload", "trace"),
    "requests": ("workload", "requests"),
    "burst": ("workload", "burst"),
    "isl": ("workload", "prompt"),
    "osl": ("workload", "output"),
    "max_num_seqs": ("engine", "max_num_seqs"),
    "max_num_batched_tokens": ("engine", "max_num_batched_tokens"),
    "ttft_slo": ("slo", "ttft_ms"),
    "tpot_slo": ("slo", "tpot_ms"),
    "depth": ("", "max_depth"),
}


def simulation_of(request: SimulateRequest) -> tuple[SimulationFile, Path]:
    """The run that a request describes, and the folder to which its paths are relative."""
    with needs_extra("simulate"):
        from specmargin.answers.simulation_schema import parse_simulation

    given = _nested(request)
    if not request.model.endswith(".toml"):
        if not request.gpu:
            raise InputError("name a device with --gpu (`specmargin gpus` lists them), or give a scenario file")
        if len(_LOADS & given["workload"].keys()) != 1:
            raise InputError("give one load: --qps, --users or --trace")
        return parse_simulation(_merged(_DEFAULTS, given), "simulate"), Path()
    path = Path(request.model)
    base = read_toml(path, ScenarioError)
    if _LOADS & given["workload"].keys() and isinstance(base.get("workload"), dict):
        base["workload"] = {name: value for name, value in base["workload"].items() if name not in _LOADS}
    for where, name in (("workload", "trace"), ("scenario", "acceptance"), ("", "bank")):
        table = given[where] if where else given
        if name in table and Path(table[name]).exists():
            table[name] = str(Path(table[name]).resolve())  # relative to the working directory, not to the file
    del given["scenario"]["model"]
    return parse_simulation(_merged(base, given), str(path)), path.parent


def _nested(request: SimulateRequest) -> dict[str, Any]:
    """The given options under the keys that they have in a scenario file."""
    nested: dict[str, Any] = {"scenario": {}, "workload": {}, "engine": {}, "slo": {}}
    for field in request.model_fields_set:
        table, name = _FILE_KEYS.get(field, ("scenario" if field in ScenarioRequest.model_fields else "", field))
        (nested[table] if table else nested)[name] = getattr(request, field)
    return nested


def _merged(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    tables = {name: {**base.get(name, {}), **value} for name, value in given.items() if isinstance(value, dict)}
    return base | given | tables


# --- verb ---


@verb(SimulateRequest, outputs=SimulateOutputs)
def simulate(
    request: SimulateRequest, *, outputs: SimulateOutputs | None = None, progress: Progress = silent
) -> SimulateAnswer:
    described, folder = simulation_of(request)
    names = described.policy.split(",")
    outputs = outputs or SimulateOutputs()
    if len(names) > 1 and (outputs.save_requests or outputs.save_steps):
        raise ScenarioError("--save-requests and --save-steps need a single policy: name one with --policy")
    with needs_extra("simulate"):
        from specmargin.answers.simulations import serving_of
        from specmargin.simulator import run

    serving = serving_of(described, folder)
    for name in names:
        run.check(serving, name)
    results = []
    for name in names:
        with progress(name, serving.workload.arrivals.requests) as advance:
            log_steps = outputs.save_steps is not None
            results.append(run.simulate(replace(serving, policy=name), log_steps=log_steps, advance=advance))
    rows = tuple(_row(result, described) for result in results)
    return SimulateAnswer(request=request, described=described, results=tuple(results), policies=rows)


def _row(result: Result, described: SimulationFile) -> dict[str, Any]:
    summary = result.summary(described.slo.slo(), described.gpu_hour_price)
    components = {"seconds_by_component": result.seconds_by_component()}
    return {"policy": result.serving.policy} | summary | components


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulateAnswer(Answer[SimulateRequest]):
    """One run per policy, in the order asked for, on the same load."""

    described: SimulationFile
    results: tuple[Result, ...]
    policies: tuple[dict[str, Any], ...]  # what is said of each

    schema: ClassVar[str] = "specmargin.simulate/1"

    @property
    def scenario(self) -> Scenario:
        return self.results[0].serving.pricer.scenario

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.policies)

    def table(self) -> list[dict[str, Any]]:
        return [flat(row) for row in self.policies]

    @property
    def verdict(self) -> str:
        rows = self.policies
        served = f"{rows[0]['finished']:,} of {rows[0]['requests']:,} requests served"
        refused = f", {rows[0]['refused']:,} refused (would never fit)" if rows[0]["refused"] else ""
        if len(rows) == 1:
            return f"{served}{refused}, {rows[0]['committed']:,} tokens in {duration(rows[0]['span_seconds'])}."
        best = max(rows, key=lambda row: float(row["busy_tokens_per_second"]))
        rate = best["busy_tokens_per_second"]
        return f"{served}{refused}; highest throughput while busy: {best['policy']}, {rate:,.0f} tokens/s."

    def values(self) -> dict[str, Any]:
        """The first policy at the top level, all of them under `policies`; options are those of the scenario, the rest
        is in `description`."""
        from specmargin.answers.stamp import used_options

        described, first, rows = self.described, self.results[0].serving, self.rows
        sources = {name: str(source) for name, source in first.pricer.sources.items()}
        return {
            "model": described.scenario.model,
            "gpu": described.scenario.gpu,
            **rows[0],
            "policies": rows,
            "sources": sources | {"rounds": first.bank.source},
            "description": described.description(),
            "options": used_options(described.scenario, self.scenario),
            "survival": [float(part) for part in first.bank.prior[: described.max_depth]],
        }

    def to_dict(self) -> dict[str, Any]:
        from specmargin.answers.stamp import stamped

        return stamped({"schema": self.schema} | self.values())

    def written(self, outputs: Outputs) -> Self:
        if isinstance(outputs, SimulateOutputs):
            result = self.results[0]
            if outputs.save_requests is not None:
                write_columns(outputs.save_requests, result.request_columns(), force=outputs.force)
            if outputs.save_steps is not None:
                write_columns(outputs.save_steps, result.step_columns(), force=outputs.force)
        return Answer.written(self, outputs)

    def blocks(self) -> Iterator[Block]:
        serving = self.results[0].serving
        yield bold(self.verdict)
        yield GAP
        yield self._speeds()
        yield GAP
        yield self._busy_time()
        yield GAP
        yield from sourced({name: source for name, source in serving.pricer.sources.items() if name != "acceptance"})
        yield dim(f"  rounds: {serving.bank.source}")
        yield dim(f"  engine: {_ASSUMED}")

    def _speeds(self) -> Table:
        slo, price = self.described.slo.slo() is not None, self.described.gpu_hour_price is not None
        names = ["tok/s", "busy", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "batch", "depth", "wasted"]
        names += ["SLO"] * slo + ["cost $"] * price
        return Table(
            title="tokens per second; times in ms; wasted: share of drafts not accepted",
            columns=[*left("policy"), *right(*names)],
            rows=[_speed_cells(row, slo=slo, price=price) for row in self.policies],
        )

    def _busy_time(self) -> Table:
        parts = [row["seconds_by_component"] for row in self.policies]
        whole = [max(result.busy_seconds, 1e-12) for result in self.results]
        return Table(
            title="busy time by component",
            columns=[*left("component"), *right(*(result.serving.policy for result in self.results))],
            rows=[
                [name, *(f"{part.get(name, 0.0) / busy:.1%}" for part, busy in zip(parts, whole, strict=True))]
                for name in dict.fromkeys(name for part in parts for name in part)
            ],
        )

    def chart(self) -> Chart:
        """One policy over time, or several side by side."""
        from specmargin.show.figures.simulation import (
            SIMULATOR,
            Run,
            Words,
            day_figure,
            policies_figure,
        )

        title, results = f"{self.described.scenario.model} on {self.described.scenario.gpu}", self.results
        if len(results) == 1:
            policy, timeline = results[0].serving.policy, results[0].timeline()
            said = f"Policy {policy}, {results[0].requests.size:,} requests."
            run = Run(policy=policy, timeline=timeline, hourly=_in_mid_hour(results[0].hourly()))
            return day_figure(Words(title=title, takeaway=said, source=SIMULATOR), [run]).chart()
        hourly = [row | {"policy": result.serving.policy} for result in results for row in result.hourly()]
        if len({row["hour"] for row in hourly}) < _HOURS:
            hourly = []
        words = Words(title=title, takeaway="Every policy serves the same requests.", source=SIMULATOR)
        return policies_figure(words, [result.policy_row() for result in results], hourly).chart()


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row without tables in it: their names are joined by underscores."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        columns |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return columns


def _speed_cells(row: dict[str, Any], *, slo: bool, price: bool) -> Sequence[str]:
    wasted = row["wasted"] / row["drafted"] if row["drafted"] else 0.0
    return [
        row["policy"],
        f"{row['goodput_tokens_per_second']:,.0f}",
        f"{row['busy_tokens_per_second']:,.0f}",
        *(_milliseconds(row[key][quantile]) for key, quantile in _SHOWN_TIMES),
        f"{row['mean_batch']:.1f}",
        f"{row['mean_draft_depth']:.2f}",
        f"{wasted:.0%}",
        *([f"{row['slo_attainment']:.1%}"] if slo else []),
        *([f"{row['cost']:,.2f}"] if price else []),
    ]


def _milliseconds(seconds: float | None) -> str:
    """Three digits."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _in_mid_hour(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [row | {"hour": row["hour"] + 0.5} for row in rows]
