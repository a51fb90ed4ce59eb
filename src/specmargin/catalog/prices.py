"""From `--prices` to a price model: the datasheet, the bundled laws, the measured tables, or measured steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.catalog.bundled import FOLDER, read_bundled
from specmargin.catalog.llamacpp import llamacpp_prices
from specmargin.catalog.lookup import bundled_device
from specmargin.catalog.machines import find_links
from specmargin.catalog.module_bounds import module_bounds
from specmargin.errors import CatalogError, nearest_names
from specmargin.files import read_json, split_detail
from specmargin.hardware.device import Device
from specmargin.modes import RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.model import Refinement, SiliconPrices
from specmargin.prices.kernels.scaled import by_distance, nearest_device, scaled_book
from specmargin.prices.kernels.shelf import LawShelf
from specmargin.prices.kernels.weight_only import marlin_formats, weight_only_book, weight_only_formats
from specmargin.prices.llamacpp.backends import backend_named
from specmargin.prices.measured import SCHEMA as MEASURED_SCHEMA
from specmargin.prices.measured import MeasuredPrices
from specmargin.prices.mlx import MlxPrices
from specmargin.prices.model import PriceModel
from specmargin.prices.processor import ProcessorPrices
from specmargin.prices.rdna import RdnaPrices, has_hybrid_kernels
from specmargin.prices.roofline import Roofline
from specmargin.prices.verify_attention import EngineAttention, has_other_kernels

if TYPE_CHECKING:
    from specmargin.prices.measured_schema import PriceFile

KINDS = ("datasheet", "scaled", "laws", "tables")
SCHEMA = "specmargin.laws/1"
_LAWS = "laws.json"
_VERIFIED = "verified.json"
PROMPT_LAWS = "prompt_laws.json"  # of attention modules that read prompts; in the form of the others
_AMD_LAWS = "amd_laws.json"
_AITER = {"gfx950": "mi355x", "gfx942": "mi300x"}  # the GPU of each generation whose kernels AITER's tables time
_AITER_SPREADS = {"gemm": 0.2, "experts": 0.2}  # sorting and quantization around them, and engines without AITER
_ENDING = ".prices.json"
_WRITERS = "`specmargin measure gpu`, `measure vllm` and `measure llamacpp` write such files"
_KINDS = {str: "text", dict: "an object", list: "a list"}


def law_book(device: Device) -> LawBook | None:
    return _law_book(device.name)


@cache
def _law_book(gpu: str) -> LawBook | None:
    values = read_bundled(_LAWS)
    book = LawBook.from_json(gpu, {**values, "laws": [*values["laws"], *read_bundled(PROMPT_LAWS)["laws"]]})
    entries = (entry for entry in read_bundled(_VERIFIED)["verified"] if entry["gpu"] == gpu)
    verified = frozenset((entry["engine"], entry["dtype"]) for entry in entries)
    return replace(book, verified=verified) if book.laws else None


@cache
def measured_devices() -> tuple[Device, ...]:
    """Devices with bundled laws."""
    return tuple(bundled_device(name) for name in dict.fromkeys(entry["gpu"] for entry in read_bundled(_LAWS)["laws"]))


def scaled_prices(device: Device, engine: str, *, without: Collection[str] = ()) -> PriceModel | None:
    """Laws of the nearest measured devices (none of `without`), scaled to this one; None where none is near."""
    if nearest_device(device, [other for other in measured_devices() if other.name not in without]) is None:
        return None
    own, *others = (*_amd_books(device), *_scaled_books(device, without))
    fallback = Roofline(device=device, form=RooflineForm.PER_COMPONENT)
    return SiliconPrices(
        name="scaled",
        engine=engine,
        book=_shelf(device, own, others),
        fallback=fallback,
        fallback_spreads=_datasheet_spreads(),
    )


def _scaled_books(device: Device, without: Collection[str] = ()) -> list[LawBook]:
    """Of every other measured device, nearest first."""
    others = by_distance(device, [other for other in measured_devices() if other.name not in without])
    spreads = _scaled_spreads()
    books = ((other, law_book(other)) for other in others)
    return [scaled_book(book, other, device, spreads) for other, book in books if book is not None]


def _amd_books(device: Device) -> list[LawBook]:
    """AITER's laws for AMD Instinct: of the GPU itself if it has them, then of the other one, scaled."""
    if device.architecture not in _AITER:
        return []
    measured = [bundled_device(name) for name in dict.fromkeys(_AITER.values())]
    own = [_amd_book(other) for other in measured if other.name == device.name]
    others = by_distance(device, measured)
    return own + [scaled_book(_amd_book(other), other, device, _AITER_SPREADS) for other in others]


