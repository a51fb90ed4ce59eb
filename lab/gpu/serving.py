"""The reference MoE and its drafter in a vLLM that serves requests which join and leave, for `answers` and `soak`.

    python -m lab.gpu.serving REFERENCE FOLDER     writes FOLDER: both models, prompts as token ids, policies

REFERENCE is what `examples/reference_moe/recipe.py --out REFERENCE` wrote.

It has all that a machine without network needs (45 MB). The engine runs in this process, with the plug-in where
settings are given; everything that is not named here is vLLM's default.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from lab import CATALOG

DEPTH = 5
SEQUENCES = 32
PROMPT_TOKENS = (8, 24, 60, 120, 160)
KV_BYTES = 1_500_000_000
POLICY = "reference.policy.json"  # of this model
GATING_POLICY = "gating.policy.json"  # of another, for which `"gate": "auto"` chooses the gate
# Everything in float32: products of matrices by cuBLAS, by PyTorch and in Triton's kernels.
WITHOUT_TF32 = {
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
    "NVIDIA_TF32_OVERRIDE": "0",
    "TRITON_F32_DEFAULT": "ieee",
}


# --- the folder ---


def make(source: Path, folder: Path) -> None:
    for part in ("target", "draft"):
        shutil.copytree(source / part, folder / part, dirs_exist_ok=True, copy_function=shutil.copyfile)
    (folder / "prompts.json").write_text(json.dumps(_prompts(source)))
    drafter = f"model:{source / 'draft'}"
    acceptance = CATALOG / "acceptance/reference-moe.acceptance.json"
    shared = ["--gpu", "h200", "--acceptance", str(acceptance), "--depth", str(DEPTH), "--force"]
    _plan(str(source / "target"), "--drafter", drafter, "--context", "256", *shared, "--policy", str(folder / POLICY))
    _plan("qwen3-30b-a3b", "--drafter", "eagle3", *shared, "--policy", str(folder / GATING_POLICY))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")


def _prompts(source: Path) -> list[list[int]]:
    """Of all categories in turn, of mixed lengths."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "target" / "tokenizer.json"))
    texts = json.loads((source / "prompts.json").read_text())
    mixed = [text for row in zip(*(texts[kind] for kind in ("cpp", "python", "prose")), strict=True) for text in row]
    return [tokenizer.encode(text).ids[: PROMPT_TOKENS[i % len(PROMPT_TOKENS)]] for i, text in enumerate(mixed)]


def _plan(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "specmargin.cli.main", "plan", *arguments], check=True, capture_output=True)


# --- the engine ---


def arguments(folder: Path, *, dtype: str, settings: dict[str, Any] | None, eager: bool) -> dict[str, Any]:
    """Of the engine. Without settings, the plug-in is not registered at all."""
    given: dict[str, Any] = {
        "model": str(folder / "target"),
        "dtype": dtype,
        "max_model_len": 1024,
        "max_num_seqs": SEQUENCES,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.02,  # only checked against free memory at start; KV is set in bytes
        "kv_cache_memory_bytes": KV_BYTES,
        "disable_log_stats": True,
        "speculative_config": {
            "method": "draft_model",
            "model": str(folder / "draft"),
            "num_speculative_tokens": DEPTH,
        },
    }
    if eager:
        given |= {"enforce_eager": True}
    if settings is not None:
        given["additional_config"] = {"specmargin": settings}
    return given


def stand_in_for_missing_extras() -> None:
    """Captures need Polars; it is not used here, and the GPU machine may lack it."""
    if importlib.util.find_spec("polars") is None:
        sys.modules["polars"] = types.ModuleType("polars")


class Serving:
    """An engine in this process. Requests are added and aborted between steps."""

    def __init__(self, given: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        stand_in_for_missing_extras()
        if "additional_config" in given:
            from specmargin.live.vllm.plugin import register

            register()
        else:
            os.environ["VLLM_PLUGINS"] = ""  # an installed plug-in stays out too
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        begun = time.perf_counter()
        self.engine = LLMEngine.from_engine_args(EngineArgs(**given))
        self.start_seconds = time.perf_counter() - begun
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        worker = self.core.model_executor.driver_worker
        self.runner = getattr(worker, "worker", worker).model_runner

    @property
    def driver(self) -> Any:
        """Of the plug-in; None without it, or once it has disabled itself."""
        return getattr(self.scheduler, "_driver", None)

    @property
    def manager(self) -> Any:
        """Of the gate on the GPU; None without one."""
        return getattr(self.runner, "adaptive_verification", None)

    def add(self, name: str, prompt: list[int], **parameters: Any) -> None:
        from vllm import SamplingParams

        self.engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(**parameters))

    def step(self) -> list[Any]:
        return list(self.engine.step())

    def abort(self, names: list[str]) -> None:
        self.engine.abort_request(names)

    @property
    def busy(self) -> bool:
        return bool(self.engine.has_unfinished_requests())

    def drain(self, seconds: float) -> list[Any]:
        """Step until nothing is left; raises if that takes too long."""
        outputs, until = [], time.monotonic() + seconds
        while self.busy:
            outputs += self.step()
            if time.monotonic() > until:
                raise TimeoutError(f"requests are unfinished after {seconds:.0f} s")
        return outputs

    def faults(self) -> dict[str, int]:
        driver = self.driver or getattr(self.scheduler, "_disabled", None)
        found = {} if driver is None else dict(driver.guard.faults)
        guard = getattr(self.manager, "guard", None)
        return found if guard is None else found | dict(guard.faults)

    def description(self) -> dict[str, Any]:
        import torch
        import vllm

        config = self.engine.vllm_config
        groups = getattr(self.runner, "attn_groups", [])
        mode = config.compilation_config.cudagraph_mode
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
            "runner": type(self.runner).__module__,
            "dtype": str(config.model_config.dtype),
            "attention": sorted({group.backend.get_name() for row in groups for group in row}),
            "graphs": str(mode.name) if mode else "none",
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "plug_in": type(self.scheduler).__name__ if self.driver is not None else "none",
            "gate": "none" if self.manager is None else f"{type(self.manager).__name__}, {self._gate_kind()}",
            "start_seconds": round(self.start_seconds, 1),
        }

    def _gate_kind(self) -> str:
        return str(getattr(self.manager, "kind", "vLLM's own"))


def top_k_is_served() -> bool:
    """vLLM 0.32's CPU build reads top_k of drafted requests from uninitialised memory and stops."""
    import torch

    return bool(torch.cuda.is_available())


def count_budgets(manager: Any) -> list[tuple[int, int, int]]:
    """From now on: (sequences, drafts, verified drafts) of each step, in the list that is returned."""
    steps: list[tuple[int, int, int]] = []
    if manager is None:
        return steps
    choose = manager.get_num_tokens

    def counted(num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        tokens = choose(num_tokens_per_req, draft_tokens)
        drafts = sum(map(len, draft_tokens.values()))
        steps.append((len(num_tokens_per_req), drafts, int(manager._batch_budget[2])))
        return int(tokens)

    manager.get_num_tokens = counted
    return steps


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
