"""Third-party measurements of served models: `silicon_sample.csv` of aiconfigurator-core, aggregated mode.

A row is a model on GPUs behind an engine, at a fixed concurrency of requests of equal length, with the measured time
per output token. No row uses speculation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl

from specmargin.architecture.precision import PRECISIONS
from specmargin.architecture.reader import read_architecture
from specmargin.architecture.types import Architecture
from specmargin.errors import InputError, TableError
from specmargin.hardware.layout import Layout
from specmargin.prices.kernels.store import SYSTEMS

_DEVICES = {system: device for device, system in SYSTEMS.items()}

# Configuration that a row was served with, by model and weight format; the default is that of the checkpoint.
_CONFIGURATIONS = {
    ("deepseek-ai/DeepSeek-R1", "nvfp4"): "nvidia--DeepSeek-V3.1-NVFP4",
    ("deepseek-ai/DeepSeek-V3", "nvfp4"): "nvidia--DeepSeek-V3.1-NVFP4",
    ("nvidia/DeepSeek-R1-NVFP4", "nvfp4"): "nvidia--DeepSeek-V3.1-NVFP4",
    ("nvidia/DeepSeek-V3.1-NVFP4", "nvfp4"): "nvidia--DeepSeek-V3.1-NVFP4",
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): "nvidia--MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "nvfp4"): "nvidia--Kimi-K2.5-NVFP4",
    ("Qwen/Qwen3.5-397B-A17B", "nvfp4"): "nvidia--Qwen3.5-397B-A17B-NVFP4",
    ("zhipuai/GLM-5", "fp8"): "zai-org--GLM-5-FP8",
    ("zhipuai/GLM-5", "nvfp4"): "nvidia--GLM-5-NVFP4",
    ("meta-llama/Llama-3.1-8B-Instruct", ""): "meta-llama--Meta-Llama-3.1-8B",
    ("meta-llama/Llama-3.1-70B", ""): "meta-llama--Meta-Llama-3.1-70B",
}
_OVERRIDDEN = {  # published in bf16, served in another format
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8_block"): ("meta-llama--Meta-Llama-3.1-8B", "fp8-block"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): ("meta-llama--Meta-Llama-3.1-8B", "fp8"),
    ("meta-llama/Llama-3.1-70B", "fp8"): ("meta-llama--Meta-Llama-3.1-70B", "fp8"),
    ("meta-llama/Llama-3.1-70B", "nvfp4"): ("meta-llama--Meta-Llama-3.1-70B", "nvfp4"),
    ("Qwen/Qwen3-32B", "fp8"): ("Qwen--Qwen3-32B", "fp8-block"),
    ("Qwen/Qwen3-32B", "nvfp4"): ("Qwen--Qwen3-32B", "nvfp4"),
    ("nvidia/Qwen3-32B-NVFP4", "nvfp4"): ("Qwen--Qwen3-32B", "nvfp4"),
    ("Qwen/Qwen3.5-397B-A17B", "fp8"): ("Qwen--Qwen3.5-397B-A17B", "fp8-block"),
}


_FAMILIES = (
    "DeepSeek",
    "Kimi-K2.5",
    "GLM-5",
    "MiniMax-M2.5",
    "Qwen3.5",
    "Qwen3-235B",
    "gpt-oss",
    "Qwen3-32B",
    "Llama-3.1",
)
_DENSE = ("Qwen3-32B", "Llama-3.1")
_SQUARED_SOURCES = ("2026-04-06.csv", "db-dump/2026-04-27")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    identity: str
    model: str
    engine: str
    version: str
    device: str
    weights: str  # as the row names it
    expert_weights: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    layout: Layout
    tpot_seconds: float
    ttft_seconds: float

    @property
    def family(self) -> str:
        """Models of one architecture: the same measurement is listed under DeepSeek-R1 and under DeepSeek-V3."""
        name = self.model.split("/")[-1]
        return next((family for family in _FAMILIES if name.startswith(family)), name)

    @property
    def is_moe(self) -> bool:
        return self.family not in _DENSE

    @property
    def configuration(self) -> tuple[object, ...]:
        """Everything that a prediction depends on."""
        return (
            self.family,
            self.engine,
            self.device,
            self.weights,
            self.prompt_tokens,
            self.output_tokens,
            self.concurrency,
            self.layout,
        )


def served_rows() -> list[ServedRow]:
    """Every aggregated row."""
    path = Path(str(files("aiconfigurator_core"))) / "systems" / "silicon_sample.csv"
    try:
        frame = pl.read_csv(path, infer_schema_length=None).filter(pl.col("mode") == "agg")
    except Exception as error:
        raise TableError(f"{path}: cannot be read ({type(error).__name__}); reinstall specmargin[tables]") from None
    return [_row(values) for values in frame.to_dicts()]


def _row(values: dict[str, Any]) -> ServedRow:
    return ServedRow(
        identity=values["id"],
        model=values["model_path"],
        engine=values["backend"],
        version=str(values["backend_version"] or ""),
        device=_DEVICES.get(values["system"], values["system"]),
        weights=str(values["gemm_quant_mode"] or ""),
        expert_weights=str(values["moe_quant_mode"] or ""),
        prompt_tokens=int(values["isl"]),
        output_tokens=int(values["osl"]),
        concurrency=_concurrency(values),
        layout=_layout(values),
        tpot_seconds=float(values["silicon_tpot_ms"]) * 1e-3,
        ttft_seconds=float(values["silicon_ttft_ms"]) * 1e-3,
    )


def _layout(values: dict[str, Any]) -> Layout:
    """Two of the sources multiply sizes that refer to the same GPUs: they list 8-way tensor and 8-way expert
    parallelism of one host as 64 GPUs. A third source lists 118 of these measurements with 8 GPUs."""
    tensor, copies = _size(values["tp_size"]), _size(values["attention_dp_size"])
    expert_tensor, expert_ranks = _size(values["moe_tp_size"]), _size(values["moe_ep_size"])
    gpus = max(tensor * copies, expert_tensor * expert_ranks)
    if any(name in str(values["silicon_data_source"]) for name in _SQUARED_SOURCES):
        if expert_tensor == expert_ranks > 1:
            gpus = expert_ranks
            return Layout(gpus=gpus, attention_copies=gpus if copies > 1 else 1, expert_split=1)
        if tensor == copies > 1:
            return Layout(gpus=copies, attention_copies=copies, expert_split=1)
    return Layout(gpus=gpus, attention_copies=gpus // tensor, expert_split=max(gpus // expert_ranks, 1))


def _size(value: float | None) -> int:
    """A missing or zero size means one."""
    return max(int(value or 1), 1)


def _concurrency(values: dict[str, Any]) -> int:
    marker = "silicon_concurrency="
    source = str(values["silicon_data_source"] or "")
    if marker in source:
        return int(source.split(marker)[1].split(";", maxsplit=1)[0])
    return int(values["batch_size"])


def configuration_name(model: str, weights: str) -> str:
    """The configuration file that a row's model was served with."""
    if (model, weights) in _OVERRIDDEN:
        return _OVERRIDDEN[model, weights][0]
    return _CONFIGURATIONS.get((model, weights), model.replace("/", "--"))


@cache
def architecture_of(model: str, weights: str) -> Architecture:
    """The model of a row, in the format it was served in."""
    folder = Path(str(files("aiconfigurator_core"))) / "model_configs"
    name = configuration_name(model, weights)
    overriding = _OVERRIDDEN.get((model, weights))
    override = PRECISIONS[overriding[1]] if overriding is not None else None
    path = folder / f"{name}_config.json"
    if not path.is_file():
        raise InputError(f"aiconfigurator-core has no configuration of {model} in {weights or 'bf16'}")
    quantization_file = folder / f"{name}_hf_quant_config.json"
    quantization = json.loads(quantization_file.read_text())["quantization"] if quantization_file.is_file() else None
    values = json.loads(path.read_text())
    return read_architecture(values, name=model, origin=name, quantization=quantization, weights=override)
