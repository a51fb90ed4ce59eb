"""From a name on the command line to a model or a device."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from specmargin.architecture.precision import Precision, precision_named
from specmargin.architecture.reader import cached_config, load_architecture, read_architecture
from specmargin.architecture.types import Architecture
from specmargin.catalog.bundled import FOLDER, read_bundled
from specmargin.catalog.heads import assistant_head
from specmargin.catalog.ids import GGUF, Variant, listed_variants, named_variant, varied
from specmargin.catalog.processors import as_device, file_processor, is_processor_file, named_processor
from specmargin.catalog.user import UserFile, missing_folders, user_file, user_files
from specmargin.errors import CatalogError, InputError, UnknownModelError, nearest_names, usable
from specmargin.files import existing
from specmargin.hardware.device import Device, device_of, load_device
from specmargin.sources import Source, assumed, published


def model_names() -> tuple[str, ...]:
    """Bundled models and the user's, by name. Of the user's, no file is read."""
    return tuple(sorted({*bundled_models(), *user_files("model")}))


@cache
def bundled_models() -> tuple[str, ...]:
    names = (entry.name for entry in (FOLDER / "models").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def named_model(name: str, *, weights: Precision | None = None) -> Architecture:
    """The user's model of this name, or the bundled one."""
    file = user_file("model", name)
    return bundled_model(name, weights=weights) if file is None else user_model(file, weights=weights)


def user_model(file: UserFile, *, weights: Precision | None = None) -> Architecture:
    entry = file.entry()
    model = read_architecture(
        entry.config, name=file.name, origin=str(file.path), weights=weights, source=published(entry.source)
    )
    source = file.sourced(model.source, overrides=file.name in bundled_models())
    return _with_drafters(model.sourced(source), entry.hub_id)


def usable_models() -> list[Architecture]:
    """All models but those of the user's whose files are broken: `specmargin models` names them."""
    return usable(model_names(), named_model)[0]


