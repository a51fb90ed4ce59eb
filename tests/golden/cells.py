"""Which plans are recorded: models × GPUs × engines × prices, and some with options of their own.

A cell is described in the words of the command line, so that the files outlive the names inside the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_DEPTH = 8
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp")
PRICES = ("datasheet", "laws", "tables")
GPUS = ("a100", "h200", "l40s", "b200", "rtx-pro-6000", "mi300x")  # the last one has neither laws nor tables

# One or more of every family that is priced in a way of its own. Weights are the checkpoint's unless told otherwise.
MODELS = {
    "qwen3-8b": "",  # dense
    "gemma-4-31b": "",  # dense, sliding windows
    "qwen3.6-27b": "",  # dense, gated delta net
    "qwen3-30b-a3b": "",  # mixtures of experts with grouped-query attention
    "qwen3-235b-a22b": "--weights nvfp4",
    "glm-4.5-air": "",
    "minimax-m2.5": "",  # fp8 blocks
    "mixtral-8x7b": "",
    "llama-4-scout": "--weights fp8",
    "gemma-4-26b-a4b": "",  # sliding windows
    "mimo-v2-flash": "",
    "gpt-oss-120b": "",  # mxfp4
    "deepseek-v3": "",  # multi-head latent attention
    "kimi-k2.5": "",  # int4
    "deepseek-v4.1-flash": "",  # shared histories and selections, a DSpark head with experts
    "glm-5.3-flash": "",  # Kimi Delta Attention, pooled keys of the indexer
    "glm-4.7-flash": "",
    "deepseek-v3.2": "",  # sparse latent attention
    "glm-5.2": "--weights fp8",
    "deepseek-v4-flash": "",  # compressed attention
    "qwen3.6-35b-a3b": "",  # gated delta net
    "qwen3.8-flash-next": "--weights fp8",  # gated delta net, selected blocks, hyper-connections
    "nemotron-3-nano-30b-a3b": "",  # Mamba
    "nemotron-3-super-120b-a12b": "",
}
SPREAD_MODELS = ("deepseek-v3", "qwen3-235b-a22b", "deepseek-v4-flash")  # also with their experts over GPUs
SPREAD_GPUS = ("h200", "b200")
SPREAD_ENGINES = ("vllm", "sglang")

# Everything else that a plan can be asked with, one or a few options at a time: model, GPU, engine, prices, options.
OTHERS = (
    *(
        ("qwen3.6-35b-a3b", "h200", "vllm", "laws", options)
        for options in (
            "--drafter eagle",
            "--drafter dflash",
            "--drafter ssd",
            "--drafter model:qwen3-0.6b",
            "--draft-weights fp8 --draft-vocabulary 32000",
            "--drafter ngram",
            "--drafter free",
            "--acceptance 0.8",
            "--acceptance 0.78,0.58,0.44",
            "--acceptance accepted:2.3@4",
            "--routing uniform",
            "--routing deepseek-v4-flash",
            "--context 32768",
            "--context 131072 --kv-cache fp8",
            "--weights fp8",
            "--engine-time none",
            "--engine-time vllm:slow-host",
            "--engine-time vllm:piecewise",
            "--graph-limit 128",
            "--step-ms 2 --sequence-ms 0.05 --position-us 5 --layer-us 10 --off-ms 0.5",
            "--memory-utilization 0.7",
            "--gpus 4",
        )
    ),
    ("qwen3.6-35b-a3b", "b200", "vllm", "datasheet", "--form whole-step --routing uniform-with-replacement"),
    ("qwen3.6-35b-a3b", "b200", "trtllm", "tables", "--weights nvfp4 --kv-cache fp8"),
    ("qwen3.6-35b-a3b", "m3-ultra", "llamacpp", "datasheet", "--weights q4_k"),
    ("qwen3.6-35b-a3b", "h200", "sglang", "tables", "--drafter dflash --context 8192"),
    ("qwen3-30b-a3b", "h200", "vllm", "vllm-0.26-h200-qwen3-30b-a3b", ""),
    ("qwen3-30b-a3b", "h200", "vllm", "vllm-0.26-h200-qwen3-30b-a3b:piecewise", ""),
    ("qwen3-4b", "h200", "vllm", "vllm-0.26-h200-qwen3-4b", ""),
    ("reference-moe", "h200", "vllm", "laws", "--drafter model:reference-draft"),  # captured routing and acceptance
    ("reference-moe", "h200", "vllm", "laws", "--gpus 4 --parallel ep --placement balanced"),
    ("deepseek-v3", "h200", "vllm", "laws", "--gpus 16 --parallel ep"),  # over two nodes
    ("deepseek-v3", "gb200", "trtllm", "tables", "--gpus 16 --parallel dp-ep"),
    ("kimi-k2", "h100", "sglang", "laws", "--gpus 16"),
    ("deepseek-v3", "h200", "vllm", "laws", "--gpus 16 --tp 2 --dp 8 --ep true"),
    ("deepseek-v3", "b200", "vllm", "laws", "--gpus 8 --tp 4 --pp 2 --ep true --redundant-experts 16"),
    ("qwen3.6-35b-a3b", "m3-ultra", "llamacpp", "datasheet", "--gpus 1 --weights q4_k --draft-p-min 0.5"),
    ("qwen3.6-35b-a3b", "h200", "vllm", "laws", "--drafter dspark"),
    ("qwen3.6-35b-a3b", "h200", "sglang", "laws", "--drafter dspark"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One plan. `by_depth`: with its prices by depth. `whole`: with everything that a plan says."""

    model: str
    gpu: str
    engine: str
    prices: str
    options: str = ""
    by_depth: bool = True
    whole: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return (self.model, self.gpu, self.engine, self.prices, self.options)


