"""What releases of engines do: scheduling, model runner and graphs, as their sources say (`engine_releases.py`)."""

from __future__ import annotations

import pytest

from specmargin.architecture.precision import BF16, precision_named
from specmargin.catalog.engine_releases import Mechanism, Run, Scheduling, known_release, mechanism
from specmargin.catalog.engine_times import find_engine_time
from specmargin.catalog.lookup import find_device, find_model
from specmargin.errors import CatalogError
from specmargin.prices.launches import Graph
from specmargin.validation.points_schema import Point

DENSE, MOE, HYBRID, LATENT = "qwen3-14b", "qwen3-30b-a3b", "qwen3.6-27b", "deepseek-v3"


def how(release: str, *, model: str = MOE, gpu: str = "h200", kv: str = "bf16", drafter: str = "eagle") -> Mechanism:
    kv_precision = BF16 if kv == "bf16" else precision_named(kv)
    run = Run(target=find_model(model), device=find_device(gpu), kv=kv_precision, drafter=drafter)
    return mechanism("vllm", release, run)


def test_the_nearest_older_release_that_was_read_is_used() -> None:
    assert str(known_release("vllm", "0.26.0")) == "0.24"
    assert str(known_release("vllm", "0.20.2rc1")) == "0.20"
    assert str(known_release("vllm", "0.40")) == "0.33"
    assert str(known_release("vllm", "0.9")) == "0.11"
    assert str(known_release("sglang", "0.5.12")) == "0.5.6"
    with pytest.raises(CatalogError, match="not a release"):
        known_release("vllm", "nightly")


@pytest.mark.parametrize(
    ("release", "drafter", "plain", "rounds"),
    [
        ("0.11.2", "eagle", Scheduling.SYNC, Scheduling.SYNC),
        ("0.14.1", "mtp", Scheduling.ASYNC, Scheduling.WAITING),
        ("0.17", "model", Scheduling.ASYNC, Scheduling.SYNC),
        ("0.20", "eagle", Scheduling.ASYNC, Scheduling.ASYNC),
        ("0.27.1", "model", Scheduling.ASYNC, Scheduling.SYNC),
        ("0.29", "model", Scheduling.ASYNC, Scheduling.ASYNC),
        ("0.32", "ngram", Scheduling.ASYNC, Scheduling.SYNC),
        ("0.33", "ngram", Scheduling.ASYNC, Scheduling.ASYNC),
    ],
)
def test_scheduling_by_release_and_drafter(release: str, drafter: str, plain: Scheduling, rounds: Scheduling) -> None:
    found = how(release, drafter=drafter)
    assert (found.plain, found.rounds) == (plain, rounds)


@pytest.mark.parametrize(
    ("release", "model", "drafter", "second"),
    [
        ("0.20", DENSE, "eagle", False),
        ("0.22", DENSE, "eagle", True),
        ("0.22", DENSE, "dflash", False),
        ("0.22", MOE, "eagle", False),
        ("0.24", "llama-3.1-8b", "dflash", True),
        ("0.27.1", HYBRID, "mtp", False),
        ("0.27.1", MOE, "eagle", False),
        ("0.27.1", DENSE, "eagle", True),
        ("0.27.1", DENSE, "model", False),
        ("0.27.1", MOE, "dspark", True),
        ("0.29", HYBRID, "mtp", True),
        ("0.29", DENSE, "model", False),
        ("0.32", DENSE, "model", True),
    ],
)
def test_the_model_runner(release: str, model: str, drafter: str, second: bool) -> None:
    assert how(release, model=model, drafter=drafter).second_runner is second


def test_the_first_runner_drafts_in_pieces_and_the_second_in_full_graphs_but_for_draft_models() -> None:
    first = how("0.27.1", drafter="eagle")
    assert (first.first_draft_graph, first.draft_graph) == (Graph.PIECEWISE, Graph.PIECEWISE)
    second = how("0.32", drafter="eagle")
    assert (second.first_draft_graph, second.draft_graph) == (Graph.FULL, Graph.FULL)
    assert how("0.32", model=DENSE, drafter="model").draft_graph is Graph.COMPILED
    assert how("0.29", model=DENSE, drafter="model").draft_graph is Graph.PIECEWISE


@pytest.mark.parametrize(
    ("release", "gpu", "kv", "verify"),
    [
        ("0.27.1", "a100", "bf16", Graph.FULL),  # FlashAttention 2: UNIFORM_BATCH
        ("0.27.1", "a100", "fp8", Graph.PIECEWISE),  # FlashInfer
        ("0.33", "rtx-3090", "fp8", Graph.PIECEWISE),
        ("0.27.1", "rtx-5090", "fp8", Graph.PIECEWISE),
        ("0.29", "rtx-5090", "fp8", Graph.FULL),  # XQA
        ("0.27.1", "h200", "fp8", Graph.FULL),  # FlashAttention 3
        ("0.27.1", "b200", "fp8", Graph.FULL),  # FlashInfer with TRT-LLM's kernels
        ("0.27.1", "mi300x", "fp8", Graph.FULL),
    ],
)
def test_verify_steps_lose_full_graphs_where_attention_captures_single_tokens(
    release: str, gpu: str, kv: str, verify: Graph
) -> None:
    found = how(release, gpu=gpu, kv=kv, model=DENSE)
    assert (found.plain_graph, found.verify_graph) == (Graph.FULL, verify)


