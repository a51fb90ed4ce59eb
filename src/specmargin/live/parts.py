"""The parts of an engine that a plug-in uses, and which of them a release has: the same check in the engine, in
`live-check` and over unpacked sources.

`vllm/parts.toml` and `sglang/parts.toml` list everything that the plug-ins override, call, read or write, by the
feature that needs it. A release that lacks a part loses that feature and those that stand on it, and nothing else.
"""

from __future__ import annotations

import gc
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specmargin.errors import EngineError
from specmargin.live.engine_source import EngineSource, Found, Function, Signature, signature


class Feature(StrEnum):
    OBSERVE = "observe"  # steps and outcomes are counted
    SCHEDULE = "schedule"  # the plan's schedule is in the engine's own settings
    DEPTH = "depth"  # the plug-in chooses the depth of every step
    GATE = "gate"  # the plug-in chooses how much of each draft is verified
    CAPTURE = "capture"  # captured rounds have the drafter's confidences and routed experts
    METRICS = "metrics"  # on the engine's /metrics

    @property
    def words(self) -> str:
        return "depth control" if self is Feature.DEPTH else str(self)


_LONG = 80  # characters of a part in a message
#: What a feature cannot do without.
STANDS_ON: Mapping[Feature, Feature] = {
    Feature.SCHEDULE: Feature.OBSERVE,
    Feature.DEPTH: Feature.SCHEDULE,
    Feature.GATE: Feature.DEPTH,
    Feature.CAPTURE: Feature.OBSERVE,
    Feature.METRICS: Feature.OBSERVE,
}


#: What losing a feature means, after the part that is missing.
CONSEQUENCES: Mapping[Feature, str] = {
    Feature.OBSERVE: "the plug-in does nothing",
    Feature.SCHEDULE: "{engine} drafts as configured, and the plug-in only observes",
    Feature.DEPTH: "{engine} drafts by its own table, and the plug-in only observes",
    Feature.GATE: "drafts are verified in full",
    Feature.CAPTURE: "captured rounds have no confidences and no routed experts",
    Feature.METRICS: "the plug-in's numbers are in the log only",
}


