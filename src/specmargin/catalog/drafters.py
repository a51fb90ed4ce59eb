"""From a drafter's name on the command line to its cost and its acceptance."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specmargin.acceptance.early_stop import EarlyStop, assumed_stop, stop_of_rounds
from specmargin.acceptance.survival import Survival, parse_acceptance
from specmargin.architecture.precision import Precision
from specmargin.architecture.types import Architecture, DraftHead
from specmargin.catalog.bundled import bundled_text, read_bundled
from specmargin.catalog.heads import dflash_head, dspark_head, eagle_head, shaped_head, stored
from specmargin.catalog.lookup import find_model, hub_id, model_names
from specmargin.catalog.tokenizers import draft_models
from specmargin.catalog.user import UserFile, user_file, user_files
from specmargin.errors import ArchitectureError, CatalogError, ScenarioError, nearest_names, usable
from specmargin.files import split_detail
from specmargin.modes import DRAFTERS
from specmargin.prices.drafters import FREE, NGRAM, Drafter
from specmargin.sources import Source, SourceKind, assumed, published

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.acceptance.schema import AcceptanceFile

_SSD_HIT_RATE = 0.8
_ALL = "all"  # the category of all rounds
# Profiles written by `specmargin profile acceptance`, with the target and the drafter that were captured.
_PROFILES = {"reference-moe": ("reference-moe", "model:reference-draft")}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftChoice:
    """A drafter, its kind (which decides the default acceptance and the engine's method name), and its own model.

    For overlapped drafting the kind is that of the inner drafter.
    """

    kind: str
    model: str  # a hub id or path; "" where there is none
    drafter: Drafter
    survival: Survival | None = None  # its own, where an entry of the user's catalog states it


def find_drafter(
    spec: str,
    target: Architecture,
    *,
    weights: Precision | None = None,
    vocabulary: int | None = None,
    default: Precision | None = None,
) -> DraftChoice:
    """The drafter of `KIND` or `KIND:DETAIL`, or the user's of this name; `modes.DRAFTERS` lists the kinds.

    `weights`: what its linear layers are stored in; `default`: where nothing is said, if it has any. `vocabulary`:
    tokens that a reduced LM head scores.
    """
    choice = _named_drafter(spec, target)
    runs = choice.drafter.runs
    weights = default if weights is None and runs is not None else weights
    if weights is None and vocabulary is None:
        return choice
    if runs is None:
        option = "--draft-weights" if weights is not None else "--draft-vocabulary"
        raise ScenarioError(f"{option}: --drafter {choice.kind} has no weights; leave it out")
    if weights is not None and isinstance(runs, Architecture):
        runs = find_model(choice.model, weights=weights)
    changed = stored(runs, weights=weights, vocabulary=vocabulary)
    return replace(choice, drafter=replace(choice.drafter, runs=changed))


def _named_drafter(spec: str, target: Architecture) -> DraftChoice:
    kind, _, detail = spec.partition(":")
    kind = {"eagle3": "eagle"}.get(kind.lower(), kind.lower())
    if kind not in DRAFTERS:
        file = user_file("drafter", spec)
        if file is not None:
            return user_drafter(file, target)
        names = drafter_names()
        raise CatalogError(f"unknown drafter {spec!r}{nearest_names(kind, names)}; known: {', '.join(names)}, all")
    if detail and not DRAFTERS[kind].detail:
        raise CatalogError(f"--drafter {kind} takes nothing after the colon, got {detail!r}")
    match kind:
        case "mtp":
            if target.draft_head is None:
                raise CatalogError(f"{target.name} has no MTP head; use --drafter {_instead(target)}")
            return _head_choice(kind, "", target.draft_head)
        case "eagle":
            return _head_choice(kind, detail, eagle_head(detail, target))
        case "dflash":
            return _head_choice(kind, detail, dflash_head(detail, target))
        case "dspark":
            return _head_choice(kind, detail, dspark_head(detail, target))
        case "ssd":
            return _overlapped(detail, target)
        case "model":
            return _draft_model(detail)
        case "ngram" | "free":
            return DraftChoice(kind=kind, model="", drafter=NGRAM if kind == "ngram" else FREE)
        case _:
            raise CatalogError(f"--drafter {kind} has no price: catalog/drafters.py does not build it")


def drafter_names() -> tuple[str, ...]:
    """The kinds, then the user's drafters by name, of which no file is read."""
    return tuple(dict.fromkeys((*DRAFTERS, *user_files("drafter"))))


def user_drafter(file: UserFile, target: Architecture) -> DraftChoice:
    entry = file.entry()
    if file.name in DRAFTERS:
        raise CatalogError(f"{file.path}: {file.name!r} is a kind of drafter; give the file another name")
    if entry.target.lower() not in (target.name.lower(), target.name.rsplit("/", 1)[-1].lower()):
        raise CatalogError(
            f"--drafter {file.name} is a head of {entry.target}, not of {target.name}; correct 'target' in {file.path} "
            "if it is"
        )
    stated = (assumed if entry.derived else published)(entry.source)
    source = file.sourced(stated, overrides=False)
    try:
        head = shaped_head(entry.drafter, entry.shape, source, target)
    except ArchitectureError as error:
        raise CatalogError(f"{file.path}: {error}") from None
    drafter = Drafter(name=file.name, runs=head, source=source)
    return DraftChoice(kind=entry.drafter, model=entry.checkpoint, drafter=drafter, survival=_own_survival(file, entry))


def _own_survival(file: UserFile, entry: Any) -> Survival | None:
    if entry.survival is None:
        return None
    curve = np.asarray(entry.survival, dtype=np.float64)
    curve.flags.writeable = False
    source = file.sourced(published(entry.survival_source), overrides=False)
    return Survival(by_depth=curve, source=source, shift_range=traffic_shifts())


def _user_drafters(target: Architecture) -> list[str]:
    """The user's heads of this model; files that are broken are left out, and named by `models --check`."""
    files = user_files("drafter").values()
    choices, _ = usable(files, lambda file: user_drafter(file, target))
    return [choice.drafter.name for choice in choices]


def _instead(target: Architecture) -> str:
    return "dspark" if target.block_head is not None else "eagle, dflash, model:NAME or ngram"


def _head_choice(kind: str, model: str, head: DraftHead) -> DraftChoice:
    drafter = Drafter(name=kind, runs=head, source=head.source)
    return DraftChoice(kind=kind, model=model or head.checkpoint, drafter=drafter)


def default_kind(target: Architecture) -> str:
    """What drafts where nothing is said: a head in the checkpoint, or an EAGLE head."""
    if target.draft_head is not None:
        return "mtp"
    return "dspark" if target.block_head is not None else "eagle"


def available_kinds(target: Architecture) -> list[str]:
    """The kinds that are ranked, without `mtp` for a model that has no MTP head."""
    kinds = [kind.name for kind in DRAFTERS.values() if kind.ranked]
    return [kind for kind in kinds if kind != "mtp" or target.draft_head is not None]


def available_drafters(
    target: Architecture,
    *,
    weights: Precision | None = None,
    vocabulary: int | None = None,
    default: Precision | None = None,
) -> list[DraftChoice]:
    """What `--drafter all` ranks: the kinds that this model can have, and small bundled models of its tokenizer."""
    specs = [*available_kinds(target), *_user_drafters(target), *(f"model:{name}" for name in draft_models(target))]
    return [
        choice
        if choice.drafter.runs is None
        else find_drafter(spec, target, weights=weights, vocabulary=vocabulary, default=default)
        for spec, choice in ((spec, _named_drafter(spec, target)) for spec in specs)
    ]


def _draft_model(spec: str) -> DraftChoice:
    if not spec:
        raise CatalogError("--drafter model needs a model: model:NAME or model:PATH")
    served_as = hub_id(spec.lower()) if spec.lower() in model_names() else spec
    model = find_model(spec)
    drafter = Drafter(name=f"model:{spec}", runs=model, source=model.source)
    return DraftChoice(kind="model", model=served_as, drafter=drafter)


def _overlapped(detail: str, target: Architecture) -> DraftChoice:
    inner_spec, _, rate = detail.partition("@")
    inner = _named_drafter(inner_spec or default_kind(target), target)
    if inner.drafter.runs is None or inner.drafter.hit_rate is not None:
        raise CatalogError(f"--drafter ssd overlaps a head or a model, not {inner_spec!r}")
    try:
        hit_rate = float(rate) if rate else _SSD_HIT_RATE
    except ValueError:
        raise ScenarioError(f"--drafter ssd: the hit rate {rate!r} is not a number") from None
    origin = "given by the user" if rate else "default; no published rate for this workload"
    drafter = Drafter(
        name="ssd",
        runs=inner.drafter.runs,
        hit_rate=hit_rate,
        source=assumed(f"drafting overlapped with verification, {hit_rate:.0%} of outcomes predicted ({origin})"),
    )
    return DraftChoice(kind=inner.kind, model=inner.model, drafter=drafter)


def _acceptance_tables() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = read_bundled("acceptance.toml")
    return tables


def acceptance_names() -> tuple[str, ...]:
    return tuple(name for name, table in _acceptance_tables().items() if "survival" in table)


def bundled_acceptance(name: str) -> Survival:
    table = _acceptance_tables()[name]
    curve = np.asarray(table["survival"], dtype=np.float64)
    curve.flags.writeable = False
    return Survival(by_depth=curve, source=Source(kind=SourceKind(table["kind"]), detail=table["source"]))


def _path_and_category(text: str | None) -> tuple[Path, str] | None:
    """A bank or profile at PATH[:CATEGORY]; None where there is no such file or folder."""
    name, category = split_detail(text or "")
    return (Path(name), category) if os.path.lexists(name) else None


def _survival_from_path(text: str | None) -> Survival | None:
    """The survival of a bank or profile at PATH[:CATEGORY]; None where there is no such file or folder."""
    found = _path_and_category(text)
    if found is None:
        return None
    path, category = found
    if path.suffix == ".json":
        from specmargin.acceptance.schema import read_acceptance  # noqa: PLC0415 (pydantic only where a file is read)

        return read_acceptance(path).survival(category or _ALL)
    from specmargin.acceptance.estimate import survival_estimate  # noqa: PLC0415

    rounds = _rounds(path, category)
    estimate = survival_estimate(rounds)
    suffix = f", {category}" if category else ""
    first = f"the first token {estimate.survival[0]:.3f} ± {estimate.standard_error[0]:.3f}"
    return estimate.curve(f"{estimate.rounds:,} rounds of {rounds.source}{suffix} ({first})")


def _rounds(path: Path, category: str) -> Rounds:
    from specmargin.acceptance.bank import read_bank  # noqa: PLC0415

    rounds = read_bank([path])
    if category and category not in rounds.categories:
        hint, names = nearest_names(category, rounds.categories), ", ".join(rounds.categories)
        raise CatalogError(f"{path}: has no category {category!r}{hint}; it has: {names}")
    return rounds.of_category(category) if category else rounds


def find_early_stop(p_min: float, acceptance: str | None, survival: Survival) -> EarlyStop:
    """Drafts that stop at a confidence of `p_min`: by the confidences of a bank if the acceptance is one."""
    found = _path_and_category(acceptance)
    if found is None or found[0].suffix == ".json":
        return assumed_stop(survival, p_min)
    return stop_of_rounds(_rounds(*found), p_min)


@cache
def acceptance_profile(name: str) -> AcceptanceFile:
    """A bundled profile."""
    from specmargin.acceptance.schema import parse_acceptance_file  # noqa: PLC0415 (pydantic only where a file is read)

    return parse_acceptance_file(bundled_text(f"acceptance/{name}.acceptance.json"), f"bundled acceptance {name}")


def _survival_from_profile(text: str | None, choice: DraftChoice, target: Architecture) -> Survival | None:
    """The survival of a bundled profile: NAME[:CATEGORY], or by default the one of this target and drafter."""
    pair = (target.name, choice.drafter.name)
    own = next((name for name, captured in _PROFILES.items() if captured == pair), None)
    name, _, category = (text if text is not None else own or "").partition(":")
    if name.lower() not in _PROFILES:
        return None
    curve = acceptance_profile(name.lower()).survival(category or _ALL)
    if name.lower() != own:
        return replace(curve, source=assumed(f"as measured elsewhere ({curve.source.detail})"))
    return curve


def traffic_shifts() -> tuple[float, float]:
    """How far the acceptance of one drafter differs between texts: the 80% range, per token."""
    low, high = _acceptance_tables()["traffic"]["shifts"]
    return low, high


def find_acceptance(text: str | None, choice: DraftChoice, target: Architecture) -> Survival:
    """What the user gave, or else the curve of the drafter or its kind, an assumption for other models."""
    if text is None and choice.survival is not None:
        return choice.survival
    survival = _survival_from_path(text) or _survival_from_profile(text, choice, target)
    if survival is not None:
        return survival
    if text is not None and text.lower() not in _acceptance_tables():
        return parse_acceptance(text)
    name = choice.kind if text is None else text.lower()
    if name not in _acceptance_tables():
        raise CatalogError(f"no default acceptance of --drafter {name} is bundled; give --acceptance")
    curve = bundled_acceptance(name)
    table, traffic = _acceptance_tables()[name], traffic_shifts()
    if curve.source.kind is SourceKind.PUBLISHED and table.get("model") == target.name:
        return replace(curve, shift_range=traffic)
    mean = float(curve.by_depth[2] ** (1 / 3))  # per token, at depth 3
    low, high = table["published_range"]
    curve = replace(curve, shift_range=(min(low - mean, traffic[0]), max(high - mean, traffic[1])))
    if curve.source.kind is SourceKind.PUBLISHED:
        return replace(curve, source=assumed(f"as measured elsewhere ({curve.source.detail}); give --acceptance"))
    return curve
