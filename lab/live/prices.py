"""A policy for the load swing, made as a user would: `measure vllm`, `profile`, `plan --policy`."""

from __future__ import annotations

from pathlib import Path

from lab.live.measuring import measure_arguments, plan, specmargin

BATCHES = (1, 4, 8, 16, 32)
CONTEXT = 128


def measured_policy(reference: Path, scratch: Path, *, deepest: int) -> Path:
    """Takes about five minutes, most of them to measure steps of the engine on this machine."""
    prices, policy = scratch / "swing.json", scratch / "swing.policy.json"
    depths = range(1, deepest + 1)
    print("Measuring prices (specmargin measure vllm) …", flush=True)
    arguments = measure_arguments(reference, prices, batches=BATCHES, depths=depths, context=CONTEXT, max_model_len=320)
    specmargin(*arguments, "--repeats", "3")
    options = ("--depth", str(deepest), "--policy", str(policy))
    bank = reference / "bank"
    text = plan(reference, prices, scratch, *options, bank=bank, acceptance=str(bank), batches=BATCHES, context=CONTEXT)
    print(text, flush=True)
    return policy
