"""The verbs as Python functions, with the options of the command line.

    import specmargin

    plan = specmargin.plan("qwen3.6-35b-a3b", gpu="h200")
    plan.to_frame()

`make api` (scripts/update_api.py) writes this file from the requests, so that editors complete options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from specmargin.answers.request_schema import read_request
from specmargin.verbs import find_verb

if TYPE_CHECKING:
    from specmargin.verbs.coverage import CoverageAnswer
    from specmargin.verbs.design import DesignAnswer
    from specmargin.verbs.duel import DuelAnswer
    from specmargin.verbs.plan import PlanAnswer
    from specmargin.verbs.price import PriceAnswer
    from specmargin.verbs.simulate import SimulateAnswer
    from specmargin.verbs.sweep import SweepAnswer


class ScenarioOptions(TypedDict, total=False):
    """Options of every verb that takes a scenario."""

    gpus: int
    parallel: str
    tp: int | None
    dp: int
    ep: bool
    pp: int
    redundant_experts: int
    nodes: int | None
    fabric: str | None
    experts_on: str
    n_cpu_moe: int | None
    gpu_experts: int
    cpu: str | None
    host_memory: float | None
    pcie: str | None
    weights: str | None
    kv_cache: str | None
    routing: str | None
    context: int | str
    engine: str | None
    backend: str | None
    prices: str | None
    form: str
    engine_time: str | None
    graph_limit: int | None
    step_ms: float | None
    sequence_ms: float | None
    position_us: float | None
    layer_us: float | None
    verify_ms: float | None
    verify_sequence_ms: float | None
    verify_token_us: float | None


class PlanOptions(ScenarioOptions, total=False):
    gpu: Required[str]
    placement: str
    memory_utilization: float
    drafter: str | None
    draft_weights: str | None
    draft_vocabulary: int | None
    acceptance: str | None
    draft_p_min: float | None
    draft_pass_ms: float | None
    off_ms: float | None
    batch: str | int | Sequence[float] | None
    at_batch: int | None
    contexts: str | int | Sequence[float]
    concurrency: int | None
    qps: float | None
    isl: int | str | None
    osl: int | str | None
    range_ratio: float
    prefix_hit: float
    decode_only: bool
    max_num_batched_tokens: int | str | None
    tpot_slo: float | None
    depth: int
    min_gain: float
    max_batch: int | None
    ignore_graph_limit: bool
    engine_version: str | None
    compare: str | None
    gpu_hour_price: float | str | Mapping[str, float] | None


def plan(model: str, **options: Unpack[PlanOptions]) -> PlanAnswer:
    """Whether speculation pays, the draft depth per batch size, and the engine configuration."""
    answer: PlanAnswer = find_verb("plan").ask(model=model, **options)
    return answer


class PriceOptions(ScenarioOptions, total=False):
    gpu: Required[str]
    placement: str
    memory_utilization: float
    drafter: str | None
    draft_weights: str | None
    draft_vocabulary: int | None
    draft_pass_ms: float | None
    batch: int
    depth: int


def price(model: str, **options: Unpack[PriceOptions]) -> PriceAnswer:
    """The cost of one step: seconds, bytes and FLOPs by component, and the cost of one more position."""
    answer: PriceAnswer = find_verb("price").ask(model=model, **options)
    return answer


class CoverageOptions(ScenarioOptions, total=False):
    gpu: str
    placement: str
    positions: str | int | Sequence[float]
    layer: int | None
    batch: int
    depth: int


def coverage(model: str, **options: Unpack[CoverageOptions]) -> CoverageAnswer:
    """Distinct experts by number of positions: independent tokens (width), or one run (depth)."""
    answer: CoverageAnswer = find_verb("coverage").ask(model=model, **options)
    return answer


class DuelOptions(ScenarioOptions, total=False):
    gpu: Required[str]
    placement: str
    memory_utilization: float
    drafter: str | None
    draft_weights: str | None
    draft_vocabulary: int | None
    draft_pass_ms: float | None
    alpha: Required[float]
    batch: int


def duel(model: str, **options: Unpack[DuelOptions]) -> DuelAnswer:
    """Compare one more sequence with one more draft token."""
    answer: DuelAnswer = find_verb("duel").ask(model=model, **options)
    return answer


class DesignOptions(ScenarioOptions, total=False):
    gpu: Required[str]
    memory_utilization: float
    drafter: str | None
    draft_weights: str | None
    draft_vocabulary: int | None
    acceptance: str | None
    draft_p_min: float | None
    draft_pass_ms: float | None
    off_ms: float | None
    batch: int
    hold: str
    experts: str | int | Sequence[float]
    experts_per_token: str | int | Sequence[float] | None
    shared: str | int | Sequence[float]
    depth: int


def design(model: str, **options: Unpack[DesignOptions]) -> DesignAnswer:
    """Which experts suit speculation at a target batch: number, experts per token, width and shared fraction."""
    answer: DesignAnswer = find_verb("design").ask(model=model, **options)
    return answer


class SimulateOptions(ScenarioOptions, total=False):
    gpu: str
    placement: str
    memory_utilization: float
    drafter: str | None
    draft_weights: str | None
    draft_vocabulary: int | None
    acceptance: str | None
    draft_pass_ms: float | None
    off_ms: float | None
    policy: str
    qps: float | None
    concurrency: int | None
    sessions_per_second: float | None
    turns: int | str | Mapping[str, float]
    think_seconds: float
    shared_prefix: int | str
    prefix_hit: float
    hash_tokens: int
    cancel_share: float
    cancel_tokens: int | str | Mapping[str, float] | None
    cancel_seconds: float | None
    trace: str | None
    hours: Sequence[float] | None
    hourly_qps: Sequence[float] | None
    requests: int | None
    burst: int
    isl: int | str | Mapping[str, float]
    osl: int | str | Mapping[str, float]
    range_ratio: float
    categories: Sequence[Mapping[str, Any]]
    bank: str | None
    depth: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | str | None
    no_prefix_cache: bool
    scheduling: str
    router: str | None
    prefill_instances: int | None
    decode_instances: int
    ttft_slo: float | None
    tpot_slo: float | None
    find: str | None
    percentile: float
    seeds: int
    gpu_hour_price: float | None
    seed: int


def simulate(model: str, **options: Unpack[SimulateOptions]) -> SimulateAnswer:
    """Simulate an engine like vLLM that serves a workload under one policy or several."""
    answer: SimulateAnswer = find_verb("simulate").ask(model=model, **options)
    return answer


def sweep(grid: str | Path | Mapping[str, Any], *, output: str | Path | None = None, workers: int = 1) -> SweepAnswer:
    """Simulate every cell of a grid: a TOML file as `specmargin sweep` takes it, or the same as a dictionary.

    `output`: the file of finished cells, which are not run again; without it nothing is kept. With several `workers`, a
    script needs the usual `if __name__ == "__main__":`, because they are processes.
    """
    from specmargin.verbs.sweep import SweepOutputs, SweepRequest, swept  # noqa: PLC0415

    given = dict(grid) if isinstance(grid, Mapping) else str(grid)
    request = read_request(SweepRequest, {"grid": given, "workers": workers})
    with TemporaryDirectory() as temporary:
        cells = Path(temporary) / "cells.jsonl" if output is None else Path(output)
        return swept(request, outputs=SweepOutputs(output=cells))
