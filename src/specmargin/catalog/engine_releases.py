"""What a release of an engine does with a model, a GPU and a drafter: model runner, scheduling, CUDA graphs.

Read from the releases' sources; file and line of each rule stand beside it. A release between two that were read is
taken to be like the older one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture
from specmargin.errors import CatalogError
from specmargin.hardware.device import Device
from specmargin.prices.attention_kernels import FLASHINFER, RTX6KPRO, SYV, TRITON_MLA, device_kernel
from specmargin.prices.launches import Graph
from specmargin.releases import Release, parse_release, release

#: Releases whose rules were read, oldest first; rules of the first three from pull requests.
VLLM = ("0.11", "0.14", "0.17", "0.19", "0.20", "0.22", "0.24", "0.27.1", "0.29", "0.32", "0.33")
SGLANG = ("0.5.6", "0.5.23")
KNOWN = {"vllm": VLLM, "sglang": SGLANG}
BUILDS = {"vllm": (RTX6KPRO, SYV)}
_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}

# --- what is asked, and what is answered ---


class Scheduling(StrEnum):
    """What the host does while the GPU runs a step."""

    ASYNC = "asynchronous"  # it prepares the next one
    WAITING = "half asynchronous"  # it does once it knows how many tokens were accepted
    SYNC = "synchronous"  # it waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an engine is started with."""

    target: Architecture
    device: Device
    kv: Precision
    drafter: str  # a kind of `modes.DRAFTERS`; "": no speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """How a release runs it."""

    release: Release  # the one that was read
    plain_second_runner: bool  # of an engine without speculation
    second_runner: bool
    plain: Scheduling
    rounds: Scheduling
    plain_graph: Graph
    verify_graph: Graph
    first_draft_graph: Graph
    draft_graph: Graph
    detail: str


def known_release(engine: str, text: str) -> Release:
    """The newest release that was read and is not newer; the oldest for those before it."""
    asked = parse_release(text)
    if asked is None or engine not in KNOWN:
        raise CatalogError(f"{text!r} is not a release of {_TITLES.get(engine, engine)}")
    if asked.build not in ("", *BUILDS.get(engine, ())):
        named = ", ".join(BUILDS.get(engine, ())) or "none"
        raise CatalogError(f"{text!r}: this build of {_TITLES[engine]} was not read; known: {named}")
    read = [release(known) for known in KNOWN[engine]]
    found = max((known for known in read if known.numbers <= asked.numbers), default=read[0])
    return replace(found, build=asked.build)


def mechanism(engine: str, text: str, run: Run) -> Mechanism:
    found = known_release(engine, text)
    return _vllm(found, run) if engine == "vllm" else _sglang(found)


# --- vLLM ---

#: Model families of DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES that this package reads (config/vllm.py, 0.24:66, 0.27.1:69).
_SECOND_0_24 = frozenset({"qwen3", "llama", "mistral", "deepseek_v2"})
_SECOND_0_27 = frozenset({"deepseek_v2", "kimi_linear"})


def _vllm(found: Release, run: Run) -> Mechanism:
    second = _second_runner(found, run)
    rounds = _scheduling(found, run.drafter)
    plain_graph, verify_graph, backend = _target_graphs(found, run)
    first, later, drafting = _draft_graphs(run.drafter, verify_graph, second=second)
    return Mechanism(
        release=found,
        plain_second_runner=_second_runner(found, replace(run, drafter="")),
        second_runner=second,
        plain=Scheduling.SYNC if found < release("0.14") else Scheduling.ASYNC,
        rounds=rounds,
        plain_graph=plain_graph,
        verify_graph=verify_graph,
        first_draft_graph=first,
        draft_graph=later,
        detail=f"vLLM {found}: {'second' if second else 'first'} model runner, {rounds} rounds, {backend}, {drafting}",
    )


def _second_runner(found: Release, run: Run) -> bool:
    """`use_v2_model_runner` (config/vllm.py): 0.22:493, 0.24:522, 0.27.1:578, 0.29:645, 0.32:703, and the features that
    it lacks (`_get_v2_model_runner_unsupported_features`): draft models and n-grams until 0.32."""
    kind, target = run.drafter, run.target
    if kind == "dspark":
        return True  # exists only there (0.27.1:591)
    if found < release("0.22") or (kind in ("model", "ngram") and found < release("0.32")):
        return False
    if found >= release("0.29"):
        return True
    hybrid = target.layer_counts.recurrent_layers > 0
    if found >= release("0.27.1"):
        return not hybrid and (not target.is_moe or target.family in _SECOND_0_27)
    if found >= release("0.24"):
        return target.family in _SECOND_0_24
    plain_weights = set(target.weight_precisions) <= {"bf16", "fp16"}
    return target.family == "qwen3" and plain_weights and kind in ("", "mtp", "eagle")


def _scheduling(found: Release, kind: str) -> Scheduling:
    """Async by default since 0.14 (pull requests 27614, 31998); for EAGLE and MTP alone at first (config/vllm.py:
    0.17:712, 0.27.1:1107), for draft models since 0.29 (:1275), for n-grams since 0.33 (:1653).
    Until 0.19 a round waited for the number of accepted tokens (pull request 32951)."""
    if found < release("0.14"):
        return Scheduling.SYNC
    if kind == "model" and found < release("0.29"):
        return Scheduling.SYNC
    if kind == "ngram" and found < release("0.33"):
        return Scheduling.SYNC
    return Scheduling.WAITING if found < release("0.19") else Scheduling.ASYNC