class Use(StrEnum):
    """What the plug-in does with a part; the keys of an entry in `parts.toml`."""

    NAMES = "names"  # imports it from the module
    CALLS = "calls"  # a function or method; `name=` is a parameter that is given by its name
    OVERRIDES = "overrides"  # or wraps; `...` passes on whatever else the engine gives
    READS = "reads"  # an attribute
    WRITES = "writes"  # an attribute
    REPLACES = "replaces"  # a class method, defined in the class itself
    EXTENDS = "extends"  # a base class
    ADDS = "adds"  # attributes of its own, to the engine's objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    feature: Feature
    use: Use
    module: str
    owner: str  # a class; empty for what the module itself has
    text: str  # as in the list
    optional: bool = False  # the code does without it: a release that lacks it loses nothing

    @property
    def name(self) -> str:
        return self.text.partition("(")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        inside = self.text.partition("(")[2].removesuffix(")")
        return tuple(filter(None, (one.strip() for one in inside.split(","))))

    @property
    def title(self) -> str:
        """As messages name it."""
        match self.use:
            case Use.EXTENDS:
                return f"{self.owner} as a kind of {self.text.rpartition('.')[2]}"
            case Use.ADDS:
                return f"{self.owner} with attributes of others"
        text = self.text if len(self.text) <= _LONG else f"{self.name}(…)"
        return f"{self.owner}.{text}" if self.owner else f"{self.module}.{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    part: Part
    why: str  # "is not there"

    def __str__(self) -> str:
        return f"{self.part.title} {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsList:
    engine: str
    title: str
    package: str
    tested: tuple[str, ...]  # releases by their first numbers, such as 0.32 for every 0.32.x: a fact for messages
    parts: tuple[Part, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        """Those that the plug-in has in this engine."""
        used = {part.feature for part in self.parts}
        return tuple(feature for feature in Feature if feature in used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a release has of a list of parts. `release`: empty if its sources do not say."""

    listed: PartsList
    folder: Path
    release: str
    problems: tuple[Problem, ...]
    unneeded: tuple[Problem, ...] = ()  # of optional parts

    @property
    def is_tested(self) -> bool:
        return any(re.match(rf"{re.escape(one)}(?!\d)", self.release) for one in self.listed.tested)

    @property
    def lost(self) -> tuple[Feature, ...]:
        return tuple(feature for feature in self.listed.features if not self.has(feature))

    def has(self, feature: Feature) -> bool:
        """Whether this feature and those that it stands on have all their parts; not if the engine has no such one."""
        if feature not in self.listed.features or self.problems_of(feature):
            return False
        below = STANDS_ON.get(feature)
        return below is None or below not in self.listed.features or self.has(below)

    def problems_of(self, feature: Feature) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.part.feature is feature)

    def parts_of(self, feature: Feature) -> tuple[Part, ...]:
        return tuple(part for part in self.listed.parts if part.feature is feature)

    def why_lost(self, feature: Feature) -> str:
        """The first part that it lacks, or that the feature below lacks."""
        own = self.problems_of(feature)
        if own:
            more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
            return f"{own[0]}{more}"
        below = STANDS_ON.get(feature)
        return "" if below is None else f"it needs {below.words}: {self.why_lost(below)}"

    def consequence(self, feature: Feature) -> str:
        return CONSEQUENCES[feature].format(engine=self.listed.title)

    @property
    def losses(self) -> tuple[str, ...]:
        """For the log: each feature that lacks a part of its own, those that it takes along, the part, what follows."""
        roots = [feature for feature in self.lost if self.problems_of(feature)]
        if Feature.OBSERVE in roots:
            roots = [Feature.OBSERVE]
        return tuple(
            f"no {' and no '.join(one.words for one in self._lost_with(root))}: {self.why_lost(root)}; "
            f"{self.consequence(root)}"
            for root in roots
        )

    def _lost_with(self, root: Feature) -> list[Feature]:
        """The feature, and those above it that lack no part of their own."""
        above = [one for one in self.lost if STANDS_ON.get(one) is root and not self.problems_of(one)]
        return [root, *(further for one in above for further in self._lost_with(one))]

    @property
    def summary(self) -> str:
        """For the log: tested or not, and how many parts were found."""
        release = self.release or "an unknown release"
        return f"tested with {_listed(self.listed.tested)}; this is {release}, {self.found}"

    @property
    def found(self) -> str:
        count, missing = len(self.listed.parts), len(self.problems) + len(self.unneeded)
        if not missing:
            return f"all {count} parts found"
        unneeded = f", {len(self.unneeded)} not needed" if self.unneeded else ""
        return f"{count - missing} of {count} parts found{unneeded}"


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@cache
def parts_list(engine: str) -> PartsList:
    """`engine`: vllm or sglang."""
    file = resources.files("specmargin.live").joinpath(engine, "parts.toml")
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    parts = tuple(part for feature in Feature for entry in values.get(feature, ()) for part in _parts(feature, entry))
    head = values["engine"]
    return PartsList(
        engine=engine, title=head["title"], package=head["package"], tested=tuple(head["tested"]), parts=parts
    )


def _parts(feature: Feature, entry: Mapping[str, Any]) -> Iterator[Part]:
    """Of an entry, whose `of` names one class or several, or a module."""
    owners = [entry["of"]] if isinstance(entry["of"], str) else entry["of"]
    for of in owners:
        module, _, owner = of.partition(":")
        for use in Use:
            for text in entry.get(use, ()):
                optional = bool(entry.get("optional", False))
                yield Part(feature=feature, use=use, module=module, owner=owner, text=text, optional=optional)


# --- where an engine is ---

ENGINES = ("vllm", "sglang")


def installed_folder(engine: str) -> Path | None:
    """The package of this environment; None where there is none. It is not imported."""
    package = parts_list(engine).package
    if package in sys.modules:
        places = getattr(sys.modules[package], "__path__", [])
    else:
        spec = find_spec(package)
        places = [] if spec is None else spec.submodule_search_locations or []
    return next((Path(place) for place in places if Path(place).is_dir()), None)


def package_folder(engine: str, folder: Path) -> Path | None:
    """The package inside unpacked sources: the folder itself, or where wheels, archives and checkouts have it."""
    package = parts_list(engine).package
    places = (folder, folder / package, folder / "python" / package, folder / "src" / package)
    return next((place for place in places if place.name == package and _is_package(place)), None)


def _is_package(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("__init__.py", "version.py"))


def release_of(package: Path) -> str:
    """As its own file says, or the metadata beside it; empty if neither does."""
    for name in ("_version.py", "version.py"):
        file = package / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found = re.search(r"^__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if found:
            return found[1]
    metadata = [*sorted(package.parent.glob(f"{package.name}*.dist-info/METADATA")), package.parent / "PKG-INFO"]
    for file in metadata:
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        found = re.search(r"^Version: (\S+)", text, re.MULTILINE)
        if found:
            return found[1]
    return ""


# --- the check ---


def check_sources(engine: str, folder: Path, *, release: str | None = None) -> Report:
    """Which parts the engine in `folder` has (a package, or unpacked sources with one). `release`: instead of what the
    sources say. Raises EngineError if there is no such package."""
    package = package_folder(engine, folder.resolve())
    listed = parts_list(engine)
    if package is None:
        raise EngineError(f"{folder}: there is no Python package {listed.package!r} in this folder")
    with _no_collection():
        problems = _problems(package, listed)
    return Report(
        listed=listed,
        folder=package,
        release=release_of(package) if release is None else release,
        problems=tuple(problem for problem in problems if not problem.part.optional),
        unneeded=tuple(problem for problem in problems if problem.part.optional),
    )


def _problems(package: Path, listed: PartsList) -> tuple[Problem, ...]:
    source = EngineSource(package)
    checked = ((part, _problem(source, part)) for part in listed.parts)
    return tuple(Problem(part=part, why=why) for part, why in checked if why)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Syntax trees are many small objects: collecting garbage among those of an engine would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def check_installed(engine: str) -> Report:
    """Of this environment's package, once per process; what the plug-ins start with."""
    folder = installed_folder(engine)
    if folder is None:
        raise EngineError(f"the Python files of {parts_list(engine).title} are not in this environment")
    return _checked_once(engine, folder)


_checked_once = cache(check_sources)


def _problem(source: EngineSource, part: Part) -> str:
    """Empty: the part is there."""
    if source.module(part.module) is None:
        return f"is not there: no module {part.module}"
    if not part.owner:
        return _module_problem(source, part)
    owner = source.find(part.module, part.owner)
    if owner is None or not hasattr(owner.node, "bases"):
        return f"is not there: no class {part.owner} in {part.module}"
    return _MEMBERS[part.use](source, owner, part)


def _module_problem(source: EngineSource, part: Part) -> str:
    if part.use is Use.NAMES:
        return "" if source.has_name(part.module, part.name) else "is not there"
    found = source.find(part.module, part.name)
    if found is None:
        return "is not there"
    if not isinstance(found.node, Function):
        return "is not a function"
    return _call_problem(signature(found.node, bound=False), part)


def _function(source: EngineSource, owner: Found, part: Part) -> str:
    if part.name == "__init__":
        made = source.constructor(owner)
        return "is not there" if made is None else _call_problem(made, part)
    method = source.method(owner, part.name)
    if method is None:
        return "is not there"
    if any(getattr(one, "id", getattr(one, "attr", "")) in _PROPERTIES for one in method.decorator_list):
        return "is not a method"
    return _call_problem(signature(method, bound=True), part)


_PROPERTIES = ("property", "cached_property")


def _call_problem(has: Signature, part: Part) -> str:
    """Whether it can be called, or stood in for, as the list says."""
    passes_on = "..." in part.parameters
    given = [one for one in part.parameters if one != "..."]
    by_name = [one.removesuffix("=") for one in given if one.endswith("=")]
    by_position = [one for one in given if not one.endswith("=")]
    for place, name in enumerate(by_position):
        if place >= len(has.positional) and has.takes_more:
            break
        if place >= len(has.positional) or has.positional[place] != name:
            return f"has other parameters: {', '.join(has.names) or 'none'}"
    for name in by_name:
        if name not in has.names and not has.takes_keywords:
            return f"has no parameter {name}"
    new = sorted(has.required - {*by_position, *by_name})
    return f"needs {', '.join(new)} too" if new and not passes_on else ""


def _attribute(source: EngineSource, owner: Found, part: Part) -> str:
    return "" if source.has_attribute(owner, part.name) else "is not there"


def _written(source: EngineSource, owner: Found, part: Part) -> str:
    return _attribute(source, owner, part) or ("cannot be set" if source.is_frozen(owner) else "")


def _replaced(source: EngineSource, owner: Found, part: Part) -> str:
    own = [one for one in getattr(owner.node, "body", ()) if getattr(one, "name", "") == part.name]
    if not own or not any(getattr(one, "id", "") == "classmethod" for one in own[0].decorator_list):
        return "is not a class method of its own"
    return _function(source, owner, part)


def _extended(source: EngineSource, owner: Found, part: Part) -> str:
    module, _, name = part.text.rpartition(".")
    base = source.find(module, name)
    return "" if base in [*source.lineage(owner)] else "is not one"


def _added(source: EngineSource, owner: Found, _: Part) -> str:
    return "takes none" if source.is_closed(owner) else ""


_MEMBERS: Mapping[Use, Callable[[EngineSource, Found, Part], str]] = {
    Use.CALLS: _function,
    Use.OVERRIDES: _function,
    Use.READS: _attribute,
    Use.WRITES: _written,
    Use.REPLACES: _replaced,
    Use.EXTENDS: _extended,
    Use.ADDS: _added,
}
