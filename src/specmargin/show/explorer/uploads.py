"""Uploaded files: limited in size, read as data only, and stored under generated names in a temporary folder."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specmargin.architecture.reader import load_architecture
from specmargin.errors import InputError, SpecmarginError, needs_extra

Kind = Literal["config", "acceptance", "speculator", "routing"]
LIMITS: dict[Kind, int] = {
    "config": 2 << 20,
    "acceptance": 64 << 20,
    "speculator": 64 << 20,
    "routing": 64 << 20,
}  # bytes
MAX_UPLOADS = 32
MOST_ROUNDS = 2_000_000
_PLAIN = re.compile(r"[^A-Za-z0-9._+-]+")


class TooLargeError(InputError):
    """An upload beyond the limit of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    id: str
    kind: Kind
    name: str  # display name
    path: Path  # where it is stored
    summary: str
    categories: tuple[str, ...] = ()


class Uploads:
    """Keyed by content: the same file has the same id, so that a link works again after a new upload."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="specmargin-"))
        self._uploads: OrderedDict[str, Upload] = OrderedDict()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def find(self, key: str, kind: Kind) -> Upload:
        upload = self._uploads.get(key)
        if upload is None:
            raise InputError(f"the {kind} file of this link is not on the server (id {key}): drop it on the page again")
        if upload.kind != kind:
            raise InputError(f"{upload.name} is a file of kind {upload.kind}, not {kind}")
        self._uploads.move_to_end(key)
        return upload

    async def receive(self, kind: Kind, name: str, chunks: AsyncIterator[bytes], beside: str | None = None) -> Upload:
        """Enforce the size limit while receiving, and store only files that can be read."""
        body = bytearray()
        async for chunk in chunks:
            body += chunk
            if len(body) > LIMITS[kind]:
                raise TooLargeError(f"{shown(name)}: a {kind} file may have at most {LIMITS[kind] >> 20} MB")
        return self.add(kind, name, bytes(body), beside)

    def add(self, kind: Kind, name: str, body: bytes, beside: str | None = None) -> Upload:
        """`beside`: the id of an acceptance.parquet, for the speculator.parquet that belongs to it."""
        bank = self._bank(beside) if kind == "speculator" else None
        belongs_to = kind if bank is None else bank.id
        key = hashlib.sha256(belongs_to.encode() + body).hexdigest()[:16]
        folder = self._folder / key
        new = not folder.exists()
        folder.mkdir(exist_ok=True)
        try:
            held: Kind = "acceptance" if bank else kind
            path = _joined_bank(folder / "bank", bank.path, body) if bank else _written(kind, folder, name, body)
            summary, categories = _READERS[held](path)
        except SpecmarginError as error:
            message = _without_path(str(error), folder, name)
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise InputError(message) from None
        upload = Upload(
            id=key,
            kind=held,
            name="bank" if bank else shown(name),
            path=path.parent if kind == "config" else path,
            summary=summary,
            categories=tuple(categories),
        )
        self._store(upload)
        return upload

    def _bank(self, beside: str | None) -> Upload:
        if beside is None:
            raise InputError("speculator.parquet belongs to an acceptance.parquet: drop both together")
        return self.find(beside, "acceptance")

    def _store(self, upload: Upload) -> None:
        self._uploads[upload.id] = upload
        self._uploads.move_to_end(upload.id)
        while len(self._uploads) > MAX_UPLOADS:
            old, _ = self._uploads.popitem(last=False)
            shutil.rmtree(self._folder / old, ignore_errors=True)


def shown(name: str) -> str:
    """A name that is safe to display and to use as a folder name."""
    plain = _PLAIN.sub("-", name.replace("\\", "/").rsplit("/", 1)[-1]).strip("-.")[:60]
    return plain or "file"


def _written(kind: Kind, folder: Path, name: str, body: bytes) -> Path:
    ending = Path(shown(name)).suffix.lower()
    if kind == "acceptance":
        path = folder / "bank" / ("acceptance.parquet" if ending == ".parquet" else f"bank{ending}")
        if ending not in (".parquet", ".csv", ".jsonl", ".json"):
            raise InputError(f"{shown(name)}: a bank must be .parquet, .csv or .jsonl, its profile .json")
    elif kind == "config":
        stem = shown(name).removesuffix(".json").removesuffix(".config") or "model"
        path = folder / ("dropped-model" if stem == "config" else stem) / "config.json"
    else:
        path = folder / "dropped" / "profile.routing.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    return path


def _joined_bank(folder: Path, accepted: Path, confidences: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copyfile(accepted, folder / "acceptance.parquet")
    (folder / "speculator.parquet").write_bytes(confidences)
    return folder / "acceptance.parquet"


def _without_path(message: str, folder: Path, name: str) -> str:
    """Replace server paths, which must not be disclosed, by the name of the upload."""
    for part in sorted((str(p) for p in folder.rglob("*")), key=len, reverse=True):
        message = message.replace(part, shown(name))
    return message.replace(str(folder), shown(name))


# --- readers: a summary of what the file holds, and its categories ---


def _config(path: Path) -> tuple[str, Iterable[str]]:
    architecture = load_architecture(path)
    pool = (
        f", {architecture.pools[0].experts_per_token} of {architecture.pools[0].experts} experts per token"
        if architecture.is_moe
        else ", dense"
    )
    return f"{architecture.name}: {architecture.parameters / 1e9:,.1f} B parameters{pool}", ()


def _acceptance(path: Path) -> tuple[str, Iterable[str]]:
    if path.suffix == ".json":
        from specmargin.acceptance.schema import read_acceptance  # noqa: PLC0415 (pydantic only where a file is read)

        profile = read_acceptance(path)
        return f"acceptance profile {shown(profile.name)}, {len(profile.categories)} categories", profile.categories
    with needs_extra("profile"):
        from specmargin.acceptance.bank import read_bank  # noqa: PLC0415

    _check_rows(path)
    rounds = read_bank([path])
    confidences = "with confidences" if rounds.has_confidence else "without confidences"
    return f"{rounds.count:,} rounds, {len(rounds.categories)} categories, {confidences}", rounds.categories


def _check_rows(path: Path) -> None:
    """Limit the rows: a small Parquet file may decompress to a large table."""
    if path.suffix != ".parquet":
        return
    import polars as pl  # noqa: PLC0415 (an extra)

    try:
        rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except Exception as error:  # Polars raises many kinds for a file that is cut short or not Parquet
        raise InputError(f"{path}: not a readable Parquet file ({type(error).__name__})") from None
    if rows > MOST_ROUNDS:
        raise InputError(f"{path}: has {rows:,} rounds; the page takes {MOST_ROUNDS:,} at most")


def _routing(path: Path) -> tuple[str, Iterable[str]]:
    from specmargin.routing.schema import read_routing  # noqa: PLC0415

    profile = read_routing(path)
    summary = f"routing of {profile.experts_per_token} of {profile.experts} experts in {profile.layers} layers"
    return summary, profile.categories


_READERS: dict[str, Callable[[Path], tuple[str, Iterable[str]]]] = {
    "config": _config,
    "acceptance": _acceptance,
    "routing": _routing,
}
