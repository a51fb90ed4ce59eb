"""What a drafter is, in words: the model's own head, a published one by name, or one that you need."""

from __future__ import annotations

from specmargin.architecture.types import Architecture
from specmargin.catalog.drafters import DraftChoice, default_kind, find_drafter
from specmargin.errors import usable
from specmargin.modes import DRAFTERS

_HEADS = {"mtp": "an MTP head", "eagle": "an EAGLE-3 head", "dflash": "a DFlash head", "dspark": "a DSpark head"}
_OWN = {"mtp": "the model's MTP head", "dspark": "the model's DSpark head"}
_OTHERS = {"ngram": "n-gram lookup", "free": "drafts without cost (an assumption)"}


def drafter_title(choice: DraftChoice, target: Architecture) -> str:
    drafter = choice.drafter
    if drafter.hit_rate is not None:  # its kind is that of the drafter within
        return f"{_head_title(choice, target)}, overlapped with verification"
    if choice.kind == "model":
        return f"{choice.model} as draft model"
    return _OTHERS.get(choice.kind) or _head_title(choice, target)


def _head_title(choice: DraftChoice, target: Architecture) -> str:
    own = {"mtp": target.draft_head, "dspark": target.block_head}.get(choice.kind)
    if choice.model:
        return f"{choice.model} ({_HEADS.get(choice.kind, choice.kind).split(' ', 1)[1]})"
    if own is not None:
        return _OWN[choice.kind]
    return f"{_HEADS.get(choice.kind, choice.kind)} (you need one)"


def drafter_titles(target: Architecture, chosen: DraftChoice) -> dict[str, str]:
    """Of every kind that this model can have, of the chosen drafter, and under "" of the default."""
    kinds = [kind.name for kind in DRAFTERS.values() if not kind.needs_detail]
    choices, _ = usable(kinds, lambda kind: (kind, find_drafter(kind, target)))
    titles = {kind: drafter_title(choice, target) for kind, choice in choices}
    default = drafter_title(find_drafter(default_kind(target), target), target)
    return titles | {chosen.drafter.name: drafter_title(chosen, target), "": default}
