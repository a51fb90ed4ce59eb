"""`specmargin simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, ScenarioError, needs_extra
from specmargin.files import check_new

if TYPE_CHECKING:
    from specmargin.app.simulation_schema import SimulationFile
    from specmargin.simulator.results import Result
    from specmargin.simulator.serving import Serving

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SCHEMA = "specmargin.simulate/1"
_HOURS = 3  # from which on a figure of policies shows them hour by hour


@app.command()
def simulate(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|FILE.toml", help="A model (with --gpu and a load), or a scenario file.")
    ],
    gpu: Annotated[str | None, typer.Option("--gpu", help="A bundled device, or your own as FILE.toml.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="none, off, fixed:K, schedule, gate, controller, one-width, oracle, vllm-adaptive, sglang, turbospec, "
            "cascade; several with commas are shown side by side.",
        ),
    ] = None,
    qps: Annotated[float | None, typer.Option("--qps", help="Requests a second (Poisson).")] = None,
    users: Annotated[int | None, typer.Option("--users", help="Closed loop: so many at once.", min=1)] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Requests of a CSV or JSONL file.")] = None,
    requests: Annotated[int, typer.Option("--requests", help="How many.", min=1)] = 400,
    burst: Annotated[int, typer.Option("--burst", help="So many arrive at once, at the same mean rate.", min=1)] = 1,
    isl: Annotated[int, typer.Option("--isl", help="Prompt tokens.", min=1)] = 1000,
    osl: Annotated[int, typer.Option("--osl", help="Output tokens.", min=1)] = 200,
    bank: Annotated[
        Path | None, typer.Option("--bank", help="Rounds to replay; else they are drawn from --acceptance.")
    ] = None,
    max_depth: Annotated[int, typer.Option("--depth", help="Deepest draft.", min=1, max=64)] = 4,
    gpus: o.Gpus = 1,
    drafter: o.DrafterOption = None,
    acceptance: o.AcceptanceOption = None,
    routing: o.RoutingOption = None,
    weights: o.WeightsOption = None,
    kv_cache: o.KvOption = None,
    prices: o.PricesOption = None,
    engine_time: o.EngineTimeOption = None,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", help="As in vLLM.", min=1)] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option("--max-num-batched-tokens", help="As in vLLM.", min=1)] = 8192,
    ttft_slo: Annotated[float | None, typer.Option("--ttft-slo", help="Limit of the time to first token, ms.")] = None,
    tpot_slo: Annotated[float | None, typer.Option("--tpot-slo", help="Limit of the time between tokens, ms.")] = None,
    gpu_hour_price: Annotated[float | None, typer.Option("--gpu-hour-price", help="To show money.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed gives the same bytes.", min=0)] = None,
    save_requests: Annotated[
        Path | None, typer.Option("--save-requests", help="Every request, as Parquet (one policy).")
    ] = None,
    save_steps: Annotated[
        Path | None, typer.Option("--save-steps", help="Every step, as Parquet (one policy).")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--plot", help="Depth and load over time; of several policies, side by side (.png .svg .html)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Serve a workload with an engine like vLLM's, under one policy or several.

    Arrivals, prompts in pieces, KV blocks, preemption, drafts that are verified a step later: in seconds of your time.

    Examples:

      specmargin simulate qwen3.6-35b-a3b --gpu h200 --qps 6 --policy controller,fixed:2,none

      specmargin simulate day.toml --plot day.png

      specmargin simulate llama-3.1-70b --gpu h100-sxm --gpus 4 --drafter eagle --users 64 --requests 1000
    """
    for path in (save_requests, save_steps):
        if path is not None:
            check_new(path, force=force)
    if figure is not None:
        from specmargin.figures.files import check_target  # noqa: PLC0415 (an extra)

        check_target(figure, force=force)
    if what.endswith(".toml"):
        described, folder = _from_file(Path(what), gpu, {"policy": policy, "seed": seed, "bank": _whole(bank)})
    else:
        options = {
            "scenario": {
                "model": what,
                "gpu": gpu or "",
                "gpus": gpus,
                "drafter": drafter,
                "acceptance": acceptance,
                "routing": routing,
                "weights": weights,
                "kv_cache": kv_cache,
                "prices": prices,
                "engine_time": engine_time,
            },
            "workload": _load(qps, users, trace) | {"requests": requests, "burst": burst, "prompt": isl, "output": osl},
            "engine": {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens},
            "slo": {"ttft_ms": ttft_slo, "tpot_ms": tpot_slo},
            "gpu_hour_price": gpu_hour_price,
            "bank": None if bank is None else str(bank),
            "max_depth": max_depth,
        }
        described, folder = _from_options(options, gpu, policy, seed), Path()
    names = described.policy.split(",")
    if len(names) > 1 and (save_requests or save_steps):
        raise ScenarioError("--save-requests and --save-steps are of one policy; name one")
    results = _run(described, folder, names, log_steps=save_steps is not None)
    _save(results[0], save_requests, save_steps)
    if figure is not None:
        _draw(figure, described, results)
    if json:
        render.json_out(_payload(described, results))
    else:
        _show(render.console(), described, results)