KEY = ("model", "gpu", "engine", "prices", "options")


def _matrix() -> Iterator[Cell]:
    for model_index, (model, options) in enumerate(MODELS.items()):
        for gpu_index, gpu in enumerate(GPUS):
            for engine_index, engine in enumerate(ENGINES):
                for prices_index, prices in enumerate(PRICES):
                    # A whole plan takes as long as four others: every model on every other GPU has one, with engines
                    # and prices in turn.
                    turn = (model_index + gpu_index + 3 * engine_index + 4 * prices_index) % 12 == 0
                    whole = turn and (model_index + gpu_index // 2) % 2 == 0
                    # Datasheet prices are the same for every engine: one of the four records them by depth, in turn.
                    by_depth = prices != "datasheet" or (model_index + gpu_index + engine_index) % len(ENGINES) == 0
                    cell = Cell(model=model, gpu=gpu, engine=engine, prices=prices, options=options)
                    yield replace(cell, by_depth=by_depth, whole=whole)


def _spread() -> Iterator[Cell]:
    for model in SPREAD_MODELS:
        for layout in ("ep", "dp-ep"):
            options = f"{MODELS[model]} --parallel {layout}".strip()
            for gpu in SPREAD_GPUS:
                for engine in SPREAD_ENGINES:
                    for prices in PRICES:
                        yield Cell(model=model, gpu=gpu, engine=engine, prices=prices, options=options)


def _others() -> Iterator[Cell]:
    for index, (model, gpu, engine, prices, options) in enumerate(OTHERS):
        whole = index % 2 == 0 and "--placement" not in options  # busiest ranks at every context would take seconds
        yield Cell(model=model, gpu=gpu, engine=engine, prices=prices, options=options, whole=whole)


@cache
def blocks() -> dict[str, tuple[Cell, ...]]:
    """What is priced together: a GPU's tables are read once."""
    by_part: dict[str, list[Cell]] = {}
    for cell in (*_matrix(), *_spread()):
        by_part.setdefault(f"{cell.gpu} {cell.prices}", []).append(cell)
    by_part["other options"] = list(_others())
    return {name: tuple(cells) for name, cells in by_part.items()}


def keys() -> list[tuple[str, ...]]:
    return [cell.key for cells in blocks().values() for cell in cells]
