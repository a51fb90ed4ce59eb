"""Seconds of vLLM's matrix and expert kernels by positions and precision: sections of `verify_kernels.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

from lab.gpu.kernel_timing import DEVICE, L2_BYTES, Row, Work, row

# --- four-bit weights ---

POSITIONS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 33, 48, 64, 65, 96, 128, 192, 256, 512)


def int4() -> Iterator[Row]:
    for outputs, inputs in ((17408, 5120), (5120, 17408), (34816, 5120), (7168, 5120)):
        for positions in POSITIONS:
            keys = {"positions": positions, "outputs": outputs, "inputs": inputs}
            yield row(
                partial(_marlin, positions, outputs, inputs),
                kernel="Marlin int4 g128",
                **keys,
            )
            yield row(
                partial(_product, positions, outputs, inputs),
                kernel="bf16",
                **keys,
            )


def _product(m: int, n: int, k: int) -> Work:
    sets = max(1, min(4, int(-(-L2_BYTES // (2 * n * k)))))
    weights = torch.randn(sets, n, k, device=DEVICE, dtype=torch.bfloat16)
    left = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    return lambda turn: torch.nn.functional.linear(left, weights[turn % sets])


def _marlin(m: int, n: int, k: int) -> Work:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new
    from vllm.scalar_type import scalar_types

    sets = max(1, min(4, int(-(-L2_BYTES // (n * k / 2)))))
    weights = torch.randint(-(2**31), 2**31 - 1, (sets, k // 16, n * 2), device=DEVICE, dtype=torch.int32)
    scales = torch.rand(k // 128, n, device=DEVICE, dtype=torch.bfloat16)
    left = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    space = marlin_make_workspace_new(torch.device(DEVICE, 0))
    return lambda turn: ops.marlin_gemm(
        left,
        None,
        weights[turn % sets],
        None,
        scales,
        None,
        None,
        None,
        space,
        scalar_types.uint4b8,
        m,
        n,
        k,
        use_fp32_reduce=True,
    )


# --- routed experts: Qwen3-30B-A3B's, uniform routing ---

EXPERTS, TOP, HIDDEN, WIDTH = 128, 8, 2048, 768


def experts() -> Iterator[Row]:
    kinds: dict[str, Callable[[int], Work]] = {
        "bf16, Triton": _plain_experts,
        "fp8 per tensor, dynamic, Triton": partial(_fp8_experts, block=False),
        "fp8 blocks, Triton": partial(_fp8_experts, block=True),
        "int4 g128, Marlin": partial(_marlin_experts, kind="int4"),
        "mxfp4, Marlin": partial(_marlin_experts, kind="mxfp4"),
        "nvfp4, Marlin": partial(_marlin_experts, kind="nvfp4"),
    }
    for kind, make in kinds.items():
        for positions in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            _, ids = _routes(positions)
            distinct = statistics.fmean(len(torch.unique(one)) for one in ids)
            yield row(partial(make, positions), kernel=kind, positions=positions, distinct=distinct)


def _routes(positions: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator(device=DEVICE).manual_seed(positions)
    scores = [torch.rand(positions, EXPERTS, device=DEVICE, generator=generator) for _ in range(4)]
    ids = [score.topk(TOP, dim=1).indices.to(torch.int32) for score in scores]
    weights = [torch.full((positions, TOP), 1.0 / TOP, device=DEVICE, dtype=torch.float32) for _ in range(4)]
    return weights, ids


def _plain_experts(positions: int) -> Work:
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    weights, ids = _routes(positions)
    return lambda turn: fused_experts(hidden, up, down, weights[turn % 4], ids[turn % 4])


def _fp8_experts(positions: int, *, block: bool) -> Work:
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, device=DEVICE).to(torch.float8_e4m3fn)
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, device=DEVICE).to(torch.float8_e4m3fn)
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    sizes = [(EXPERTS,), (EXPERTS,)]
    if block:
        sizes = [(EXPERTS, 2 * WIDTH // 128, HIDDEN // 128), (EXPERTS, HIDDEN // 128, WIDTH // 128)]  # type: ignore[list-item]
    first, second = (torch.ones(size, device=DEVICE, dtype=torch.float32) for size in sizes)
    config = fp8_w8a8_moe_quant_config(w1_scale=first, w2_scale=second, block_shape=[128, 128] if block else None)
    weights, ids = _routes(positions)
    return lambda turn: fused_experts(hidden, up, down, weights[turn % 4], ids[turn % 4], quant_config=config)


def _marlin_experts(positions: int, kind: str) -> Work:
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    group = {"int4": 128, "mxfp4": 32, "nvfp4": 16}[kind]
    dtype = {"int4": torch.bfloat16, "mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}[kind]
    quantized = scalar_types.uint4b8 if kind == "int4" else scalar_types.float4_e2m1f
    low, high = -(2**31), 2**31 - 1
    up = torch.randint(low, high, (EXPERTS, HIDDEN // 16, 4 * WIDTH), device=DEVICE, dtype=torch.int32)
    down = torch.randint(low, high, (EXPERTS, WIDTH // 16, 2 * HIDDEN), device=DEVICE, dtype=torch.int32)
    first = torch.ones(EXPERTS, HIDDEN // group, 2 * WIDTH, device=DEVICE, dtype=torch.bfloat16).to(dtype)
    second = torch.ones(EXPERTS, WIDTH // group, HIDDEN, device=DEVICE, dtype=torch.bfloat16).to(dtype)
    whole = torch.ones(EXPERTS, device=DEVICE, dtype=torch.bfloat16) if kind == "nvfp4" else None
    hidden = torch.randn(positions, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    weights, ids = _routes(positions)
    return lambda turn: fused_marlin_moe(
        hidden,
        up,
        down,
        None,
        None,
        first,
        second,
        weights[turn % 4],
        ids[turn % 4],
        quant_type_id=quantized.id,
        global_num_experts=EXPERTS,
        global_scale1=whole,
        global_scale2=whole,
    )
