"""llama.cpp: one draft length for all, and a threshold on the drafter's own confidence.

`--spec-draft-p-min` stops a draft at the first token less likely than it: a threshold for each token, not for the
run so far. A token below the hurdle cannot pay wherever it stands, so the hurdle is the value we give.
(common/arg.cpp, August 2026; `--draft-max` of earlier versions has been removed)
"""

from __future__ import annotations

from specmargin.engines.formats.base import (
    NOT_CONFIGURED,
    OVERLAP_NOTE,
    EngineConfig,
    EngineFormat,
    Request,
    fixed,
    off,
    single_depth,
)

_TYPES = {
    "mtp": "draft-mtp",
    "eagle": "draft-eagle3",
    "dflash": "draft-dflash",
    "model": "draft-simple",
    "ngram": "ngram-simple",
    "ssd": "draft-mtp",
}


def write(request: Request) -> EngineConfig:
    depth = single_depth(request.table, request.batches)
    if depth == 0:
        return EngineConfig(text="", schedule=off(request.table), notes=(NOT_CONFIGURED,))
    notes = ["llama.cpp drafts one length at every load: the best on average over the plan's batches"]
    if request.drafter_kind == "ssd":
        notes.append(OVERLAP_NOTE)
    model = f" --spec-draft-model {request.drafter_spec}" if request.drafter_spec else ""
    confidence = "" if request.drafter_kind == "ngram" else f" --spec-draft-p-min {min(request.hurdle, 0.99):.2f}"
    text = f"--spec-type {_TYPES.get(request.drafter_kind, '<type>')}{model} --spec-draft-n-max {depth}{confidence}"
    return EngineConfig(text=text, schedule=fixed(request.table, depth), notes=tuple(notes))


FORMAT = EngineFormat(name="llamacpp", title="llama.cpp", position_limit=lambda _: None, write=write)
