"""A policy for the engine that is about to swing, as a user makes one: `measure vllm`, `profile`, `plan --policy`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.live.measuring import measure_arguments, plan, specmargin

BATCHES = (1, 4, 8, 16, 32)
CONTEXT = 128


def measured_policy(reference: Path | None, scratch: Path, *, deepest: int) -> Path:
    """About five minutes, most of them steps of this engine on this machine."""
    if reference is None:
        raise SystemExit("the reference MoE is not there")
    prices, policy = scratch / "swing.json", scratch / "swing.policy.json"
    depths = range(1, deepest + 1)
    print("Measuring prices (specmargin measure vllm) …", flush=True)
    given = measure_arguments(reference, prices, batches=BATCHES, depths=depths, context=CONTEXT, max_model_len=320)
    specmargin(*given, "--repeats", "3")
    more = ("--depth", str(deepest), "--policy", str(policy))
    bank = str(reference / "bank")
    print(plan(reference, prices, scratch, *more, acceptance=bank, batches=BATCHES, context=CONTEXT), flush=True)
    return policy