@pytest.mark.parametrize(
    ("release", "gpu", "plain", "verify"),
    [
        ("0.20.2rc1", "rtx-pro-6000", Graph.PIECEWISE, Graph.PIECEWISE),
        ("0.24", "rtx-pro-6000", Graph.FULL, Graph.FULL),
        ("0.27.1", "a100", Graph.FULL, Graph.PIECEWISE),
        ("0.32", "a100", Graph.FULL, Graph.FULL),
        ("0.27.1", "h200", Graph.FULL, Graph.FULL),
    ],
)
def test_triton_mla_outside_hopper_and_data_centre_blackwell(
    release: str, gpu: str, plain: Graph, verify: Graph
) -> None:
    found = how(release, gpu=gpu, model=LATENT)
    assert (found.plain_graph, found.verify_graph) == (plain, verify)


def test_a_build_of_its_own_has_full_graphs_where_its_release_had_none() -> None:
    theirs, official = (how(text, gpu="rtx-pro-6000", model=LATENT) for text in ("0.20.2+rtx6kpro", "0.20.2"))
    assert (theirs.verify_graph, official.verify_graph) == (Graph.FULL, Graph.PIECEWISE)
    assert "rtx6kpro" in theirs.detail and "rtx6kpro" not in official.detail
    with pytest.raises(CatalogError, match=r"build of vLLM was not read; known: rtx6kpro"):
        known_release("vllm", "0.20.2+mine")


def test_later_passes_have_no_graph_where_the_second_runner_verifies_in_pieces() -> None:
    found = how("0.29", gpu="a100", kv="fp8", drafter="mtp", model=HYBRID)
    assert (found.first_draft_graph, found.draft_graph) == (Graph.PIECEWISE, Graph.COMPILED)
    assert how("0.29", gpu="a100", kv="fp8", drafter="dflash", model=HYBRID).first_draft_graph is Graph.COMPILED


def test_intel_gpus_had_no_graphs() -> None:
    found = how("0.29", gpu="arc-pro-b60", model=DENSE, drafter="eagle")
    graphs = (found.plain_graph, found.verify_graph, found.first_draft_graph, found.draft_graph)
    assert set(graphs) == {Graph.COMPILED}
    assert how("0.27.1", gpu="arc-pro-b60", model=MOE, drafter="eagle").draft_graph is Graph.COMPILED
    assert how("0.32", gpu="arc-pro-b60", model=DENSE).verify_graph is Graph.FULL


# --- what rows of published speed-ups state ---


@pytest.mark.parametrize(
    ("engine", "stated", "named"),
    [
        ("vllm", "Qwen3.8-27B on 1x RTX 3090, vLLM 0.27.1 as shipped, MTP-2", "vllm:0.27.1"),
        ("vllm", "DeepSeek-R1-0528 on 2x GB300, vLLM about 0.14.1, MTP", "vllm:0.14.1"),
        ("vllm", "on 2x DGX Spark, vLLM 0.29.1rc1.dev467, DFlash", "vllm:0.29.1rc1"),
        ("vllm", "vLLM fork 68b3569f2 (0.20.2rc1), EAGLE-3", None),
        ("vllm", "vLLM 0.1.dev20073+g8e685d198, MTP", None),
        ("vllm", "vLLM nightly bf610c2f, MTP", None),
        ("sglang", "SGLang , EAGLE-3 (lmsys/SGLang-EAGLE3-Llama-3.1-8B)", None),
        ("sglang", "SGLang v0.5.12, EAGLE-3", "sglang:0.5.12"),
        ("sglang", "against vLLM 0.27.1", None),
        ("vllm", "vLLM 0.27.1, against the sync-matched baseline", "vllm:0.27.1:sync"),
    ],
)
def test_the_release_that_a_row_states(engine: str, stated: str, named: str | None) -> None:
    row = {"id": "1", "source": "A", "model": "m", "gpu": "g", "drafter": "mtp", "depth": 1, "batch": 1, "speedup": 1.0}
    assert Point.model_validate({**row, "engine": engine, "stated_as": stated}).named_engine_time == named
    stating = {**row, "engine": engine, "stated_as": "", "release": "0.32"}
    assert Point.model_validate(stating).named_engine_time == f"{engine}:0.32"
    assert Point.model_validate(stating | {"launch_us": 102}).named_engine_time == f"{engine}:0.32:102us"


# --- seconds ---


