"""What the host launches: more outside larger graphs, and never more for a plain step than for a verify step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specmargin.architecture.precision import precision_named
from specmargin.architecture.types import LayerCounts
from specmargin.catalog.engine_releases import KNOWN, Run
from specmargin.catalog.engine_times import find_engine_time
from specmargin.catalog.lookup import find_device, find_model
from specmargin.decisions.pricer import Pricer
from specmargin.modes import DRAFTERS
from specmargin.prices.launches import Graph, launches
from specmargin.prices.model import EngineTime
from tests.scenarios import pricer

MODELS = ("qwen3-30b-a3b", "qwen3.6-35b-a3b", "deepseek-v3", "llama-3.1-8b")
GPUS = ("h200", "a100", "rtx-5090", "b200", "mi300x")


@st.composite
def layer_counts(draw: st.DrawFn) -> LayerCounts:
    layers = draw(st.integers(1, 100))
    recurrent = draw(st.integers(0, layers))
    return LayerCounts(
        layers=layers,
        moe_layers=draw(st.integers(0, layers)),
        recurrent_layers=recurrent,
        latent_layers=draw(st.integers(0, layers - recurrent)),
        all_reduces=draw(st.sampled_from([0, 2 * layers])),
    )


@given(layer_counts(), st.booleans())
def test_less_graph_more_launches(counts: LayerCounts, mixed: bool) -> None:
    full, pieces, compiled, eager = (launches(graph, counts, mixed=mixed) for graph in Graph)
    assert 0.0 == full <= pieces <= compiled <= eager


@given(
    model=st.sampled_from(MODELS),
    gpu=st.sampled_from(GPUS),
    release=st.sampled_from(KNOWN["vllm"]),
    drafter=st.sampled_from([kind for kind in DRAFTERS if kind != "ssd"]),
    quantized=st.booleans(),
    batch=st.integers(1, 256),
)
def test_a_plain_step_is_never_slower_than_a_verify_step(
    model: str, gpu: str, release: str, drafter: str, quantized: bool, batch: int
) -> None:
    kv = precision_named("fp8" if quantized else "bf16")
    run = Run(target=find_model(model), device=find_device(gpu), kv=kv, drafter=drafter)
    time = find_engine_time(f"vllm:{release}", engine="vllm", prices="laws", run=run)
    grid = _pricer(model, time).grid([batch], 1)
    assert grid.no_spec_seconds[0] <= grid.verify_seconds[0, 1]


def _pricer(model: str, time: EngineTime) -> Pricer:
    return pricer(model, "h200", drafter="eagle", engine_time=time)
