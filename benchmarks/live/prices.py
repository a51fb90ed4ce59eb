"""A policy for the engine that is about to swing, as a user makes one: `measure vllm`, `profile`, `plan --policy`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BATCHES = (1, 4, 8, 16, 32)
CONTEXT = 128
DEVICE = """
[this-core]
title = "one CPU core"
memory_bytes = 4e9
bandwidth_bytes_per_second = 2e10
operations_per_second = { bf16 = 1e11 }
link_bytes_per_second = 1e9
link_latency_seconds = 1e-6
network_bytes_per_second = 1e9
gpus_per_node = 1
source = "a guess: measured prices do not use it"
"""


def measured_policy(reference: Path | None, scratch: Path, *, deepest: int, environment: Mapping[str, str]) -> Path:
    """About five minutes, most of them steps of this engine on this machine."""
    if reference is None:
        raise SystemExit("the reference MoE is not there")
    target, draft, bank = (str(reference / name) for name in ("target", "draft", "bank"))
    prices, routing, device, policy = (
        scratch / name for name in ("swing.json", "swing.routing.json", "core.toml", "swing.policy.json")
    )
    device.write_text(DEVICE)
    batches = ",".join(map(str, BATCHES))
    depths = ",".join(map(str, range(1, deepest + 1)))
    flags = ("--set", "dtype=bfloat16", "--set", "max_model_len=320", "--set", "enforce_eager=true")
    drafter = json.dumps({"method": "draft_model", "model": draft})
    print("Measuring prices (specmargin measure vllm) …", flush=True)
    _specmargin(
        environment,
        *("measure", "vllm", target, "-o", str(prices), *flags, "--drafter", drafter),
        *("--batches", batches, "--depths", depths, "--contexts", str(CONTEXT)),
        *("--prompts", str(reference / "prompts.json"), "--temperature", "0", "--minutes", "8", "--repeats", "3"),
    )
    _specmargin(environment, "profile", "routing", bank, "--model", target, "-o", str(routing))
    print(
        _specmargin(
            environment,
            *("plan", target, "--gpu", str(device), "--prices", str(prices), "--drafter", f"model:{draft}"),
            *("--acceptance", bank, "--routing", str(routing), "--batch", batches),
            *("--context", str(CONTEXT), "--depth", str(deepest), "--policy", str(policy)),
        ),
        flush=True,
    )
    return policy


def _specmargin(environment: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "specmargin.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        raise SystemExit(f"specmargin {' '.join(arguments[:2])}: {done.stderr}")
    return done.stdout