def _target_graphs(found: Release, run: Run) -> tuple[Graph, Graph, str]:
    """Of plain and verify steps. With a backend whose `AttentionCGSupport` is below UNIFORM_BATCH, verify steps run
    piecewise (`resolve_cudagraph_mode_and_sizes`, config/compilation.py: 0.20:1301, 0.27.1:1368, 0.32:1369)."""
    if (run.device.architecture or "").startswith("bmg") and found < release("0.32"):
        # Intel: VLLM_XPU_ENABLE_XPU_GRAPH is off by default (platforms/xpu.py, 0.20:192, 0.29:300; gone in 0.32).
        return Graph.COMPILED, Graph.COMPILED, f"verify steps in {Graph.COMPILED} (XPU)"
    backend, plain, uniform = _backend(found, run)
    graphs = Graph.FULL if plain else Graph.PIECEWISE, Graph.FULL if plain and uniform else Graph.PIECEWISE
    return *graphs, f"verify steps in {graphs[1]} ({backend})"


def _backend(found: Release, run: Run) -> tuple[str, bool, bool]:
    """Attention backend, whether plain steps have full graphs, and whether steps of equal runs have: of all layers' the
    least. Backends that are not named here have UNIFORM_BATCH or more: FlashAttention 2 and 3 (flash_attn.py, 0.17:259,
    0.27.1:353, 0.32:615), Triton (triton_attn.py), GatedDeltaNet (gdn_attn.py), MLA on Hopper and data-centre Blackwell
    (flashattn_mla.py, flashinfer_mla.py), AMD's (rocm_attn.py, rocm_aiter_fa.py)."""
    kinds = [group.layer.attention for group in run.target.groups if group.layer.attention is not None]
    names = {device_kernel("vllm", run.device, kind, run.kv, found.numbers, found.build).name for kind in kinds}
    if found.build == RTX6KPRO and TRITON_MLA in names:
        return f"{TRITON_MLA}, build {RTX6KPRO}", True, True  # UNIFORM_BATCH (vLLM pull request 40750)
    if TRITON_MLA in names:
        # No full graphs at first (the default of mla/common.py), then UNIFORM_BATCH (triton_mla.py, 0.22:33), single
        # tokens only (0.27.1:52), UNIFORM_BATCH again (0.32:54).
        return TRITON_MLA, found >= release("0.22"), not release("0.27.1") <= found < release("0.32")
    if FLASHINFER in names:
        return FLASHINFER, True, _flashinfer_takes_runs(found, run.device.compute_capability)
    return " and ".join(sorted(names)), True, True


def _flashinfer_takes_runs(found: Release, capability: int | None) -> bool:
    """TRT-LLM's kernels on data-centre Blackwell (flashinfer.py, 0.17:678), XQA on SM12x since 0.29
    (utils/flashinfer.py, 0.27.1:390, 0.29:483)."""
    family = None if capability is None else capability // 10
    return family == 10 or (family == 12 and found >= release("0.29"))


def _draft_graphs(kind: str, verify: Graph, *, second: bool) -> tuple[Graph, Graph, str]:
    """Of the first and of later passes.

    First runner: piecewise for every drafter (eagle.py, 0.17:359; llm_base_proposer.py, 0.27.1:411). Second runner: as
    the verify step, later passes full or not at all (eagle/speculator.py, 0.22:135; autoregressive/speculator.py,
    0.27.1:70; target_dependent_ar/speculator.py, 0.32:98; dflash/speculator.py, 0.32:126); draft models without graphs
    (standalone_ar/speculator.py, 0.32 and 0.33:67).
    """
    if kind in ("ngram", "free"):
        return Graph.FULL, Graph.FULL, "no draft passes"
    if verify is not Graph.COMPILED and not second:
        return Graph.PIECEWISE, Graph.PIECEWISE, "draft passes in piecewise graphs"
    if kind == "model" or verify is Graph.COMPILED:
        return Graph.COMPILED, Graph.COMPILED, "draft passes without graphs"
    if verify is Graph.FULL:
        return Graph.FULL, Graph.FULL, "draft passes in full graphs"
    first = Graph.COMPILED if kind in ("dflash", "dspark") else verify
    return first, Graph.COMPILED, "later draft passes without graphs"


# --- SGLang ---


def _sglang(found: Release) -> Mechanism:
    """Speculation turned the overlap scheduler off in 0.5.6 unless SpecV2 was enabled (server_args.py); 0.5.23 has only
    workers that overlap (speculative/spec_registry.py:137, eagle_worker_v2.py). Draft and verify steps have graphs of
    their own (eagle_draft_cuda_graph_runner.py)."""
    rounds = Scheduling.SYNC if found < release("0.5.23") else Scheduling.ASYNC
    return Mechanism(
        release=found,
        plain_second_runner=True,
        second_runner=True,
        plain=Scheduling.ASYNC,
        rounds=rounds,
        plain_graph=Graph.FULL,
        verify_graph=Graph.FULL,
        first_draft_graph=Graph.FULL,
        draft_graph=Graph.FULL,
        detail=f"SGLang {found}: {rounds} rounds, draft passes in full graphs",
    )
