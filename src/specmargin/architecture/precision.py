"""Number formats: what a parameter costs to read, and which matrix unit multiplies it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specmargin.errors import ArchitectureError, nearest_names


class Arithmetic(StrEnum):
    """The operand format of the matrix unit. Devices list a rate for each that they have.

    DP4A is int8 on the vector units, which matrix-vector kernels use.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    DP4A = "dp4a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A storage format, its block scales included, and the arithmetic it is multiplied in."""

    name: str
    bytes_per_parameter: float
    arithmetic: Arithmetic
    blocks: tuple[tuple[str, float], ...] = ()  # of a mix of llama.cpp's block formats: each with its share of weights

    @property
    def container(self) -> str:
        """The kind of file that alone holds it: `gguf` (llama.cpp), `mlx`; "": others."""
        if self.name.startswith("mlx-"):
            return "mlx"
        return "gguf" if self.name.startswith(("q", "iq", "ud-")) or self.name == "mxfp4_moe" else ""


def _precision(name: str, bytes_per_parameter: float, arithmetic: Arithmetic) -> Precision:
    return Precision(name=name, bytes_per_parameter=bytes_per_parameter, arithmetic=arithmetic)


# Sizes follow from the block layout: elements + scales. The fp32 scale of a 128 × 128 fp8 block
# adds 0.02% and is left out.
_ALL = (
    _precision("fp32", 4.0, Arithmetic.FP32),
    _precision("bf16", 2.0, Arithmetic.BF16),
    _precision("fp16", 2.0, Arithmetic.BF16),
    _precision("fp8", 1.0, Arithmetic.FP8),  # one scale per tensor or channel
    _precision("fp8-block", 1.0, Arithmetic.FP8),  # one scale per 128 × 128 block, as DeepSeek and Qwen publish
    _precision("mxfp8", 1.0 + 1 / 32, Arithmetic.FP8),  # one e8m0 scale per 32
    _precision("int8", 1.0, Arithmetic.INT8),
    _precision("w8a16", 1.0, Arithmetic.BF16),
    _precision("mxfp4", 0.5 + 1 / 32, Arithmetic.FP4),  # one e8m0 scale per 32
    _precision("nvfp4", 0.5 + 1 / 16, Arithmetic.FP4),  # one e4m3 scale per 16
    _precision("nvfp4-w4a16", 0.5 + 1 / 16, Arithmetic.BF16),  # dequantised before the product
    _precision("int4-g32", 0.5 + 2 / 32, Arithmetic.BF16),  # one bf16 scale per 32, dequantised
    _precision("int4-g64", 0.5 + 2 / 64, Arithmetic.BF16),
    _precision("int4-g128", 0.5 + 2 / 128, Arithmetic.BF16),
    # MLX: a scale and a bias of 16 bits for each group of 64, dequantised.
    *(_precision(f"mlx-{bits}bit", bits / 8 + 4 / 64, Arithmetic.BF16) for bits in (3, 4, 5, 6, 8)),
    # llama.cpp's block formats: bytes per block / weights per block (ggml/src/ggml-common.h)
    _precision("q8_0", 34 / 32, Arithmetic.INT8),
    _precision("q5_1", 24 / 32, Arithmetic.INT8),
    _precision("q5_0", 22 / 32, Arithmetic.INT8),
    _precision("q4_1", 20 / 32, Arithmetic.INT8),
    _precision("q4_0", 18 / 32, Arithmetic.INT8),
    _precision("q6_k", 210 / 256, Arithmetic.INT8),
    _precision("q5_k", 176 / 256, Arithmetic.INT8),
    _precision("q4_k", 144 / 256, Arithmetic.INT8),
    _precision("q3_k", 110 / 256, Arithmetic.INT8),
    _precision("iq4_nl", 18 / 32, Arithmetic.INT8),
    _precision("iq4_xs", 136 / 256, Arithmetic.INT8),
    _precision("iq3_s", 110 / 256, Arithmetic.INT8),
    _precision("iq3_xxs", 98 / 256, Arithmetic.INT8),
    _precision("iq2_s", 82 / 256, Arithmetic.INT8),
    _precision("iq2_xs", 74 / 256, Arithmetic.INT8),
    _precision("iq2_xxs", 66 / 256, Arithmetic.INT8),
    _precision("iq1_m", 56 / 256, Arithmetic.INT8),
    _precision("iq1_s", 50 / 256, Arithmetic.INT8),
    # File types that mix block formats (`architecture/gguf.py` says which matrix gets which): here the mean bits per
    # weight of Llama-3.1-8B (llama.cpp, tools/quantize/README.md), embedding and output included.
    _precision("q2_k", 3.1593 / 8, Arithmetic.INT8),
    _precision("q3_k_s", 3.6429 / 8, Arithmetic.INT8),
    _precision("q3_k_m", 3.9960 / 8, Arithmetic.INT8),
    _precision("q3_k_l", 4.2979 / 8, Arithmetic.INT8),
    _precision("q4_k_s", 4.6672 / 8, Arithmetic.INT8),
    _precision("q4_k_m", 4.8944 / 8, Arithmetic.INT8),
    _precision("q5_k_s", 5.5704 / 8, Arithmetic.INT8),
    _precision("q5_k_m", 5.7036 / 8, Arithmetic.INT8),
    _precision("iq2_m", 2.9294 / 8, Arithmetic.INT8),
    _precision("iq3_xs", 3.4977 / 8, Arithmetic.INT8),
    _precision("iq3_m", 3.7628 / 8, Arithmetic.INT8),
    _precision("ud-q4_k_xl", 4.96 / 8, Arithmetic.INT8),
    _precision("q8_k_xl", 10.6 / 8, Arithmetic.INT8),
    _precision("mxfp4_moe", 4.63 / 8, Arithmetic.INT8),  # gpt-oss-20b: 12.1 GB, 20.9 billion weights
)

