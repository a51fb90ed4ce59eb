"""What others build on: the JSON of every verb, the names of metrics, the files' schemas, the entry points."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import polars as pl
from pydantic import BaseModel

from specmargin.acceptance.schema import AcceptanceFile
from specmargin.cli.main import run
from specmargin.hardware.schema import DeviceTable
from specmargin.live.board import FAULTS, Board
from specmargin.live.policy_schema import PolicyFile
from specmargin.live.settings_schema import Settings
from specmargin.policies.study.ladder import ladder
from specmargin.policies.tables import study_table
from specmargin.prices.kernels import store
from specmargin.prices.measured_schema import PriceFile
from specmargin.routing.schema import RoutingFile
from specmargin.verbs import verb_names as names_of_verbs
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.sweep import SweepFile
from tests.conftest import ROOT
from tests.unit.test_banks import bank as rounds_bank
from tests.unit.test_engine_metrics import SGLANG
from tests.unit.test_live_check import unpacked
from tests.unit.test_routing_captures import bank as routing_bank
from tests.unit.test_watch import metrics as metrics_text
from tests.unit.test_watch import serving

verb_names = tuple(dict.fromkeys(name.split()[0] for name in names_of_verbs()))

# --- the JSON of every verb ---

_SIMULATED = ("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "datasheet", "--qps", "8", "--requests", "20")
_SWEPT = """
[base]
model = "qwen3.6-35b-a3b"
gpu = "h200"
prices = "datasheet"
depth = 2
requests = 8
isl = 200
osl = 20
qps = 4
[grid]
policy = ["none", "fixed:2"]
"""


def _answered(verb: str, *arguments: str) -> Any:
    shown = io.StringIO()
    with redirect_stdout(shown):
        run(verb, [*arguments, "--json"])
    return json.loads(shown.getvalue())


def _of(verb: str, *arguments: str) -> Callable[[Path], Any]:
    return lambda _: _answered(verb, *arguments)


def _sweep(folder: Path) -> Any:
    (folder / "grid.toml").write_text(_SWEPT, encoding="utf-8")
    return _answered("sweep", str(folder / "grid.toml"), "--workers", "1")


def _watch_engine(_: Path) -> Any:
    with serving(lambda _: (200, SGLANG)) as url:
        return _answered("watch", url)


def _metrics(_: Path) -> Any:
    with serving(lambda _: (200, SGLANG)) as url:
        return _answered("profile", "acceptance", "--metrics", url)


def _watch(_: Path) -> Any:
    with serving(lambda _: (200, metrics_text(30))) as url:
        return _answered("watch", url)


def _measured(folder: Path, kind: str, model: str, file: Path, *, head: Callable[[Any], dict[str, Any]]) -> Any:
    """Rows that were recorded, fitted again: what `measure` does after the engine or the GPU has answered."""
    recorded = json.loads(file.read_text(encoding="utf-8"))
    with (folder / "x.rows.jsonl").open("w", encoding="utf-8") as written:
        for record in (head(recorded["conditions"]), *({"record": "row", **row} for row in recorded["rows"])):
            written.write(json.dumps(record) + "\n")
    with patch("specmargin.measure.records.Records.check"):  # the rows have no header of this measurement
        return _answered("measure", kind, model, "-o", str(folder / "x.json"), "--fit-only")


def _measure_vllm(folder: Path) -> Any:
    unknown_facts = dict.fromkeys(("vllm", "torch", "python", "attention", "weights", "dtype", "host", "date"), "-")
    unknown_facts |= dict.fromkeys(("gpu", "driver", "cuda"), "-")
    more = {"graph_mode": "full_and_piecewise", "capture_sizes": [1, 512], "async_scheduling": False}
    file = ROOT / "src/specmargin/catalog/measurements/vllm-0.26-h200-qwen3-4b.prices.json"
    with patch("specmargin.measure.fit._RESAMPLES", 3):
        return _measured(
            folder,
            "vllm",
            "qwen3-4b",
            file,
            head=lambda _: {"record": "engine", "run": "none", **unknown_facts, **more},
        )


def _measure_llamacpp(folder: Path) -> Any:
    file = ROOT / "lab/data/measurements/llamacpp-cpu/q8_0.json"
    engine = {"record": "engine", "run": "steps", "graph_mode": "none", "capture_sizes": [], "gpu": ""}
    config = str(file.with_name("config.json"))
    with patch("specmargin.measure.fit._RESAMPLES", 3):
        return _measured(folder, "llamacpp", config, file, head=lambda said: {**engine, "conditions": said})


def _doctor(folder: Path) -> Any:
    """Of a broken drafter, so that there are findings."""
    log = folder / "vllm.log"
    log.write_text(
        "Avg prompt throughput: 820.5 tokens/s, Avg generation throughput: 510.2 tokens/s, Running: 16 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: 3.0%\n"
        "SpecDecoding metrics: Mean acceptance length: 1.30, Accepted: 860 tokens, Drafted: 8600 tokens, "
        "Per-position acceptance rate: 0.300, 0.000, 0.000\n"
    )
    return _answered("doctor", "--log", str(log), "--model", _MOE[0], *_MOE[1:])


def _measure_gpu(folder: Path) -> Any:
    file = ROOT / "lab/data/measurements/kernels-h200.json"
    return _measured(folder, "gpu", "qwen3-30b-a3b", file, head=lambda header: {"record": "gpu", **header})


def _ladder(folder: Path) -> Any:
    """At small batches: the policies' look-ahead to 512 takes most of a minute."""
    small, few = partial(study_table, max_batch=8), partial(ladder, concurrencies=(1, 8), sequences=80)
    with (
        patch("specmargin.answers.ladder_prices.study_table", small),
        patch("specmargin.policies.study.ladder.ladder", few),
    ):
        return _answered(
            "profile",
            "acceptance",
            str(rounds_bank(folder / "bank")),
            "--ladder",
            "--at",
            "study-block",
            "--splits",
            "1",
        )