def _amd_book(device: Device) -> LawBook:
    """vLLM runs these kernels with VLLM_ROCM_USE_AITER=1, and others without."""
    return replace(LawBook.from_json(device.name, read_bundled(_AMD_LAWS)), spreads=_AITER_SPREADS)


def _shelf(device: Device, own: LawBook, others: Sequence[LawBook]) -> LawShelf:
    return LawShelf(
        own=own,
        others=tuple(others),
        weight_only=weight_only_book(device),
        weight_only_formats=weight_only_formats(device),
        marlin_formats=marlin_formats(device),
        links=find_links(device),
    )


def _datasheet_spreads() -> dict[str, float]:
    spreads: dict[str, float] = read_bundled("scaled_errors.json")["datasheet"]
    return spreads


@cache
def _scaled_spreads() -> dict[str, float]:
    """80% range by family of laws that were scaled to a GPU whose own were left out (lab/validation/scaled.py)."""
    families: dict[str, dict[str, float]] = read_bundled("scaled_errors.json")["families"]
    return {name: entry["spread"] for name, entry in families.items()}


def find_prices(
    spec: str | None,
    device: Device,
    engine: str,
    form: RooflineForm,
    *,
    release: tuple[int, ...] | None = None,
    build: str = "",
    backend: str | None = None,
) -> PriceModel:
    """None: the best prices for this device. Only a roofline has a form; measured prices are always by component.

    `release`: of the engine, by which it chooses attention kernels; None: the newest. `build`: somebody's own of it.
    `backend`: of llama.cpp; None: the default of the device.
    """
    if device.processor is not None and spec is None and form is RooflineForm.PER_COMPONENT:
        return ProcessorPrices(processor=device.processor)
    if engine == "llamacpp" and spec is None and form is RooflineForm.PER_COMPONENT:
        return llamacpp_prices(device, backend_named(backend, device))
    prices = _find_kernels(spec, device, engine, form)
    if form is not RooflineForm.PER_COMPONENT or isinstance(prices, MeasuredPrices):
        return prices
    if spec != "datasheet" and has_other_kernels(engine, device):
        prices = EngineAttention(inner=prices, device=device, engine=engine, release=release, build=build)
    if engine == "mlx" and spec is None:
        return MlxPrices(inner=prices, device=device)
    if engine == "vllm" and has_hybrid_kernels(device):
        return RdnaPrices(inner=prices, device=device)
    return prices


def _find_kernels(spec: str | None, device: Device, engine: str, form: RooflineForm) -> PriceModel:
    datasheet = Roofline(device=device, form=form)
    if spec == "datasheet" or (spec is None and form is not RooflineForm.PER_COMPONENT):
        return datasheet
    if form is not RooflineForm.PER_COMPONENT:
        raise CatalogError(f"--form {form} needs --prices datasheet")
    if spec is not None and spec not in KINDS:
        return _measured(spec) or _from_file(Path(spec), device, engine, datasheet)
    if spec is None and engine == "mlx":
        return datasheet
    book = None if spec == "scaled" else law_book(device)
    if book is None:
        return _unmeasured(spec, device, engine, datasheet)
    if spec == "tables" or (spec is None and store.available()):
        name, refinement = "tables", _refinement(device)
    else:
        name, refinement = "laws", None
    return SiliconPrices(
        name=name,
        engine=engine,
        book=_shelf(device, book, _scaled_books(device)),
        fallback=datasheet,
        refinement=refinement,
        bounds=module_bounds(device.name),
        fallback_spreads=_datasheet_spreads(),
    )


