"""Uploaded files: limited in size, read as data only, and stored under generated names in a temporary folder."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from starlette.concurrency import run_in_threadpool

from specmargin.errors import InputError, SpecmarginError
from specmargin.show.explorer.reading import READERS

Kind = Literal["config", "acceptance", "speculator", "routing"]
#: Bytes. JSON takes up to thirty times its size in memory while it is read, tables less.
LIMITS: dict[Kind, int] = {
    "config": 2 << 20,
    "acceptance": 64 << 20,
    "speculator": 64 << 20,
    "routing": 8 << 20,
}
_PROFILE_BYTES = 8 << 20  # of an acceptance profile, which is JSON
MAX_UPLOADS = 32
#: Of all files together, 0.2 GB as numbers and a few times that in what is computed from them: older files are dropped.
MOST_NUMBERS = 24_000_000
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
    numbers: int = 0  # its weight in memory


class Uploads:
    """Keyed by content: the same file has the same id, so that a link works again after a new upload."""

    def __init__(self, forget: Callable[[], None] = lambda: None) -> None:
        """`forget` is called when a file was dropped, for what was computed from it."""
        self._folder = Path(tempfile.mkdtemp(prefix="specmargin-"))
        self._uploads: OrderedDict[str, Upload] = OrderedDict()
        self._forget = forget
        self._one_at_a_time = Lock()

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
        """Enforce the size limit while receiving, and store only files that can be read. Meanwhile the server answers
        other requests; files are read one after the other, so that their memory does not add up."""
        most, body = _most_bytes(kind, name), bytearray()
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                raise TooLargeError(f"{shown(name)}: a {kind} file may have at most {most >> 20} MB")
        return await run_in_threadpool(self.add, kind, name, bytes(body), beside)

    def add(self, kind: Kind, name: str, body: bytes, beside: str | None = None) -> Upload:
        """`beside`: the id of an acceptance.parquet, for the speculator.parquet that belongs to it."""
        with self._one_at_a_time:
            return self._add(kind, name, body, beside)

    def _add(self, kind: Kind, name: str, body: bytes, beside: str | None) -> Upload:
        bank = self._bank(beside) if kind == "speculator" else None
        belongs_to = kind if bank is None else bank.id
        key = hashlib.sha256(belongs_to.encode() + body).hexdigest()[:16]
        folder = self._folder / key
        new = not folder.exists()
        folder.mkdir(exist_ok=True)
        try:
            held: Kind = "acceptance" if bank else kind
            path = _joined_bank(folder / "bank", bank.path, body) if bank else _written(kind, folder, name, body)
            read = READERS[held](path)
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
            summary=read.summary,
            categories=read.categories,
            numbers=read.numbers,
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
        while len(self._uploads) > MAX_UPLOADS or self._numbers > MOST_NUMBERS:
            old, _ = self._uploads.popitem(last=False)
            shutil.rmtree(self._folder / old, ignore_errors=True)
            self._forget()

    @property
    def _numbers(self) -> int:
        return sum(upload.numbers for upload in self._uploads.values())


def _most_bytes(kind: Kind, name: str) -> int:
    return min(LIMITS[kind], _PROFILE_BYTES) if name.lower().endswith(".json") else LIMITS[kind]


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
