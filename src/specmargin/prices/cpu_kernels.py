"""How fast llama.cpp's CPU kernels multiply: products of a weight and an activation per core and cycle.

Three kinds of kernels (ggml/src/ggml-cpu, August 2026):
- a dot product of one row and one position (`vec_dot`; repacked weights: `gemv`), which reads no weight twice from main
  memory. All of a routed expert's work is done so, per pair of position and expert (ggml-cpu.c:1463, repack.cpp:4386),
  and all of q5_k, q6_k, q3_k and mxfp4 without repacking;
- tiles of four positions of repacked weights (`gemm`; repack.cpp:4240: positions beyond a multiple of four are dot
  products): q4_0, q4_k, mxfp4 and iq4_nl with AVX2, q2_k with AVX-512; only in a model that is not beside a GPU, whose
  host buffer comes first (llama-model.cpp:939-972, llama-model-loader.cpp:1177 and 1212);
- llamafile's tiles from two positions on: q8_0, fp16, bf16, fp32 (llamafile/sgemm.cpp; ggml-cpu.c:1320).

Rates: instructions of the AVX2 kernels counted in arch/x86/quants.c, for 256 products 84 (q4_k), 116 (q5_k), 100
(q6_k), 136 (q4_0, mxfp4), and four cycles per block of 32 where an addition waits for the one before (q8_0). At the
3.44 instructions per cycle of a Ryzen 7600X, whose Q6_K prompts show 8.8 products per cycle (40.0 tok/s of Llama-2-7B
on 6 cores: llama.cpp pull request 19706), q5_k gives 7.6; its prompts show 8.0 (36.3 tok/s, pull request 19707).
Intel's cores have three vector ports where AMD's have four pipes. Tiles: q4_k 17 with AVX2 and 24 with AVX-512 (66.8
and 84.0 tok/s of Q4_K_M, in which a sixth is q6_k: pull request 12829), q8_0 13.9 and 10.1 (141 tok/s of Llama-3.1-8B
on a Ryzen 7950X, 162 on a 5975WX: ik_llama.cpp pull request 54). Arm: 9 without tiles, between a Neoverse N2 (131 tok/s
of Llama-3-8B Q4_K_M on 64 cores: pull request 13886) and an M4 Max (60.6 on 8: pull request 16739), with 1.6 times as
many.
"""

from __future__ import annotations

import numpy as np

from specmargin.architecture.types import Attention, GroupedAttention, LatentAttention, Matrix
from specmargin.hardware.processor import Instructions, Processor
from specmargin.step import FloatArray

_INSTRUCTIONS_PER_CYCLE = 3.44  # on four vector pipes
_CHUNK = 256.0
#: AVX2 instructions for 256 products, by how a format's name begins.
_COUNTED = {"q4_k": 84.0, "q5_k": 116.0, "q6_k": 100.0, "q4_0": 136.0, "mxfp4": 136.0, "q2_k": 90.0, "q3_k": 150.0}
_COUNTED |= {"q8_0": 110.0, "fp16": 96.0, "bf16": 160.0, "fp32": 64.0}
_OTHERS = 116.0
_FLOATS = ("fp16", "fp32")  # whose dot products use vectors of 512 bits where there are some (simd-mappings.h)
_PIPES = {
    Instructions.AVX2: 4.0,
    Instructions.AVX_VNNI: 3.0,
    Instructions.AVX512: 3.0,
    Instructions.AVX512_VNNI: 4.0,
    Instructions.AMX: 3.0,
    Instructions.NEON_DOTPROD: 4.0,
    Instructions.I8MM: 4.0,
}
_WIDE = (Instructions.AVX512, Instructions.AVX512_VNNI, Instructions.AMX)
_ARM = (Instructions.NEON_DOTPROD, Instructions.I8MM)
_ARM_DOT, _ARM_TILE = 9.0, 14.5
_REPACKED = ("q4_0", "q4_k", "mxfp4")
_REPACKED_TILE = {True: 24.0, False: 17.0}  # by whether vectors are 512 bits wide
_LLAMAFILE = ("q8_0", "fp16", "bf16", "fp32")
_LLAMAFILE_TILE = {True: 13.9, False: 10.1}  # by whether there are VNNI instructions
_VNNI = (Instructions.AVX512_VNNI, Instructions.AVX_VNNI, Instructions.AMX)
_ROW_CYCLES = (
    25.0  # of a dot product beside its blocks: the call, and a sum over the accumulator (six instructions in turn)
)
_PAIR_CYCLES = 80.0  # of a query, a head and a cached token: two such calls and an exponential
_TILE = 4.0  # positions


def dot_rate(precision: str, processor: Processor) -> float:
    """Products per core and cycle of one row and one position."""
    if processor.instructions in _ARM:
        return _ARM_DOT
    counted = next((count for start, count in _COUNTED.items() if precision.startswith(start)), _OTHERS)
    if processor.instructions in _WIDE and precision.startswith(_FLOATS):
        counted /= 2.0
    return _CHUNK / counted * _INSTRUCTIONS_PER_CYCLE * _pipes(processor)


def _pipes(processor: Processor) -> float:
    """Vector pipes, as a share of the four of a Ryzen, on which rates were measured."""
    return _PIPES[processor.instructions] / 4.0


def dot_cycles(matrix: Matrix, processor: Processor) -> float:
    """Cycles of one core for the products of a matrix and one position, row by row."""
    products = matrix.flops_per_position() / 2.0
    rows = products / matrix.inputs
    return products / dot_rate(matrix.precision.name, processor) + rows * _ROW_CYCLES


def attention_cycles(attention: Attention, flops: FloatArray, processor: Processor) -> FloatArray:
    """Cycles of one core: products with the cache in fp16, and what each query, head and cached token costs beside."""
    products = np.asarray(flops / 2.0 / dot_rate("fp16", processor))
    match attention:
        case GroupedAttention():
            per_pair = attention.key_dim + attention.value_dim
        case LatentAttention():
            per_pair = 2 * attention.latent_dim + attention.rope_dim
        case _:
            return products
    return np.asarray(products + flops / 2.0 / per_pair * _PAIR_CYCLES)


def matrix_cycles(matrix: Matrix, positions: FloatArray, processor: Processor, *, repacks: bool = True) -> FloatArray:
    """Cycles of one core for the product of a matrix and so many positions."""
    name = matrix.precision.name
    products = matrix.flops_per_position() / 2.0
    tiled, tile = _tiled(name, positions, processor, repacks=repacks)
    return np.asarray(products * tiled / tile + (positions - tiled) * dot_cycles(matrix, processor))


def _tiled(name: str, positions: FloatArray, processor: Processor, *, repacks: bool) -> tuple[FloatArray, float]:
    """Positions that are multiplied in tiles, and the rate of these."""
    wide, arm = processor.instructions in _WIDE, processor.instructions in _ARM
    slowest = dot_rate(name, processor)
    if repacks and name.startswith(_REPACKED):
        rate = _ARM_TILE if arm else _REPACKED_TILE[wide]
        return np.floor(positions / _TILE) * _TILE, max(rate, slowest)
    if name.startswith(_LLAMAFILE):
        rate = _ARM_TILE if arm else _LLAMAFILE_TILE[processor.instructions in _VNNI] * _pipes(processor)
        return np.where(positions >= 2.0, positions, 0.0), max(rate, slowest)
    return np.zeros_like(positions), slowest