def _unmeasured(spec: str | None, device: Device, engine: str, datasheet: Roofline) -> PriceModel:
    """For a device without laws. Laws are of vLLM, SGLang and TensorRT-LLM: others have other kernels and formats."""
    scaled = None if spec is None and engine == "mlx" else scaled_prices(device, engine)
    if scaled is not None and spec in (None, "scaled"):
        return scaled
    if spec is None:
        return datasheet
    if spec == "scaled":
        raise CatalogError(f"no measured GPU is near {device.name}; use --prices datasheet")
    raise CatalogError(f"there are no measured {spec} for {device.name}; use --prices scaled or datasheet")


def measured_names() -> list[str]:
    """Bundled price files of whole steps, as `specmargin measure` writes them."""
    return sorted(f.name.removesuffix(_ENDING) for f in (FOLDER / "measurements").iterdir() if f.name.endswith(_ENDING))


def _measured(spec: str) -> PriceModel | None:
    """A bundled name or a file of measured steps, `:MODE` for another CUDA graph mode; None where it is neither."""
    price_file = measured_file(spec)
    if price_file is None:
        return None
    from specmargin.prices.measured_schema import measured_prices  # noqa: PLC0415 (pydantic only where a file is read)

    name, mode = split_detail(spec)
    return measured_prices(price_file, Path(name).name, mode)


def measured_file(spec: str) -> PriceFile | None:
    """The price file of a bundled name or a path; None where it is neither."""
    name, _ = split_detail(spec)
    bundled = Path(str(FOLDER / "measurements" / f"{name}{_ENDING}"))
    path = bundled if name in measured_names() else Path(name)
    if not _is_measured(path):
        return None
    from specmargin.prices.measured_schema import read_price_file  # noqa: PLC0415

    return read_price_file(path)


def _is_measured(path: Path) -> bool:
    """Whether the schema near the top of the file says so."""
    try:
        with path.open(encoding="utf-8") as file:
            return MEASURED_SCHEMA in file.read(200)
    except (OSError, ValueError):
        return False


def _from_file(path: Path, device: Device, engine: str, datasheet: Roofline) -> PriceModel:
    """The user's laws; what they lack comes from the bundled ones, then from the datasheet."""
    if path.suffix != ".json" and not path.exists():
        names = (*KINDS, *measured_names())
        hint = nearest_names(str(path), names)
        raise CatalogError(
            f"unknown prices {str(path)!r}{hint}; known: {', '.join(names)}, or a FILE.json of laws or steps"
        )
    book = _read_laws(path, device)
    bundled = law_book(device)
    if not book.laws:
        raise CatalogError(f"{path}: 'laws' has none for {device.name}; give the --gpu they were measured on")
    shelf = LawShelf(own=book, others=() if bundled is None else (bundled,))
    return SiliconPrices(name="laws", engine=engine, book=shelf, fallback=datasheet)


def _read_laws(path: Path, device: Device) -> LawBook:
    values = read_json(path, CatalogError)
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise CatalogError(f"{path}: 'schema' must be {SCHEMA!r} or {MEASURED_SCHEMA!r}; {_WRITERS}")
    for name, kind in (("source", str), ("kernels", dict), ("laws", list)):
        if not isinstance(values.get(name), kind):
            raise CatalogError(f"{path}: {name!r} must be {_KINDS[kind]}; {_WRITERS}")
    if not all(isinstance(law, dict) for law in values["laws"]):
        raise CatalogError(f"{path}: every entry of 'laws' must be an object; {_WRITERS}")
    try:
        return LawBook.from_json(device.name, values)
    except KeyError as error:
        raise CatalogError(f"{path}: a law lacks the field {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise CatalogError(f"{path}: a law is not understood ({error})") from None


_REFINEMENTS: dict[str, tuple[Device, Refinement]] = {}  # what was read from the tables is kept


def _refinement(device: Device) -> Refinement:
    store.data_folder()  # raises, with what to install, where the tables are missing
    from specmargin.prices.kernels.tables import TableRefinement  # noqa: PLC0415 (Polars is an extra)

    kept = _REFINEMENTS.get(device.name)
    if kept is None or kept[0] != device:
        kept = device, TableRefinement(system=store.SYSTEMS[device.name], device=device)
        _REFINEMENTS[device.name] = kept
    return kept[1]