def _entry(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = read_bundled(f"models/{name}.json")
    return entry


@cache
def bundled_model(name: str, *, weights: Precision | None = None) -> Architecture:
    entry = _entry(name)
    model = read_architecture(
        entry["config"],
        name=name,
        origin=f"bundled {name}",
        weights=weights,
        source=published(entry["source"]),
    )
    return _with_drafters(model, entry["hub_id"])


def _with_drafters(model: Architecture, checkpoint: str) -> Architecture:
    """With the checkpoint of its own DSpark head, or with the MTP drafter that is published beside it."""
    if model.block_head is not None:
        return replace(model, block_head=replace(model.block_head, checkpoint=checkpoint))
    return model if model.draft_head is not None else replace(model, draft_head=assistant_head(model))


def hub_id(name: str) -> str:
    """The Hugging Face id of a model by its name, or the folder that the user's entry names."""
    file = user_file("model", name)
    return str(_entry(name)["hub_id"] if file is None else file.entry().hub_id)


@cache
def _models_by_id() -> dict[str, str]:
    return {str(_entry(name)["hub_id"]).lower(): name for name in bundled_models()}


def bundled_of_id(spec: str) -> str | None:
    """The bundled model that has this very id, without regard to case."""
    return _models_by_id().get(spec.lower())


def _user_model_by_id(spec: str) -> UserFile | None:
    """Files that are broken are left out: their ids are not known."""
    for file in user_files("model").values():
        with suppress(InputError):
            if file.entry().hub_id.lower() == spec.lower():
                return file
    return None


@cache
def _models_by_name() -> dict[str, str]:
    """Bundled models by their names, and by their hub ids without the publisher."""
    return {known.rsplit("/", 1)[-1]: name for known, name in _models_by_id().items()} | {
        name: name for name in bundled_models()
    }


def variant_model(variant: Variant, *, weights: Precision | None = None) -> Architecture:
    """The bundled architecture with the precision of a variant; `weights` overrides it."""
    if variant.weights == GGUF and weights is None:
        raise CatalogError(
            f"{variant.id!r} holds several precisions; name one, for example: {variant.model} --weights q4_k"
        )
    own = precision_named(variant.weights) if variant.weights not in (None, GGUF) else None
    model = read_architecture(
        varied(_entry(variant.model)["config"], variant),
        name=variant.model,
        origin=f"{variant.id} (bundled {variant.model})",
        weights=weights or own,
    )
    return _with_drafters(model.sourced(_understood(variant, model, given=weights is not None)), variant.id)


def _understood(variant: Variant, model: Architecture, *, given: bool) -> Source:
    """What an id was taken for. The user's own precision is no assumption; the rest of a name may still be one."""
    by_name = "from its name" if variant.is_assumed else ""
    how = "as given" if given else variant.source or by_name
    details = [
        f"{variant.id}: architecture of {variant.model}, weights {', '.join(model.weight_precisions)}",
        f" ({how})" if how else "",
        f"; context {model.max_context:,} ({variant.context})" if variant.context else "",
        f"; {variant.note}" if variant.note else "",
        f"; {_entry(variant.model)['source']}",
    ]
    is_assumed = not variant.listed or (variant.is_assumed and not given)
    return (assumed if is_assumed else published)("".join(details))


def variant_ids(name: str) -> tuple[str, ...]:
    """The listed ids that have the architecture of a bundled model."""
    return tuple(variant.id for variant in listed_variants().values() if variant.model == name)


def find_model(spec: str, *, weights: Precision | None = None) -> Architecture:
    """A name of the catalog, a path to a `config.json` or a model folder, or a Hugging Face id."""
    if spec.lower() in model_names():
        return named_model(spec.lower(), weights=weights)
    path = existing(spec)
    if path is not None or spec.endswith(".json"):
        return load_architecture(path or Path(spec), weights=weights)
    return model_by_id(spec, weights=weights)


def model_by_id(spec: str, *, weights: Precision | None = None) -> Architecture:
    """A Hugging Face id: bundled, listed, the user's, in the local hub cache, or by the rule of names. Never a path."""
    if spec.lower() in _models_by_id():
        return bundled_model(_models_by_id()[spec.lower()], weights=weights)
    if spec.lower() in listed_variants():
        return variant_model(listed_variants()[spec.lower()], weights=weights)
    file = _user_model_by_id(spec)
    if file is not None:
        return user_model(file, weights=weights)
    snapshot = cached_config(spec) if "/" in spec else None
    if snapshot is not None:
        return _with_drafters(load_architecture(snapshot, weights=weights, name=spec), spec)
    variant = named_variant(spec, _models_by_name())
    if variant is not None:
        return variant_model(variant, weights=weights)
    raise UnknownModelError(_unknown(spec))


def _unknown(spec: str) -> str:
    """One sentence: the nearest bundled model, and the command that fetches the configuration."""
    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", spec) is not None
    command = f"hf download {spec if is_id else 'ORG/NAME'} config.json"
    then = "run this again" if is_id else "give ORG/NAME"
    return (
        f"{spec!r} is neither a bundled model, a path, nor in the local hub cache; nearest bundled: "
        f"{nearest_model(spec)}; to read its own configuration: {command}, then {then} (`specmargin models` lists the "
        f"bundled ones){_unread()}"
    )


def _unread() -> str:
    return "".join(f"; {text}" for text in missing_folders())


def nearest_model(spec: str) -> str:
    """The bundled model whose name, or that of one of its variants, is most like this one."""
    variants = {name.rsplit("/", 1)[-1]: variant.model for name, variant in listed_variants().items()}
    models = variants | _models_by_name()
    name = spec.rsplit("/", 1)[-1].lower()[:100]
    return models[difflib.get_close_matches(name, models, n=1, cutoff=0.0)[0]]


def _device_tables() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = read_bundled("devices.toml")
    return tables


@cache
def _device_aliases() -> dict[str, str]:
    return {alias: name for name, table in _device_tables().items() for alias in table.get("aliases", ())}


def device_names() -> tuple[str, ...]:
    """Bundled devices, then the user's. Of these, no file is read."""
    return tuple(dict.fromkeys((*bundled_devices(), *user_files("gpu"))))


def bundled_devices() -> tuple[str, ...]:
    return tuple(_device_tables())


def named_device(name: str) -> Device:
    """The user's device of this name, or the bundled one."""
    file = user_file("gpu", name)
    return bundled_device(name) if file is None else user_device(file)


def user_device(file: UserFile) -> Device:
    device = _completed(replace(load_device(file.path), name=file.name))
    return replace(device, source=file.sourced(device.source, overrides=file.name in _device_tables()))


def usable_devices() -> list[Device]:
    """All devices but those of the user's whose files are broken: `specmargin gpus` names them."""
    return usable(device_names(), named_device)[0]


def bundled_device(name: str) -> Device:
    return device_of(name, _device_tables()[name])


def bundled_device_name(spec: str) -> str:
    """Of a bundled device, by its name, an alias or its full name."""
    name = _bundled_name(spec) or device_named(spec)
    if name is None:
        raise CatalogError(_unknown_device(spec))
    return name


def _bundled_name(spec: str) -> str | None:
    name = spec.lower().replace("_", "-")
    name = _device_aliases().get(name, name)
    return name if name in _device_tables() else None


#: Words of a GPU's full name that do not tell one model from another: vendors, brands, sockets, sizes of memory.
_COMMON = re.compile(
    r"nvidia|amd|apple|intel|geforce|radeon|instinct|tesla|tm|r|gpu|graphics|blackwell|generation|edition|ac|"
    r"sxm\d*|hbm\w*|gddr\w*|\d+g[bi]b?"
)
_GIGABYTES = re.compile(r"(\d+)g[bi]b?\b")
_LEAST_MAC_BYTES = 8e9
_SAME_MEMORY = 0.15  # 80 GB of a datasheet are 81,559 MiB to a driver


def _words(text: str) -> tuple[str, ...]:
    """Of a GPU's name: without vendors, sizes of memory and the like."""
    return tuple(part for part in re.findall(r"[a-z0-9]+", text.lower()) if not _COMMON.fullmatch(part))


@cache
def _devices_by_words() -> dict[tuple[str, ...], str]:
    texts = ((_words(text), name) for name, table in _device_tables().items() for text in _known_as(name, table))
    found: dict[tuple[str, ...], str] = {}
    for words, name in texts:
        found.setdefault(words, name)
    return found


def _known_as(name: str, table: dict[str, Any]) -> tuple[str, ...]:
    return (name, *table.get("aliases", ()), re.sub(r"\(.*\)", "", table["title"]))


def device_named(text: str) -> str | None:
    """The bundled GPU with this full name, as vendors and drivers write it: `NVIDIA H100 80GB HBM3`, `RTX 4090`."""
    name = _devices_by_words().get(_words(text))
    if name is None:
        return None
    memory = _device_tables()[name]["memory_bytes"] / 1e9
    stated = [int(size) for size in _GIGABYTES.findall(text.lower())]
    return name if all(abs(size / memory - 1.0) <= _SAME_MEMORY for size in stated) else None


def _unknown_device(spec: str) -> str:
    if "," in spec or re.match(r"[0-9]+\s*[x×]", spec):
        return f"unknown GPU {spec!r}: name one GPU here, and how many with --gpus; `plan` takes several"
    words = set(_words(spec))
    could_be = dict.fromkeys(name for known, name in _devices_by_words().items() if words and words <= set(known))
    listed = ", ".join(f"{name} ({_device_tables()[name]['memory_bytes'] / 1e9:.0f} GB)" for name in could_be)
    hint = f"; it could be {listed}" if could_be else ""
    return (
        f"unknown GPU {spec!r}{hint or nearest_names(spec, (*device_names(), *_device_aliases()))}; "
        "`specmargin gpus` lists the bundled ones; a TOML file describes any other (`specmargin gpus --template`)"
        f"{_unread()}"
    )


def find_device(spec: str) -> Device:
    """A name of the catalog or an alias, a full name such as drivers give, or the user's file."""
    file = user_file("gpu", spec) or user_file("gpu", spec.replace("_", "-"))
    if file is not None:
        return user_device(file)
    name = _bundled_name(spec)
    if name is not None:
        return bundled_device(name)
    path = existing(spec)
    if path is not None and is_processor_file(path):
        return as_device(file_processor(path))
    if spec.endswith((".toml", ".json")) or path is not None:
        return _completed(load_device(path or Path(spec)))
    name = device_named(spec)
    if name is not None:
        return bundled_device(name)
    processor = named_processor(spec)
    if processor is not None:
        return as_device(processor)
    mac = _mac_with_memory(spec)
    if mac is not None:
        return mac
    raise CatalogError(_unknown_device(spec))


def _mac_with_memory(spec: str) -> Device | None:
    """An Apple chip with a stated memory, since it is sold with several: `m4-max-64gb`, `M4 Max 64GB`."""
    name, stated = _devices_by_words().get(_words(spec)), _GIGABYTES.findall(spec.lower())
    if name is None or len(stated) != 1 or bundled_device(name).vendor != "apple":
        return None
    device, memory = bundled_device(name), float(stated[0]) * 1e9
    if not _LEAST_MAC_BYTES <= memory <= device.memory_bytes:
        most = f"{device.memory_bytes / 1e9:.0f}"
        raise CatalogError(f"{spec!r}: {device.title} has 8 to {most} GB; leave the size out for {most} GB")
    source = replace(device.source, detail=f"{device.source.detail}; {stated[0]} GB as named")
    return replace(device, name=f"{name}-{stated[0]}gb", memory_bytes=memory, source=source)


def _completed(device: Device) -> Device:
    """A file about a GPU that is bundled under the same name need not repeat generation, multiprocessors and fabric."""
    name = _bundled_name(device.name)
    if name is None or device.architecture is not None:
        return device
    known = bundled_device(name)
    return replace(
        device,
        architecture=known.architecture,
        fabric=replace(device.fabric, collectives=device.fabric.collectives or known.fabric.collectives),
        multiprocessors=device.multiprocessors or known.multiprocessors,
    )
