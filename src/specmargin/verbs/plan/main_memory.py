"""What `plan --explain` and the JSON say about main memory: what it holds, and what a step reads from it by depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specmargin.answers.blocks import GAP, Block, Line, Table, bold, right
from specmargin.decisions.host_reads import HostReads, host_reads
from specmargin.decisions.plan import Plan
from specmargin.decisions.scenario import Scenario

_LEAST_DEPTH = 4  # shown, however shallow the plan drafts


def main_memory_text(scenario: Scenario) -> str | None:
    """In one line; None where all experts are on GPUs."""
    offload = scenario.offload
    if offload is None:
        return None
    routed = sum(group.count for group, _ in scenario.architecture.expert_groups)
    hosted = offload.hosted_bytes(scenario.architecture) / 1e9
    layers = f"experts of {offload.layers} of {routed} MoE layers"
    kept = f", without {offload.gpu_experts} per layer that the GPU keeps" if offload.gpu_experts else ""
    chosen = " (the fewest with which the model fits)" if offload.chosen else ""
    return f"in main memory: {layers}{chosen}{kept}: {hosted:.1f} GB, on {offload.processor.title}"


def main_memory_values(plan: Plan) -> dict[str, Any] | None:
    scenario, reads = plan.scenario, _reads(plan)
    if reads is None:
        return None
    offload = scenario.offload
    by_depth = zip(reads.experts, reads.bytes, reads.seconds, reads.share, strict=True)
    return {
        "processor": (scenario.device.processor or (offload.processor if offload else None)).name,  # type: ignore[union-attr]
        "layers": None if offload is None else offload.layers,
        "n_cpu_moe": None if offload is None else offload.first_layers,
        "gpu_experts": 0 if offload is None else offload.gpu_experts,
        "weight_bytes": plan.pricer.memory.host_bytes,
        "link_bytes_per_second": None if offload is None else offload.link.bytes_per_second,
        "batch": reads.batch,
        "by_depth": [
            {"depth": depth, "experts": experts, "read_bytes": read, "seconds": seconds, "share": share}
            for depth, (experts, read, seconds, share) in enumerate(
                (float(e), float(b), float(s), float(p)) for e, b, s, p in by_depth
            )
        ],
    }


def main_memory_blocks(plan: Plan) -> Iterator[Block]:
    reads, text = _reads(plan), main_memory_text(plan.scenario)
    if reads is None:
        return
    yield bold(f"experts in main memory, read per step at batch {reads.batch}")
    yield Table(
        columns=right("depth", "distinct experts", "GB read", "ms", "of the step"),
        rows=[
            [f"{depth}", f"{experts:.1f}", f"{read / 1e9:.2f}", f"{seconds * 1e3:.1f}", f"{share:.0%}"]
            for depth, (experts, read, seconds, share) in enumerate(
                zip(reads.experts, reads.bytes, reads.seconds, reads.share, strict=True)
            )
        ],
    )
    if text is not None:
        yield Line(text)
    yield GAP


def _reads(plan: Plan) -> HostReads | None:
    return host_reads(plan.pricer, plan.rows[0].batch, max(plan.held_depth, _LEAST_DEPTH))
