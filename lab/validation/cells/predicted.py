"""A recorded cell as `simulate` predicts it: the same trace, table, limits and KV blocks; prices from elsewhere."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.validation.cells.calibrated import (
    LOOK_SECONDS,
    CorrectedPricer,
    Correction,
    correction_of,
    host_looks,
    idle_prompts,
    speculates,
)
from lab.validation.cells.observed import Cell, Played, Requests, Steps, depth_shares, figures, read_cell, read_cells
from specmargin.decisions.pricer import Pricer
from specmargin.errors import InputError
from specmargin.policies.policy import FixedDepth, ScheduledDepth
from specmargin.prices.model import EngineTime
from specmargin.simulator.engine import BLOCK_TOKENS
from specmargin.simulator.policies import PolicyChoice
from specmargin.simulator.results import Result, Slo
from specmargin.simulator.run import graphs_of, prepare, simulate
from specmargin.simulator.serving import Serving
from specmargin.step import FloatArray
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.simulate.serving import serving_of

SEEDS = (0, 1, 2)  # of accepted drafts; figures are means over them
STARTS = 6  # moments of a recorded host that runs begin at
_GPU = "h200"  # of cells that name none
_TRACE = {"arrival_seconds": "sent_seconds", "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """`file`: of `measure vllm`; None: the cell's own, which are bundled ones unless it names a file. `launch`: seconds
    per kernel launch of the server's host, measured outside of the cells; None: as the prices have it. `corrected`: a
    folder of steps that such servers ran outside of cells, which correct prices. Where a cell's host was looked at just
    before and after it, the time per launch is from there, or with `all_looks` from all looks of the cell's folder."""

    name: str
    file: Path | None = None
    launch_seconds: float | None = None
    corrected: Path | None = None
    all_looks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    figures: dict[str, float]
    depth_shares: dict[int, float]


def predict(cell: Cell, prices: Prices, slo: Slo) -> Prediction:
    runs = [_played(run, cell) for run in _runs(serving(cell, prices), contestant(cell))]
    every = [figures(run, cell.window, slo) for run in runs]
    shares = [depth_shares(run, cell.window) for run in runs]
    return Prediction(
        figures={name: float(np.mean([found[name] for found in every])) for name in every[0]},
        depth_shares={k: float(np.mean([share.get(k, 0.0) for share in shares])) for k in sorted(set().union(*shares))},
    )


def _runs(served: Serving, choice: PolicyChoice | None) -> list[Result]:
    """From different drafts, and from different moments of a host whose pace was recorded."""
    if isinstance(served.pricer, CorrectedPricer):
        return [_run(served, served.pricer, choice, index) for index in range(STARTS)]
    seeds = SEEDS if choice is not None else SEEDS[:1]  # nothing is drawn without drafts
    return [simulate(replace(served, seed=seed), choice=choice, log_steps=True) for seed in seeds]


def _run(served: Serving, pricer: CorrectedPricer, choice: PolicyChoice | None, index: int) -> Result:
    served = replace(served, seed=SEEDS[index % len(SEEDS)])
    run = prepare(served, choice=choice, log_steps=True)
    tables = pricer.host(run.simulation.tables, index / STARTS)
    run.simulation = run.simulation._replace(tables=tables)
    run.play(lambda _: None)
    return Result.of(served, run.simulation, run.logged_steps(), drawn=run.drawn)


def serving(cell: Cell, prices: Prices) -> Serving:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        _write_trace(cell, path)
        found = serving_of(_request(cell, prices, path), Path())
    time = _engine_time(found.scenario.engine_time, cell, prices)
    pricer = found.pricer if time is found.scenario.engine_time else Pricer(replace(found.scenario, engine_time=time))
    sizes = tuple(_graph_sizes(cell)) or None
    engine = replace(found.engine, kv_blocks=_kv_blocks(cell), cudagraph_capture_sizes=sizes)
    served = replace(found, pricer=pricer, engine=engine)
    return served if prices.corrected is None else _corrected(served, calibration(cell, prices))


def _corrected(served: Serving, correction: Correction) -> Serving:
    time = replace(
        served.scenario.engine_time,
        kernel_launch_seconds=correction.launch_seconds,
        unaligned_position_seconds=correction.prompts.unaligned_seconds,
    )
    return replace(served, pricer=CorrectedPricer(replace(served.scenario, engine_time=time), correction))


def calibration(cell: Cell, prices: Prices) -> Correction:
    """From what was recorded on such a server outside of cells, and of this host around its cells."""
    assert prices.corrected is not None
    kind = "table" if speculates(cell) else "none"
    found = _calibration(prices.corrected / f"{cell.name.partition('-')[0]}-calibrate-0-{kind}.json.gz")
    if not cell.given.get("host"):
        return found
    looks = _lease_looks(cell.folder) if prices.all_looks else _looks(cell)
    return replace(found, launches=np.concatenate(looks), apart_seconds=LOOK_SECONDS) if looks else found


def _looks(cell: Cell) -> tuple[FloatArray, ...]:
    """Seconds per launch of each prompt."""
    return tuple(host_looks(cell, serving(cell, Prices(name="")).scenario))


