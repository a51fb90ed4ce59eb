"""The dtype that live tests and benchmarks ask of vLLM's CPU build: one that this kind of CPU can run."""

from __future__ import annotations

import pytest
from lab.live.cpu import cpu_dtype, dtype_of

# The features that Linux lists on an AWS Graviton2 and on a Graviton3.
NEOVERSE_N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
NEOVERSE_V1 = f"{NEOVERSE_N1} sha3 asimdfhm dit uscat ilrcpc flagm jscvt fcma sha512 sve svei8mm svebf16 i8mm bf16"


def cpuinfo(*cores: str) -> str:
    return "\n".join(f"processor\t: {i}\nFeatures\t: {features}\n" for i, features in enumerate(cores))


@pytest.mark.parametrize(
    ("system", "machine", "text", "wanted"),
    [
        ("Linux", "aarch64", cpuinfo(NEOVERSE_V1, NEOVERSE_V1), "bfloat16"),
        ("Linux", "aarch64", cpuinfo(NEOVERSE_N1, NEOVERSE_N1), "float32"),
        ("Linux", "aarch64", cpuinfo(NEOVERSE_V1, NEOVERSE_N1), "float32"),
        ("Linux", "aarch64", cpuinfo(f"{NEOVERSE_N1} svebf16"), "float32"),  # a name that only contains it
        ("Linux", "aarch64", "", "float32"),
        ("Linux", "x86_64", "flags\t\t: sse2 avx2 avx512f", "bfloat16"),  # converted in vLLM's own kernels
        ("Linux", "riscv64", "isa\t: rv64imafdcv", "float32"),
        ("Darwin", "arm64", "", "float32"),
    ],
)
def test_bfloat16_only_where_the_cpu_runs_it(system: str, machine: str, text: str, wanted: str) -> None:
    assert dtype_of(system, machine, text) == wanted


def test_this_machine_has_one() -> None:
    assert cpu_dtype() in ("bfloat16", "float32")
