"""`measure vllm` and `plan` on the reference MoE and one core, for the live tests and the load swing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.live.cpu import cpu_dtype

# One thread: on a busy machine, several would wait for each other.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",  # where the package does not say it
}
DEVICE = """
[one-core]
title = "one CPU core"
memory_bytes = 4e9
bandwidth_bytes_per_second = 2e10
operations_per_second = { bf16 = 1e11 }
link_bytes_per_second = 1e9
link_latency_seconds = 1e-6
network_bytes_per_second = 1e9
gpus_per_node = 1
source = "placeholder: not used by measured prices"
"""


def specmargin(*arguments: str) -> str:
    command = [sys.executable, "-m", "specmargin.cli.main", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT})
    if process.returncode != 0:
        raise RuntimeError(f"specmargin {' '.join(arguments[:2])}: {process.stderr}")
    return process.stdout


def comma_separated(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def measure_arguments(
    reference: Path, output: Path, *, batches: Sequence[int], depths: Sequence[int], context: int, max_model_len: int
) -> list[str]:
    """Greedy eager steps of the reference and its drafter, in a dtype that this CPU runs."""
    drafter = {"method": "draft_model", "model": str(reference / "draft")}
    flags = {"dtype": cpu_dtype(), "max_model_len": max_model_len, "enforce_eager": True}
    return [
        *("measure", "vllm", str(reference / "target"), "-o", str(output), "--drafter", json.dumps(drafter)),
        *(part for name, value in flags.items() for part in ("--set", f"{name}={value}")),
        *("--batches", comma_separated(batches), "--depths", comma_separated(depths), "--contexts", str(context)),
        *("--prompts", str(reference / "prompts.json"), "--temperature", "0", "--minutes", "8"),
    ]


def plan(
    reference: Path,
    prices: Path,
    scratch: Path,
    *options: str,
    bank: Path,
    acceptance: str,
    batches: Sequence[int],
    context: int,
) -> str:
    """Output of `specmargin plan` with these prices and the routing of this bank."""
    device, routing = scratch / "core.toml", scratch / "reference.routing.json"
    device.write_text(DEVICE)
    target = str(reference / "target")
    specmargin("profile", "routing", str(bank), "--model", target, "-o", str(routing))
    return specmargin(
        *("plan", target, "--gpu", str(device), "--prices", str(prices), "--drafter", f"model:{reference / 'draft'}"),
        *("--acceptance", acceptance, "--routing", str(routing), "--batch", comma_separated(batches)),
        *("--context", str(context), *options),
    )