_MOE = ("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws")
VERB_OUTPUTS: dict[str, Callable[[Path], Any]] = {
    "plan": _of("plan", *_MOE, "--batch", "1,64"),
    "plan, dense": _of("plan", "qwen3-8b", "--gpu", "h200", "--prices", "laws", "--batch", "1,64"),
    "plan --contexts --gpu-hour-price --compare": _of(
        "plan", *_MOE, "--batch", "8", "--contexts", "1k,8k", "--gpu-hour-price", "2", "--compare", "datasheet"
    ),
    "plan --compare unverified": _of("plan", *_MOE, "--batch", "1,64", "--compare", "unverified"),
    "plan --qps": _of("plan", *_MOE, "--qps", "4", "--isl", "1000", "--osl", "300", "--tpot-slo", "20"),
    "plan --drafter all": _of("plan", *_MOE, "--batch", "8", "--drafter", "all"),
    "plan --gpu h200,b200": _of(
        "plan", "qwen3.6-35b-a3b", "--gpu", "h200,b200,l4", "--prices", "laws", "--batch", "8", "--gpu-hour-price", "2"
    ),
    "plan --grid": _of("plan", *_MOE, "--batch", "8", "--depth", "2", "--grid"),
    "plan --compare acceptance:x2": _of("plan", *_MOE, "--batch", "8", "--compare", "acceptance:x2"),
    "plan --engine sglang": _of("plan", *_MOE, "--batch", "1,8,64", "--engine", "sglang"),
    "price": _of("price", *_MOE, "--batch", "8", "--depth", "3"),
    "coverage": _of("coverage", "qwen3.6-35b-a3b", "--positions", "1,8"),
    "coverage --gpu": _of("coverage", "qwen3.6-35b-a3b", "--positions", "1,8", "--gpu", "h200"),
    "duel": _of("duel", *_MOE, "--batch", "8", "--alpha", "0.8"),
    "design": _of("design", *_MOE, "--batch", "8", "--experts", "128,256", "--experts-per-token", "8"),
    "profile routing": lambda folder: _answered(
        "profile", "routing", str(routing_bank(folder / "bank")), "--experts", "8"
    ),
    "profile acceptance": lambda folder: _answered("profile", "acceptance", str(rounds_bank(folder / "bank"))),
    "profile acceptance --ladder": _ladder,
    "simulate": _of("simulate", *_SIMULATED, "--policy", "controller,none", "--osl", "20"),
    "simulate --ttft-slo --gpu-hour-price": _of(
        "simulate", *_SIMULATED, "--policy", "fixed:2", "--osl", "20", "--ttft-slo", "500", "--gpu-hour-price", "2"
    ),
    "sweep": _sweep,
    "watch": _watch,
    "watch, engine": _watch_engine,
    "profile acceptance --metrics": _metrics,
    "doctor": _doctor,
    "measure vllm": _measure_vllm,
    "measure gpu": _measure_gpu,
    "measure llamacpp": _measure_llamacpp,
    "validate PRICES PRICES": _of("validate", "vllm-0.26-h200-qwen3-4b", "laws"),
    "live-check": lambda folder: _answered("live-check", "--path", str(unpacked(folder))),
    "models": _of("models"),
    "gpus": _of("gpus"),
}


