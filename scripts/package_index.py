"""The package index that pip is configured to use: a project's wheels with their dates, and single files of a wheel.

A wheel of 300 MB has a list of its files at its end. With range requests that list and the wanted files are read, about
2 MB; a server without range requests sends the whole wheel.
"""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile, ZipInfo

#: What downloads raise: no network, no such project, a broken answer.
FAILURES = (OSError, HTTPException, BadZipFile, ValueError)
PYTHON = sys.executable  # whose pip says which index
_SECONDS = 60  # until a silent server counts as absent
_BLOCK = 1 << 20  # bytes per range request
_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    name: str
    url: str
    day: date | None  # of its upload, where the index says so

    @property
    def version(self) -> str:
        return self.name.split("-")[1]


# --- projects ---


@cache
def wheels(project: str) -> tuple[Wheel, ...]:
    """Those of the index that are not yanked."""
    base, kind, body = _get(f"{_index()}/{project}/", accept=f"{_SIMPLE_JSON}, text/html;q=0.5")
    listed = _from_json(base, body) if kind == _SIMPLE_JSON else _from_page(base, body, _upload_days(project))
    return tuple(wheel for wheel in listed if wheel.name.endswith(".whl"))


def find_wheel(project: str, version: str) -> Wheel:
    """Any of that release: its Python files are the same for every machine."""
    found = min((wheel for wheel in wheels(project) if wheel.version == version), key=lambda it: it.name, default=None)
    if found is None:
        raise OSError("the index has no wheel")
    return found


def _from_json(base: str, body: bytes) -> list[Wheel]:
    files = [file for file in json.loads(body)["files"] if not file.get("yanked")]
    return [
        Wheel(name=file["filename"], url=urljoin(base, file["url"]), day=_day(file.get("upload-time")))
        for file in files
    ]


def _from_page(base: str, body: bytes, days: dict[str, date | None]) -> list[Wheel]:
    links = re.findall(r"<a ([^>]*)>\s*([^<]+?)\s*</a>", body.decode())
    return [
        Wheel(name=name, url=urljoin(base, html.unescape(address[1]).split("#")[0]), day=days.get(name))
        for attributes, name in links
        if "data-yanked" not in attributes and (address := re.search(r'href="([^"]*)"', attributes))
    ]


def _upload_days(project: str) -> dict[str, date | None]:
    """A simple page has no dates; the project's page beside the simple index has them."""
    _, _, body = _get(urljoin(f"{_index()}/", f"../pypi/{project}/json"))
    files = [file for release in json.loads(body)["releases"].values() for file in release]
    return {file["filename"]: _day(file.get("upload_time")) for file in files}


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text[:10]) if text else None


@cache
def _index() -> str:
    """As pip resolves it; pip's help names the address that its configuration or its default gives."""
    given = os.environ.get("PIP_INDEX_URL")
    if not given:
        command, unwrapped = [PYTHON, "-m", "pip", "download", "--help"], os.environ | {"COLUMNS": "1000"}
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=unwrapped)
        found = re.search(r"--index-url <url>.*?\(default (\S+)\)", answer.stdout)
        if found is None:
            raise OSError("pip does not say which package index it uses")
        given = found[1]
    return given.rstrip("/")


def _get(url: str, *, accept: str = "*/*") -> tuple[str, str, bytes]:
    """Address after redirection, content type, body."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise OSError(f"the package index {url} is not on the web")
    with urlopen(Request(url, headers={"Accept": accept}), timeout=_SECONDS) as answer:
        return answer.url, answer.headers.get_content_type(), answer.read()


# --- files of a wheel ---


@contextmanager
def open_wheel(wheel: Wheel) -> Iterator[ZipFile]:
    """To read a few files of it."""
    with urlopen(Request(wheel.url, headers={"Range": "bytes=0-0"}), timeout=_SECONDS) as answer:
        size = re.fullmatch(r"bytes 0-0/(\d+)", answer.headers.get("Content-Range", ""))
        file = _saved(answer) if size is None else io.BufferedReader(_Remote(url=wheel.url, size=int(size[1])))
    with file, ZipFile(file) as archive:
        yield archive


def unpack(archive: ZipFile, folder: Path, files: Sequence[ZipInfo]) -> None:
    """In their order in the archive, so that each block is read once."""
    archive.extractall(folder, [file.filename for file in sorted(files, key=lambda file: file.header_offset)])


def _saved(answer: IO[bytes]) -> IO[bytes]:
    file = TemporaryFile()  # noqa: SIM115 (closed where it is read)
    shutil.copyfileobj(answer, file)
    return file


@dataclass(kw_only=True)
class _Remote(io.RawIOBase):
    """A file on a server, read in blocks that are kept."""

    url: str
    size: int
    _position: int = 0
    _blocks: dict[int, bytes] = field(default_factory=dict)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        number, start = divmod(self._position, _BLOCK)
        if number not in self._blocks:
            self._blocks[number] = self._block(number)
        data = self._blocks[number][start : start + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _block(self, number: int) -> bytes:
        if number * _BLOCK >= self.size:
            return b""
        part = f"bytes={number * _BLOCK}-{min(self.size, (number + 1) * _BLOCK) - 1}"
        with urlopen(Request(self.url, headers={"Range": part}), timeout=_SECONDS) as answer:
            return bytes(answer.read())
