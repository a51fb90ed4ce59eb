"""From an answer to the commands that serve it and check it, and their JSON."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.catalog.ids import listed_variants
from specmargin.catalog.lookup import hub_id, model_names
from specmargin.decisions.certainty import SpeedupRange
from specmargin.decisions.rows import PlanRow
from specmargin.formats.base import Benchmark, Launch
from specmargin.verbs.plan.drafter_plan import DrafterPlan

_OF_REQUESTS = ("isl", "osl", "range_ratio", "max_num_batched_tokens", "depth")  # what `simulate` takes of a load
_BUSY_PREFILL = 0.7  # of the time of a prefill instance, so that prompts hardly wait for others
OUTPUT_TOKENS = 256  # of a benchmark for a plan by batch
_LOADED_AS = {"fp8": "fp8"}  # precisions to which vLLM and SGLang quantize a checkpoint while loading it


def serve_json(answer: DrafterPlan) -> dict[str, Any]:
    """The command that starts the server."""
    request, layout, engine = answer.request, answer.plan.scenario.layout, answer.engine
    model, quantize = served_model(request.model, request.weights, engine.name)
    command = engine.serve(
        Launch(
            model=model,
            layout=layout,
            decode_only=request.decode_only,
            nodes=-(-layout.gpus // answer.plan.scenario.device.fabric.gpus_per_node),
            config=answer.config,
            memory_utilization=request.memory_utilization,
            kv_cache=request.kv_cache,
            quantize=quantize,
            sequences=answer.headline_row.batch,
            context=round(answer.plan.scenario.context) + OUTPUT_TOKENS,
            offload=answer.plan.scenario.offload,
            processor_only=answer.plan.scenario.device.processor is not None,
        )
    )
    return {
        "command": command.text,
        "file_name": command.file_name,
        "file_text": command.file_text,
        "notes": list(command.notes),
    }


def check_json(answer: DrafterPlan, row: PlanRow, sure: SpeedupRange) -> dict[str, Any]:
    """The benchmark for one row, or for the load, and what it should show."""
    request, service, engine = answer.request, answer.service, answer.engine
    context = round(answer.plan.scenario.context)
    load = Benchmark(
        model=served_model(request.model, request.weights, engine.name)[0],
        prompt_tokens=request.isl if service is not None and request.isl else max(context - OUTPUT_TOKENS // 2, 1),
        output_tokens=request.osl if service is not None and request.osl else OUTPUT_TOKENS,
        concurrency=(request.concurrency or row.batch) if service is not None else row.batch,
        requests_per_second=None if service is None else request.qps,
    )
    plain, drafting = row.no_spec_tpot_seconds, row.tpot_seconds
    if service is not None and service.plain.tpot_seconds and service.speculating.tpot_seconds:
        plain, drafting = service.plain.tpot_seconds, service.speculating.tpot_seconds
    low, high = _relative_range(answer, row, sure)
    per_second = engine.metric.endswith(("t/s", "tokens/sec"))
    values = [1.0 / value if per_second else value * 1e3 for value in (drafting, plain)]
    return {
        "command": engine.check(load),
        "metric": engine.metric,
        "predicted": values[0],
        "predicted_without_speculation": values[1],
        "ratio": plain / drafting,
        "ratio_low": plain / drafting * low,
        "ratio_high": plain / drafting * high,
        "note": engine.lengths_note if service is not None and service.load.range_ratio > 0.0 else None,
    }


def _relative_range(answer: DrafterPlan, row: PlanRow, sure: SpeedupRange) -> tuple[float, float]:
    """The ends of the 80% range as factors of the speed-up: of the service with a load, as its verdict has it."""
    if answer.service is None or answer.service_range is None:
        return sure.low / row.speedup, sure.high / row.speedup
    low, high = answer.service_range
    return low / answer.service.speedup, high / answer.service.speedup


def capacity_command(answer: DrafterPlan) -> str:
    """`simulate --find` with the options of a plan under a rate, and its target or one to replace."""
    target = 30.0 if answer.request.tpot_slo is None else answer.request.tpot_slo
    return _simulate_command(answer, f"--find qps --tpot-slo {target:g}")


def pools_command(answer: DrafterPlan) -> str:
    """`simulate` with as many prefill instances as can read the prompts of a decode instance under a rate."""
    request, pricer = answer.request, answer.plan.pricer
    assert request.qps is not None
    assert request.isl is not None
    seconds = pricer.prefill_seconds(request.isl, speculating=answer.plan.held_depth > 0)
    instances = math.ceil(request.qps * seconds / _BUSY_PREFILL)
    return _simulate_command(answer, f"--qps {request.qps:g} --prefill-instances {instances}")


def _simulate_command(answer: DrafterPlan, more: str) -> str:
    request = answer.request
    shared = [name for name in (*ScenarioRequest.model_fields, *_OF_REQUESTS) if name in request.model_fields_set]
    values = {name: getattr(request, name) for name in shared if name not in ("model", "context")}
    if "drafter" in values:
        values["drafter"] = answer.choice.kind  # of several, the one that this plan is of
    options = [_option(name, value) for name, value in values.items() if value]
    return " ".join(["specmargin simulate", shlex.quote(request.model), *options, more])


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {shlex.quote(str(value))}"


def served_model(model: str, weights: str | None, engine: str) -> tuple[str, str | None]:
    """What the engine loads, and the precision to which it quantizes that."""
    known = model.lower() in model_names()
    name = hub_id(model.lower()) if known else _folder(model)
    if weights is None or engine == "llamacpp":
        return name, None
    variants = listed_variants().values()
    listed = [each.id for each in variants if known and each.model == model.lower() and each.weights == weights]
    if listed:
        return listed[0], None
    if weights in _LOADED_AS and engine in ("vllm", "sglang"):
        return name, _LOADED_AS[weights]
    return f"<{name} in {weights}>", None


def _folder(model: str) -> str:
    """Of a model on this machine; absolute paths are shortened to their last part."""
    path = Path(model)
    if not path.exists():
        return model
    folder = path.parent if path.is_file() else path
    return folder.name if folder.is_absolute() else str(folder)