# --- what is asked ---


def _whole(path: Path | None) -> str | None:
    """Seen from here, where a scenario file's own paths are seen from its folder."""
    return None if path is None else str(path.resolve())


def _from_file(path: Path, gpu: str | None, said: dict[str, Any]) -> tuple[SimulationFile, Path]:
    from specmargin.app.simulation_schema import read_simulation  # noqa: PLC0415 (pydantic)

    if gpu is not None:
        raise InputError(f"{path} names its own GPU; leave out --gpu")
    changes = {key: value for key, value in said.items() if value is not None}
    return read_simulation(path).model_copy(update=changes), path.parent


def _from_options(options: dict[str, Any], gpu: str | None, policy: str | None, seed: int | None) -> SimulationFile:
    from specmargin.app.simulation_schema import parse_simulation  # noqa: PLC0415 (pydantic)

    if gpu is None:
        raise InputError("name a device with --gpu (`specmargin gpus` lists them), or give a scenario file")
    return parse_simulation(options | {"policy": policy or "controller,none", "seed": seed or 0}, "simulate")


def _load(qps: float | None, users: int | None, trace: Path | None) -> dict[str, Any]:
    given = {"requests_per_second": qps, "users": users, "trace": None if trace is None else str(trace)}
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        raise InputError("give one load: --qps, --users or --trace")
    return found


# --- running ---


def _run(described: SimulationFile, folder: Path, names: list[str], *, log_steps: bool) -> list[Result]:
    from specmargin.app.serving import serving_of  # noqa: PLC0415 (slow to import)

    serving = serving_of(described, folder)
    with needs_extra("simulate"):
        from specmargin.simulator.run import check, with_tables  # noqa: PLC0415

    for name in names:
        check(serving, name)
    serving = with_tables(serving)
    return [_one(serving, name, log_steps) for name in names]


def _one(serving: Serving, name: str, log_steps: bool) -> Result:
    from dataclasses import replace  # noqa: PLC0415

    from specmargin.simulator.run import expected_requests  # noqa: PLC0415
    from specmargin.simulator.run import simulate as run  # noqa: PLC0415

    with render.progress(name, expected_requests(serving)) as advance:
        return run(replace(serving, policy=name), log_steps=log_steps, advance=advance)