def seconds(name: str | None, *, drafter: str = "eagle", model: str = MOE, prices: str = "laws") -> dict[str, float]:
    run = Run(target=find_model(model), device=find_device("h200"), kv=BF16, drafter=drafter)
    time = find_engine_time(name, engine="vllm", prices=prices, run=run)
    plain = time.step_seconds + time.layer_seconds * 48
    return {"plain": plain, "round": plain + time.verify_step_seconds}


def test_the_default_is_the_release_that_was_measured() -> None:
    run = Run(target=find_model(MOE), device=find_device("h200"), kv=BF16, drafter="eagle")
    default, named = (find_engine_time(name, engine="vllm", prices="laws", run=run) for name in (None, "vllm:0.32"))
    entry = find_engine_time("vllm", engine="vllm", prices="laws")
    for term in ("step_seconds", "sequence_seconds", "verify_step_seconds", "draft_pass_seconds", "off_step_seconds"):
        assert getattr(default, term) == getattr(named, term) == getattr(entry, term)
    said = "vLLM 0.32: second model runner, asynchronous rounds, verify steps in full graphs (FlashAttention 3)"
    assert default.source.detail.startswith(said)


def test_a_round_waits_for_the_host_as_its_scheduling_says() -> None:
    """0.97 ms where it is synchronous, 0.54 where it waits for the accepted tokens; plain steps too before 0.14."""
    base = seconds("vllm:0.24")
    assert seconds("vllm:0.17")["round"] - base["round"] == pytest.approx(0.54e-3)
    assert seconds("vllm:0.17")["plain"] == base["plain"]
    assert seconds("vllm:0.24", drafter="ngram")["round"] - base["round"] == pytest.approx(0.97e-3)
    early = seconds("vllm:0.11.2")
    assert early["plain"] - base["plain"] == pytest.approx(0.97e-3)
    assert early["round"] - early["plain"] == pytest.approx(base["round"] - base["plain"])
    assert seconds("vllm:0.24:sync")["plain"] == early["plain"]


def test_a_stated_launch_time_slows_everything_that_the_host_does() -> None:
    run = Run(target=find_model(DENSE), device=find_device("a100"), kv=BF16, drafter="mtp")
    names = ("vllm:0.24", "vllm:0.17.1", "vllm:0.17.1:102us")
    overlapped, server, slow = (find_engine_time(name, engine="vllm", prices="laws", run=run) for name in names)
    ratio = 102e-6 / server.kernel_launch_seconds
    assert slow.kernel_launch_seconds == pytest.approx(102e-6)
    waits = [time.verify_step_seconds - overlapped.verify_step_seconds for time in (server, slow)]
    assert waits[1] == pytest.approx(ratio * waits[0])
    assert (slow.step_seconds, slow.layer_seconds) == (server.step_seconds, server.layer_seconds)  # of the GPU
    assert slow.launched.spread < server.launched.spread
    for wrong in ("vllm:0.17.1:102", "vllm:0.17.1:sync:sync", "vllm:0.17.1:1us:2us"):
        with pytest.raises(CatalogError, match="unknown engine time"):
            find_engine_time(wrong, engine="vllm", prices="laws", run=run)


def test_a_draft_model_takes_the_first_runner_while_plain_steps_keep_the_second() -> None:
    """vLLM 0.27.1, a dense model: plain steps as in 0.32, rounds as the first runner's and synchronous."""
    both, first = seconds("vllm:0.27.1", drafter="model", model=DENSE), seconds("vllm:0.24", model=MOE)
    assert both["plain"] == seconds("vllm:0.32", model=DENSE)["plain"]
    layers = find_model(DENSE).layers
    slower = first["plain"] * layers / 48 - both["plain"]  # time per layer
    verify = find_engine_time("vllm", engine="vllm", prices="laws").verify_step_seconds
    assert both["round"] == pytest.approx(both["plain"] + slower + 0.97e-3 + verify)


def test_a_release_that_was_not_read_is_named() -> None:
    run = Run(target=find_model(MOE), device=find_device("h200"), kv=BF16, drafter="eagle")
    time = find_engine_time("vllm:0.26.0", engine="vllm", prices="laws", run=run)
    assert "vLLM 0.24 (the release before 0.26.0 that was read): first model runner" in time.source.detail
    assert time.launch_source is not None
    assert time.launch_source.spread > 0.5


def test_sglang_overlaps_rounds_since_its_workers_do() -> None:
    run = Run(target=find_model(MOE), device=find_device("h200"), kv=BF16, drafter="eagle")
    old, new, default = (
        find_engine_time(name, engine="sglang", prices="laws", run=run)
        for name in ("sglang:0.5.6", "sglang:0.5.23", None)
    )
    assert old.verify_step_seconds > new.verify_step_seconds + 0.9e-3
    assert default.verify_step_seconds > 1e-3
    assert "SGLang 0.5.23: asynchronous rounds" in new.source.detail