@cache
def _lease_looks(folder: Path) -> tuple[FloatArray, ...]:
    """A look after one cell is the one before the next, and counts once."""
    return tuple({look.tobytes(): look for cell in read_cells(folder) for look in _looks(cell)}.values())


@cache
def _calibration(path: Path) -> Correction:
    recorded = read_cell(path)
    served, choice = serving(recorded, Prices(name="")), contestant(recorded)
    plain = PolicyChoice(name="none", policy=FixedDepth(depth=0), held_depth=None)
    # Kernels of prompts are those of the model: on a slow host only the longest outlast their launches.
    others = [read_cell(other) for other in sorted(path.parent.glob(f"{path.name.rpartition('-')[0]}-*.json.gz"))]
    idle = [one for other in others for one in idle_prompts(other, served.pricer)]
    return correction_of(recorded, served.pricer, graphs_of(served, choice or plain), idle)


def _write_trace(cell: Cell, path: Path) -> None:
    """As sent: a busy client may be milliseconds late."""
    requests = cell.given["requests"]
    rows = zip(*(requests[name] for name in _TRACE.values()), strict=True)
    with path.open("w", newline="", encoding="utf-8") as out:
        written = csv.writer(out)
        written.writerow(_TRACE)
        written.writerows(row for row in rows if row[0] is not None)


def _request(cell: Cell, prices: Prices, trace: Path) -> SimulateRequest:
    model, requests = cell.given["model"], cell.given["requests"]
    own = None if "prices" not in model else cell.folder / model["prices"]
    described: dict[str, Any] = {
        "model": _file(cell, model["model"]),
        "gpu": _file(cell, model.get("gpu", _GPU)),
        "engine": "vllm",
        "weights": model["weights"],
        "drafter": ":".join(_file(cell, part) for part in model["drafter"].split(":")),
        "acceptance": ",".join(map(str, model["rates"])),
        "routing": "uniform",
        "depth": len(model["rates"]),
        "context": round(np.mean(requests["prompt_tokens"]) + np.mean(requests["output_tokens"]) / 2.0),
        "trace": str(trace),
        "policy": "none",
        **cell.given["limits"],
    }
    file = prices.file or own
    return SimulateRequest.model_validate(described | ({} if file is None else {"prices": str(file)}))


def _file(cell: Cell, name: str) -> str:
    """A file beside the cells, or a name of the catalog."""
    return str(cell.folder / name) if (cell.folder / name).exists() else name


def _engine_time(time: EngineTime, cell: Cell, prices: Prices) -> EngineTime:
    sizes = _graph_sizes(cell)
    if sizes and max(sizes) != time.graph_limit:
        time = replace(time, graph_limit=max(sizes))
    return time if prices.launch_seconds is None else replace(time, kernel_launch_seconds=prices.launch_seconds)


def _graph_sizes(cell: Cell) -> list[int]:
    """None are named: vLLM's default."""
    return list((cell.given["arguments"].get("compilation_config") or {}).get("cudagraph_capture_sizes") or [])


def _kv_blocks(cell: Cell) -> int:
    """In the simulator's blocks: those of vLLM's CPU build have 128 tokens."""
    cache = cell.given["cache"]
    return int(cache["num_gpu_blocks"]) * int(cache["block_size"]) // BLOCK_TOKENS


def contestant(cell: Cell) -> PolicyChoice | None:
    """None: an engine without speculation."""
    name, model = cell.given["contestant"], cell.given["model"]
    deepest, most = len(model["rates"]), int(cell.given["limits"]["max_num_seqs"])
    if name == "none":
        return None
    if name == "table":
        table = model["table"]
    elif name.startswith("fixed-") and name.removeprefix("fixed-").isdigit():
        table = [[1, most, int(name.removeprefix("fixed-"))]]
    else:
        raise InputError(f"{cell.name}: no contestant is named {name!r}; there are none, table and fixed-K")
    depths = np.zeros(most + 1, dtype=np.int64)
    for first, last, depth in table:
        depths[first : last + 1] = depth
    return PolicyChoice(name=name, policy=ScheduledDepth(name=name, depth_by_batch=depths), held_depth=deepest)


def _played(result: Result, cell: Cell) -> Played:
    """Cut at the end of the window, as the client ends the recorded one."""
    (begin, end), shift = cell.window, _first_arrival(cell)  # a trace begins at 0
    requests, steps = result.requests, result.steps
    ended = steps["start_seconds"] + steps["seconds"] + shift
    within = ended <= end
    first, last = (
        np.where(requests[name] + shift <= end, requests[name] + shift, np.nan)
        for name in ("first_token_seconds", "finish_seconds")
    )
    return Played(
        requests=Requests(
            sent=requests["arrival_seconds"] + shift, first=first, last=last, tokens=requests["output_tokens"]
        ),
        steps=Steps(
            ended=ended[within],
            seconds=steps["seconds"][within],
            depth=steps["draft_depth"][within].astype(np.int64),
            decoding=steps["sequences"][within].astype(np.int64),
            waiting=steps["waiting"][within].astype(np.int64),
        ),
        tokens=float(steps["committed"][within & (ended >= begin)].sum()),
    )


def _first_arrival(cell: Cell) -> float:
    return float(min(value for value in cell.given["requests"]["sent_seconds"] if value is not None))