PRECISIONS: dict[str, Precision] = {precision.name: precision for precision in _ALL}

FP32 = PRECISIONS["fp32"]
BF16 = PRECISIONS["bf16"]
FP8 = PRECISIONS["fp8"]
FP8_BLOCK = PRECISIONS["fp8-block"]
MXFP4 = PRECISIONS["mxfp4"]

_DTYPES = {
    "bfloat16": BF16,
    "float16": PRECISIONS["fp16"],
    "float32": FP32,
    "float": FP32,
    "half": PRECISIONS["fp16"],
}


#: Other names in use. AWQ and GPTQ checkpoints have groups of 128 unless they say otherwise.
_ALIASES = {
    "f16": "fp16",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "fp8_e4m3": "fp8",
    "int4": "int4-g128",
    "awq": "int4-g128",
    "gptq": "int4-g128",
    **{f"{bits}bit": f"mlx-{bits}bit" for bits in (3, 4, 5, 6, 8)},  # as mlx-community's models end
    "q4_k_xl": "ud-q4_k_xl",
    "ud-q8_k_xl": "q8_k_xl",
}


def precision_named(name: str) -> Precision:
    """Also as llama.cpp spells it: `Q4_K_M`, `q4-k-m`."""
    known = name.strip().lower()
    for spelling in (known, known.replace("-", "_"), known.replace("_", "-")):
        if spelling in _ALIASES or spelling in PRECISIONS:
            return PRECISIONS[_ALIASES.get(spelling, spelling)]
    hint = nearest_names(name, PRECISIONS)
    raise ArchitectureError(f"unknown precision {name!r}{hint}; known: {', '.join(PRECISIONS)}")


def precision_of_dtype(dtype: str) -> Precision:
    """The precision of a Hugging Face `torch_dtype`."""
    try:
        return _DTYPES[dtype.removeprefix("torch.")]
    except KeyError:
        raise ArchitectureError(f"unknown torch dtype {dtype!r}; known: {', '.join(_DTYPES)}") from None
