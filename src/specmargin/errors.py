"""Every exception that Specmargin raises on purpose.

SpecmarginError
└── InputError                 the caller can fix it; the command line exits with 2
    ├── ArchitectureError      a model description that is incomplete or contradicts itself
    │   └── UnknownFamilyError     a model family that is not supported
    ├── CatalogError           a name that is not bundled (carries the nearest names)
    │   └── UnknownModelError      a model that is neither bundled nor in the local hub cache
    ├── HardwareError          a device description that cannot be used
    ├── ParallelismError       a layout that does not divide, or does not fit in memory
    ├── OffloadError           experts in main memory that it cannot hold, or that an engine cannot keep there
    ├── TableError             a measured kernel table that cannot be used
    ├── RoutingError           a routing capture or profile that cannot be used
    ├── AcceptanceError        an acceptance that is not a probability or a curve
    ├── ScenarioError          a batch, depth, context or rate out of range
    ├── ScheduleError          a schedule that the engine cannot express
    ├── EngineError            settings or a policy that a live engine cannot take
    └── MissingExtraError      an optional dependency that is not installed (names the extra)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")
Item = TypeVar("Item")


class SpecmarginError(Exception):
    """Base of all exceptions raised on purpose."""


class InputError(SpecmarginError):
    """The caller gave something that cannot be used; the message says what and how to fix it."""


class ArchitectureError(InputError):
    """A model description is missing something or contradicts itself."""


class UnknownFamilyError(ArchitectureError):
    """A model family that is not supported; it is refused, never approximated."""


class CatalogError(InputError):
    """A name that is not in the catalog."""


class UnknownModelError(CatalogError):
    """A model that is neither bundled nor in the local hub cache."""


class HardwareError(InputError):
    """A device or fabric description that cannot be used."""


class ParallelismError(InputError):
    """A layout over GPUs that does not divide or does not fit."""


class OffloadError(InputError):
    """Experts in main memory that it cannot hold, or that an engine cannot keep there."""


class TableError(InputError):
    pass


class RoutingError(InputError):
    pass


class AcceptanceError(InputError):
    """An acceptance that is not a probability, a curve, a length or a known profile."""


class ScenarioError(InputError):
    """A batch, depth, context or request rate that is out of range."""


class ScheduleError(InputError):
    """A schedule that cannot be written in an engine's own format."""


class EngineError(InputError):
    """Settings or a policy that a live engine cannot take, or an engine that is not supported."""


class MissingExtraError(InputError):
    """An optional dependency is not installed; the message names the extra."""


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> str:
    """A phrase such as ``; nearest: h100-sxm, h100-pcie`` for an error message, or nothing."""
    matches = difflib.get_close_matches(name.lower(), list(names), n=count, cutoff=0.4)
    return f"; nearest: {', '.join(matches)}" if matches else ""


def matching(
    what: str, search: str, names: Sequence[str], ids: Callable[[str], Sequence[str]] = lambda _: ()
) -> list[str]:
    """The names that contain the text, or whose `ids` do; an error where there are none."""
    found = [name for name in names if any(search.lower() in known.lower() for known in (name, *ids(name)))]
    if not found:
        verb = f"specmargin {what.lower()}s"
        raise CatalogError(f"no bundled {what} has {search!r} in its name{nearest_names(search, names)}; see `{verb}`")
    return found


def usable(items: Iterable[Item], find: Callable[[Item], Found]) -> tuple[list[Found], list[str]]:
    """What is found for these items, and a sentence for each that is broken."""
    found, faults = [], []
    for item in items:
        try:
            found.append(find(item))
        except InputError as error:
            faults.append(str(error))
    return found, faults


#: What installs a package that the base install lacks. Ray and PyTorch are in no extra: they are gigabytes.
_INSTALLED_BY = {
    **dict.fromkeys(("numba", "polars"), "'specmargin[fast]'"),
    **dict.fromkeys(("altair", "fastapi", "starlette", "uvicorn", "vl_convert"), "'specmargin[page]'"),
    "aiconfigurator_core": "'specmargin[tables]'",
    "scipy": "'specmargin[live]'",
    **dict.fromkeys(("torch", "triton"), "torch triton"),
    "ray": "ray",
}


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around imports of optional dependencies: the error names the extra to install. Every verb runs in one."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _INSTALLED_BY:
            raise
        raise MissingExtraError(f"{package} is not installed; run: pip install {_INSTALLED_BY[package]}") from None
