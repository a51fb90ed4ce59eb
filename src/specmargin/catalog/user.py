"""The user's own entries: folders that are read beside the bundled catalog, one TOML or JSON file per entry.

    ~/.config/specmargin/models/my-moe.json       the model `my-moe`
    ~/.config/specmargin/gpus/my-gpu.toml         the GPU `my-gpu`

Folders are listed when a name is looked up, and a file is read when its entry is used: a broken one concerns nothing
else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmargin.errors import CatalogError
from specmargin.files import read_json, read_toml
from specmargin.sources import Source

if TYPE_CHECKING:
    from specmargin.schema import StrictModel

#: Kinds of entries, and the folder of each. `catalog/entry_schema.py` has their fields.
FOLDERS = {
    "model": "models",
    "gpu": "gpus",
    "drafter": "drafters",
    "engine-time": "engine-times",
    "fabric": "fabrics",
    "host": "hosts",
    "processor": "processors",
}
VARIABLE = "SPECMARGIN_CATALOG"
_ENDINGS = (".json", ".toml")
_REMEMBERED = 1024  # files


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """A file of the user's: the entry `name` of a kind."""

    kind: str
    name: str
    path: Path

    def values(self) -> dict[str, Any]:
        """Its content as it was written."""
        return read_values(self.path)

    def entry(self) -> Any:
        """Its content, validated; it is read again only after a change."""
        return _validated(self.kind, self.path, self.path.stat().st_mtime_ns if self.path.exists() else 0)

    def sourced(self, source: Source, *, overrides: bool) -> Source:
        """The source that the entry states, with the file that states it."""
        return replace(source, file=self.shown, overrides=overrides)

    @property
    def shown(self) -> str:
        """Its path, with `~` for the home folder."""
        home = Path(_expanded("~"))
        return f"~/{self.path.relative_to(home).as_posix()}" if self.path.is_relative_to(home) else str(self.path)


def named_folders() -> tuple[Path, ...]:
    """Those of SPECMARGIN_CATALOG, whether they exist or not."""
    parts = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(Path(_expanded(part)) for part in parts if part.strip())


def catalog_folders() -> tuple[Path, ...]:
    """Those of SPECMARGIN_CATALOG in their order, then the one of the user's configuration. The first entry counts."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return (*named_folders(), Path(_expanded(configuration)) / "specmargin")


def missing_folders() -> list[str]:
    """One sentence per path of SPECMARGIN_CATALOG that is not a folder."""
    missing = (path for path in named_folders() if not path.is_dir())
    return [f"{VARIABLE}: {path} is not a folder; correct or unset it" for path in missing]


def user_files(kind: str) -> dict[str, UserFile]:
    """The user's entries of this kind by name, unread."""
    found: dict[str, UserFile] = {}
    for folder in catalog_folders():
        for path in _entries(folder / FOLDERS[kind]):
            name = path.stem.lower()
            found.setdefault(name, UserFile(kind=kind, name=name, path=path))
    return found


def user_file(kind: str, name: str) -> UserFile | None:
    return user_files(kind).get(name.lower())


def _entries(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:  # there is none, or it may not be read
        return
    yield from (path for path in paths if path.suffix in _ENDINGS and not path.name.startswith("."))


def read_values(path: Path) -> dict[str, Any]:
    values = read_json(path, CatalogError) if path.suffix == ".json" else read_toml(path, CatalogError)
    if not isinstance(values, dict):
        raise CatalogError(f"{path}: an entry is a table of names and values, not a {type(values).__name__}")
    return values


def read_entry(kind: str, path: Path) -> Any:
    """The validated content of a file; the error names the file, the field and what shows the right form."""
    return checked_entry(kind, read_values(path), str(path))


@lru_cache(maxsize=_REMEMBERED)
def _validated(kind: str, path: Path, _modified: int) -> Any:
    return read_entry(kind, path)


def checked_entry(kind: str, values: dict[str, Any], origin: str) -> StrictModel:
    from specmargin.catalog.entry_schema import SCHEMAS  # noqa: PLC0415 (pydantic only where a file is read)
    from specmargin.schema import first_complaint  # noqa: PLC0415

    schema = SCHEMAS[kind]
    try:
        return schema.model_validate(values)
    except ValueError as error:
        complaint = first_complaint(error, known=schema.model_fields)
        raise CatalogError(f"{origin}: {complaint} (`specmargin models --template {kind}` shows a {kind})") from None


def _expanded(path: str) -> str:
    """Without a home folder (some containers), `~` stays: `Path.expanduser` would raise."""
    return os.path.expanduser(path)  # noqa: PTH111