def written_columns(folder: Path) -> dict[str, dict[str, str]]:
    """Tables that `simulate` and `sweep` write, by file: columns and their types."""
    names = ("requests", "steps", "cells")
    paths = {name: folder / f"{name}.parquet" for name in names}
    saved = ("--save-requests", str(paths["requests"]), "--save-steps", str(paths["steps"]))
    _answered("simulate", *_SIMULATED, "--policy", "fixed:2", "--osl", "20", *saved)
    (folder / "grid.toml").write_text(_SWEPT, encoding="utf-8")
    _answered("sweep", str(folder / "grid.toml"), "--workers", "1", "--table", str(paths["cells"]))
    return {
        name: {column: str(dtype) for column, dtype in pl.read_parquet_schema(path).items()}
        for name, path in paths.items()
    }


# --- metrics ---


class _Family:
    """As much of a Prometheus metric as a collector needs."""

    kind = "gauge"

    def __init__(self, name: str, _help: str, labels: list[str]) -> None:
        self.name, self.labels = name, labels

    def add_metric(self, labels: list[str], value: float) -> None:
        pass


class _Counter(_Family):
    kind = "counter"


@contextmanager
def _prometheus() -> Iterator[None]:
    """vLLM brings the real one; it is not needed to learn names."""
    modules = {name: ModuleType(name) for name in ("core", "multiprocess", "registry")}
    root = ModuleType("prometheus_client")
    root.CollectorRegistry = object  # type: ignore[attr-defined]
    vars(modules["core"]).update(CounterMetricFamily=_Counter, GaugeMetricFamily=_Family, Metric=object)
    vars(modules["multiprocess"]).update(MultiProcessCollector=object)
    vars(modules["registry"]).update(Collector=object)
    named = {"prometheus_client": root} | {f"prometheus_client.{name}": module for name, module in modules.items()}
    with patch.dict(sys.modules, named):
        yield


def metric_names(folder: Path) -> dict[str, Any]:
    """Every metric as `/metrics` has it: kind and labels by name; and the kinds of faults."""
    Board(folder / "engine-0.board")
    with _prometheus():
        from specmargin.live.metrics import BoardCollector  # noqa: PLC0415 (needs vLLM's Prometheus client)

        families: list[Any] = list(BoardCollector(folder).collect())
    metrics = {
        f"{family.name}{'_total' if family.kind == 'counter' else ''}": f"{family.kind}, by {', '.join(family.labels)}"
        for family in families
    }
    return {"metrics": metrics, "fault kinds": sorted(FAULTS)}


# --- files ---

SCHEMAS: dict[str, type[BaseModel]] = {
    "policy": PolicyFile,
    "live settings": Settings,
    "measured prices": PriceFile,
    "routing": RoutingFile,
    "acceptance": AcceptanceFile,
    "simulation": SimulateRequest,
    "sweep": SweepFile,
    "device": DeviceTable,
}


def json_schemas() -> dict[str, Any]:
    return {name: model.model_json_schema(by_alias=True) for name, model in SCHEMAS.items()}


def bundled_laws() -> Any:
    """Price laws have no schema but their reader: the bundled file stands for it."""
    return json.loads((files("specmargin.catalog") / "laws.json").read_text(encoding="utf-8"))


def releases() -> dict[str, str]:
    """Of the measured data: another release moves prices, and this says so first."""
    return {"laws": str(bundled_laws()["source"]), "tables": str(store.release())}


# --- entry points ---


def entry_points() -> dict[str, list[str]]:
    """By group, the names whose object can be imported and called."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return {
        group: [name for name, value in names.items() if _loads(group, name, value)] for group, names in groups.items()
    }


def _loads(group: str, name: str, value: str) -> bool:
    return callable(EntryPoint(name=name, value=value, group=group).load())
