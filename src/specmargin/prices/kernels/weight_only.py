"""Dense matrices with 4-bit weights and 16-bit products, as vLLM and SGLang multiply them on NVIDIA GPUs: Marlin.

No table has them: the A100's int4 rows are TensorRT-LLM's own kernel. What Marlin reaches of the bandwidth and of the
matrix rate is that of its expert kernel, which has the same inner loop (csrc/moe/marlin_moe_wna16/marlin_template.h in
vLLM 0.32), in the widest rows of the public tables (7168 × 2048, one rank, 64 and 16,384 positions): A100 0.88 and
0.43, L40S 0.86 and 0.54, RTX PRO 6000 0.95 and 0.60, B200 0.50 and 0.12. It
multiplies with mma.sync, which is not the fast path of Hopper and of datacentre Blackwell. A published bench on an A100
(vLLM pull request 2497) rises at 32 and doubles at 64 positions as this rate says: 140, 180 and 290 µs for 16, 32, 64.
On Hopper the dense kernel itself was measured (H200, vLLM 0.32, four matrices, 1 to 512 positions:
lab/data/measurements/vllm-0.32-h200-kernels.json): 10.9 µs, 0.73 and 0.37, median error 4.5%.

GeForce cards accumulate in fp32 at half of the rate, so the conversion of weights hides more of itself: 1.5 times the
share, as on Turing, where Marlin reaches the rate of cuBLAS (vLLM pull request 29901). The launch is from there: 5.7 µs
for a matrix of 0.5 MB. GB10's share of its bandwidth is that of matrix-vector kernels (mlxcel pull request 684).

vLLM chooses Marlin from compute capability 7.5 on for GPTQ, AWQ and compressed-tensors weights, and on Hopper Machete
before it (kernels/linear/__init__.py:523), which was not measured and is priced as Marlin. Positions are padded to
tiles of 8, 16, 32, 48 and 64 (csrc/quantization/marlin/marlin.cu:309-320).

Other GPUs (AMD, Intel) have weight-only kernels of their own. vLLM's for RDNA reached 76% of the bandwidth of a gfx1151
before it was tuned (ROCm/vllm pull request 1076), which stands for all.
"""

from __future__ import annotations

from specmargin.architecture.precision import Arithmetic
from specmargin.hardware.device import Device
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.law import Evidence, Law
from specmargin.prices.kernels.scaled import clock_hertz
from specmargin.sources import SourceKind

#: Shares of the bandwidth and of the bf16 matrix rate, by generation; Rubin (sm_107) runs code of the sm_100 family.
_SHARES = {
    "sm_75": (0.86, 0.54), "sm_80": (0.88, 0.43), "sm_86": (0.86, 0.54), "sm_89": (0.86, 0.54), "sm_90": (0.73, 0.37),
    "sm_100": (0.50, 0.12), "sm_103": (0.50, 0.12), "sm_107": (0.50, 0.12), "sm_120": (0.95, 0.60),
    "sm_121": (0.76, 0.60),
}  # fmt: skip
OTHER_READING = 0.76
_OTHER_SHARES = (OTHER_READING, 0.25)
_HALF_RATE = 4.0  # int8 over bf16: a GPU that accumulates in fp32 at half of its rate
_HALF_RATE_GAIN = 1.5
_LAUNCH_CYCLES = 4.4e-6 * 1.6e9
_HOPPER = "sm_90"
_HOPPER_LAUNCH_SECONDS = 10.9e-6
_ENGINES = ("vllm", "sglang")
_SPREAD = 0.15  # shares of one generation differ: its expert kernel reaches 0.88 on an H100, 0.71 on an H200
_OTHER_SPREAD = 0.3
_FORMATS = ("int4-g32", "int4-g64", "int4-g128", "nvfp4-w4a16")
_FP4_FORMATS = ("nvfp4", "mxfp4")


def weight_only_formats(device: Device) -> frozenset[str]:
    """Precisions whose dense matrices are converted to 16 bits inside the kernel; fp4 without fp4 arithmetic."""
    return frozenset(_FORMATS if Arithmetic.FP4 in device.operations_per_second else (*_FORMATS, *_FP4_FORMATS))


def marlin_formats(device: Device) -> frozenset[str]:
    """Precisions of experts that vLLM multiplies with Marlin here.

    Its Triton kernels for mxfp4 need compute capability 9.0 (experts/gpt_oss_triton_kernels_moe.py:53 in vLLM 0.32) and
    come after Marlin on 12.x (oracle/mxfp4.py:411); datacentre Blackwell has kernels of its own for both.
    """
    own = device.architecture in ("sm_90", "sm_100", "sm_103", "sm_107")
    return frozenset() if own or (device.architecture or "") not in _SHARES else frozenset((*_FORMATS, "mxfp4"))


def weight_only_book(device: Device) -> LawBook:
    is_marlin, is_measured = (device.architecture or "") in _SHARES, device.architecture == _HOPPER
    reading, multiplying = _SHARES[device.architecture or ""] if is_marlin else _OTHER_SHARES
    bf16 = device.rate(Arithmetic.BF16)
    half_rate = device.operations_per_second.get(Arithmetic.INT8, 0.0) >= _HALF_RATE * bf16
    law = Law(
        fixed_seconds=_HOPPER_LAUNCH_SECONDS if is_measured else _LAUNCH_CYCLES / clock_hertz(device),
        bytes_per_second=reading * device.bandwidth_bytes_per_second,
        operations_per_second=multiplying * bf16 * (_HALF_RATE_GAIN if half_rate else 1.0),
        evidence=Evidence(version="weight-only", rows=0, shapes=0, median_error=0.0, p90_error=0.0),
    )
    shares = f"{reading:.0%} of the bandwidth and {multiplying:.0%} of the matrix rate"
    origin = "measured, H200, vLLM 0.32" if is_measured else "its expert kernel in aiconfigurator-core 0.12.0"
    marlin = f"Marlin at {shares}, as on this generation ({origin})"
    return LawBook(
        gpu=device.name,
        release=marlin if is_marlin else f"weight-only kernels at {shares}, as vLLM's for RDNA on a gfx1151",
        laws={(engine, "gemm", "int4_wo", ""): law for engine in _ENGINES},
        curves={},
        kind=SourceKind.PUBLISHED if is_marlin else SourceKind.ASSUMED,
        spreads={"gemm": _SPREAD if is_marlin else _OTHER_SPREAD},
    )