def _save(result: Result, requests: Path | None, steps: Path | None) -> None:
    if requests is None and steps is None:
        return
    with needs_extra("simulate"):
        import polars as pl  # noqa: PLC0415 (an extra)

    for path, columns in ((requests, result.request_columns()), (steps, result.step_columns())):
        if path is not None:
            try:
                pl.DataFrame(columns).write_parquet(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _draw(path: Path, described: SimulationFile, results: list[Result]) -> None:
    with needs_extra("figures"):
        from specmargin.figures.files import save  # noqa: PLC0415
        from specmargin.figures.simulation import compared_figure, day_figure, policies_figure  # noqa: PLC0415

    where = f"{described.scenario.model} on {described.scenario.gpu}"
    if len(results) == 1:
        result = results[0]
        subtitle = f"policy: {result.serving.policy}; {result.requests.count:,} requests, modelled"
        save(day_figure(where, result.timeline(), subtitle=subtitle), path)
        return
    rows, same = [result.policy_row() for result in results], "the same requests, modelled"
    hourly = [row | {"policy": result.serving.policy} for result in results for row in result.hourly()]
    if len({row["hour"] for row in hourly}) >= _HOURS:
        save(compared_figure(where, rows, hourly, subtitle=same), path)
    else:
        save(policies_figure(where, rows, subtitle=same), path)


# --- showing ---


def _payload(described: SimulationFile, results: list[Result]) -> dict[str, Any]:
    """The first policy's numbers at the top, each policy's under `policies`."""
    slo, price = described.slo.slo(), described.gpu_hour_price
    runs = []
    for result in results:
        name = result.serving.policy
        runs.append(
            {"policy": name} | result.summary(slo, price) | {"seconds_by_component": result.seconds_by_component()}
        )
    first = {key: value for key, value in runs[0].items() if key != "policy"}
    sources = {name: str(source) for name, source in results[0].serving.scenario.sources.items()}
    return {
        "schema": SCHEMA,
        "model": described.scenario.model,
        "gpu": described.scenario.gpu,
        "policy": runs[0]["policy"],
        **first,
        "policies": runs,
        "sources": sources | {"rounds": results[0].serving.bank.source},
        "description": described.description(),
    }


def _show(out: Console, described: SimulationFile, results: list[Result]) -> None:
    slo, price = described.slo.slo(), described.gpu_hour_price
    rows = [result.summary(slo, price) for result in results]
    out.print(_headline(results, rows), style="bold")
    out.print()
    columns = [
        ("policy", "left"),
        ("goodput", "right"),
        ("busy tok/s", "right"),
        ("TTFT p50", "right"),
        ("p99", "right"),
    ]
    columns += [("TPOT p50", "right"), ("p99", "right"), ("E2E p50", "right"), ("batch", "right"), ("depth", "right")]
    columns += [("wasted", "right")] + ([("SLO", "right")] if slo else []) + ([("cost", "right")] if price else [])
    shown = render.table("tokens a second; times from arrival", columns)
    for result, row in zip(results, rows, strict=True):
        times = [_time(row[key][at]) for key, at in _SHOWN_TIMES]
        wasted = row["wasted"] / row["drafted"] if row["drafted"] else 0.0
        cells = [f"{row['goodput_tokens_per_second']:,.0f}", f"{row['busy_tokens_per_second']:,.0f}", *times]
        cells += [f"{row['mean_batch']:.1f}", f"{row['mean_draft_depth']:.2f}", f"{wasted:.0%}"]
        cells += [f"{row['slo_attainment']:.1%}"] if slo else []
        cells += [f"{row['cost']:,.2f}"] if price else []
        shown.add_row(result.serving.policy, *cells)
    out.print(shown)
    out.print()
    _show_time(out, results)
    notes = {name: source for name, source in results[0].serving.scenario.sources.items() if name != "acceptance"}
    render.sources(out, notes)
    out.print(f"  rounds: {results[0].serving.bank.source}", style="dim", markup=False)
    out.print(f"  engine: {ASSUMPTIONS}", style="dim", markup=False)


_SHOWN_TIMES = (
    ("ttft_seconds", "p50"),
    ("ttft_seconds", "p99"),
    ("tpot_seconds", "p50"),
    ("tpot_seconds", "p99"),
    ("e2e_seconds", "p50"),
)
ASSUMPTIONS = (
    "assumed, as vLLM V1 schedules; no prefix cache; a draft head's own prefill is not charged; one round a step"
)


def _headline(results: list[Result], rows: list[dict[str, Any]]) -> str:
    served = f"{rows[0]['finished']:,} of {rows[0]['requests']:,} requests served"
    refused = f", {rows[0]['refused']:,} refused (they would never fit)" if rows[0]["refused"] else ""
    if len(rows) == 1:
        return f"{served}{refused}, {rows[0]['committed']:,} tokens in {render.seconds(rows[0]['span_seconds'])}."
    best = max(range(len(rows)), key=lambda i: rows[i]["busy_tokens_per_second"])
    name = results[best].serving.policy
    return f"{served}{refused}; most tokens a busy second with {name}: {rows[best]['busy_tokens_per_second']:,.0f}."


def _time(value: float | None) -> str:
    return "-" if value is None else render.seconds(value)


def _show_time(out: Console, results: list[Result]) -> None:
    parts = [result.seconds_by_component() for result in results]
    names = list(dict.fromkeys(name for part in parts for name in part))
    columns = [("component", "left"), *((result.serving.policy, "right") for result in results)]
    shown = render.table("where busy time goes", columns)
    for name in names:
        cells = []
        for result, part in zip(results, parts, strict=True):
            cells.append(f"{part.get(name, 0.0) / max(result.busy_seconds, 1e-12):.1%}")
        shown.add_row(name, *cells)
    out.print(shown)
    out.print()
