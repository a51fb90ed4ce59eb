"""How engines run experts that are in main memory: on the processor, or copied to the GPU, and what overlaps.

llama.cpp (August 2026): an operation runs where its weights are, so those of `--n-cpu-moe` layers run on the processor
(ggml/src/ggml-backend.cpp:944-975, `ggml_backend_sched_backend_id_from_cur`), unless the GPU asks for it because of the
batch: from 32 positions on (GGML_OP_OFFLOAD_MIN_BATCH; ggml/src/ggml-cuda/ggml-cuda.cu:5322, a MUL_MAT_ID counts
positions) it copies the experts that the step uses, and only those (ggml-backend.cpp:1640-1712), and multiplies them.
Splits of the graph run one after another: before each the scheduler waits for the one before it
(ggml-backend.cpp:1603-1750), so GPU and processor never work at the same time within a step.

SGLang with KTransformers (kt-kernel): the processor starts on its experts, then the GPU computes those that it keeps,
then waits for the processor (sglang/srt/layers/moe/kt_ep_wrapper.py, `KTEPWrapperMethod.apply`), at every batch size.
Shared experts are computed before. Kept are the experts with the lowest numbers; KTransformers' fork keeps those that
were used most.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """What an engine does with experts in main memory."""

    by_layer: bool  # those of the first layers only, as --n-cpu-moe
    keeps_popular: bool  # some experts of each layer on the GPU, --gpu-experts
    copied_from: int | None  # positions from which used experts are copied to the GPU; None: never
    overlaps: bool  # experts on the GPU are computed while the processor computes the others


HOSTING = {
    "llamacpp": Hosting(by_layer=True, keeps_popular=False, copied_from=32, overlaps=False),
    "sglang": Hosting(by_layer=False, keeps_popular=True, copied_from=None, overlaps=True),
}


def keeps_layers(engine: str) -> bool:
    """Whether the engine can keep the experts of some layers in main memory."""
    hosting = HOSTING.get(engine)
    return hosting is not None and hosting.by_layer
