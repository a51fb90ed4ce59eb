"""What a release of an engine does with a model, a GPU and a drafter: model runner, scheduling, CUDA graphs.

Read from the releases' sources; file and line of each rule stand beside it. A release between two that were read is
taken to be like the older one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, CompressedAttention, LatentAttention, LinearAttention
from specmargin.errors import CatalogError
from specmargin.hardware.device import Device
from specmargin.prices.launches import Graph
from specmargin.releases import Release, parse_release, release

#: Releases whose rules were read, oldest first; rules of the first three from pull requests.
VLLM = ("0.11", "0.14", "0.17", "0.19", "0.20", "0.22", "0.24", "0.27.1", "0.29", "0.32", "0.33")
SGLANG = ("0.5.6", "0.5.23")
KNOWN = {"vllm": VLLM, "sglang": SGLANG}
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
    read = [release(known) for known in KNOWN[engine]]
    return max((known for known in read if known.numbers <= asked.numbers), default=read[0])


def mechanism(engine: str, text: str, run: Run) -> Mechanism:
    found = known_release(engine, text)
    return _vllm(found, run) if engine == "vllm" else _sglang(found)


# --- vLLM ---

_HEADS = frozenset({"mtp", "eagle", "dflash"})  # EagleModelTypes (config/speculative.py: 0.17:49, 0.27.1:64, 0.32:70)
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
    0.17:712, 0.27.1:1107), for draft models since 0.29 (:1275), for n-grams with the second runner's since 0.33 (:1653).
    Until 0.19 a round waited for the number of accepted tokens (pull request 32951)."""
    if found < release("0.14"):
        return Scheduling.SYNC
    if kind == "model" and found < release("0.29"):
        return Scheduling.SYNC
    if kind == "ngram" and found < release("0.33"):
        return Scheduling.SYNC
    return Scheduling.WAITING if found < release("0.19") else Scheduling.ASYNC


def _target_graphs(found: Release, run: Run) -> tuple[Graph, Graph, str]:
    """Of plain and verify steps. A backend whose `AttentionCGSupport` is below UNIFORM_BATCH runs verify steps piecewise
    (`resolve_cudagraph_mode_and_sizes`, config/compilation.py: 0.20:1301, 0.27.1:1368, 0.32:1369)."""
    backend, plain, uniform = _backend(found, run)
    graphs = Graph.FULL if plain else Graph.PIECEWISE, Graph.FULL if plain and uniform else Graph.PIECEWISE
    return *graphs, f"{backend}: verify steps in {graphs[1]}"


def _backend(found: Release, run: Run) -> tuple[str, bool, bool]:
    """Attention backend, whether plain steps have full graphs, and whether batches of equal runs have.

    The order of backends is platforms/cuda.py's (0.27.1:85, 0.32:91); GPUs without CUDA use backends with UNIFORM_BATCH
    or ALWAYS (rocm_attn.py, triton_attn.py, rocm_aiter_fa.py).
    """
    major = _major(run.device)
    if any(isinstance(group.layer.attention, LatentAttention) for group in run.target.groups):
        return _latent_backend(found, major)
    if any(isinstance(group.layer.attention, CompressedAttention) for group in run.target.groups):
        return "sparse MLA", True, True  # mla/flashmla_sparse.py, mla/sparse_swa.py: UNIFORM_BATCH
    if all(isinstance(group.layer.attention, LinearAttention) for group in run.target.groups) or major is None:
        return "attention", True, True
    if major == 10:
        return "FlashInfer (TRT-LLM kernels)", True, True  # flashinfer.py: 0.17:678, 0.32:1078
    quantized_cache = run.kv.bytes_per_parameter < 2.0 and major != 9  # FlashAttention 2 reads none (fa_utils.py, 0.27.1:296)
    if major < 8 or quantized_cache:
        # XQA kernels for SM12x since 0.29 (utils/flashinfer.py:483), not in 0.27.1 (:390).
        return "FlashInfer", True, major == 12 and found >= release("0.29")
    return f"FlashAttention {3 if major == 9 else 2}", True, True  # flash_attn.py: 0.17:259, 0.27.1:353, 0.32:615


def _latent_backend(found: Release, major: int | None) -> tuple[str, bool, bool]:
    """Triton MLA outside Hopper and data-centre Blackwell: no full graphs at first (the default of mla/common.py), then
    UNIFORM_BATCH (triton_mla.py, 0.22:33), single tokens only (0.27.1:52), UNIFORM_BATCH again (0.32:54)."""
    if major is None:
        return "MLA", True, True
    if major in (9, 10):
        return "MLA of the GPU's own", True, True  # flashattn_mla.py, flashinfer_mla.py: UNIFORM_BATCH
    uniform = not release("0.27.1") <= found < release("0.32")
    return "Triton MLA", found >= release("0.22"), uniform


def _draft_graphs(kind: str, verify: Graph, *, second: bool) -> tuple[Graph, Graph, str]:
    """Of the first and of later passes.

    First runner: piecewise for every drafter (eagle.py, 0.17:359; llm_base_proposer.py, 0.27.1:411). Second runner: as
    the verify step, later passes full or not at all (eagle/speculator.py, 0.22:135; autoregressive/speculator.py,
    0.27.1:70; target_dependent_ar/speculator.py, 0.32:98; dflash/speculator.py, 0.32:126); draft models without graphs
    (standalone_ar/speculator.py, 0.32 and 0.33:67).
    """
    if kind in ("ngram", "free"):
        return Graph.FULL, Graph.FULL, "no draft passes"
    if not second:
        return Graph.PIECEWISE, Graph.PIECEWISE, "draft passes in piecewise graphs"
    if kind == "model":
        return Graph.COMPILED, Graph.COMPILED, "draft passes without graphs"
    if verify is Graph.FULL:
        return Graph.FULL, Graph.FULL, "draft passes in full graphs"
    first = Graph.COMPILED if kind in ("dflash", "dspark") else verify
    return first, Graph.COMPILED, "later draft passes without graphs"


def _major(device: Device) -> int | None:
    """CUDA's compute capability; None for other GPUs."""
    name = device.architecture or ""
    digits = name.removeprefix("sm_").rstrip("af")
    return int(digits) // 10 if name.startswith("sm_") and digits.isdigit() else None


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
