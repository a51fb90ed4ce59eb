"""Fetching releases of engines, from an index in this process: with and without dates, ranges and yanked files."""

from __future__ import annotations

import io
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import pytest

from tests.engine_files import fetch_engines, package_index

DAYS = {"0.9.0": "2026-05-01", "0.10.0": "2026-06-02", "0.10.1": "2026-06-20", "0.11.0rc1": "2026-07-01"}
YANKED = "0.10.1"


def wheel_name(version: str) -> str:
    return f"vllm-{version}-py3-none-any.whl"


def wheel() -> bytes:
    """Three megabytes, of which little is wanted."""
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr("vllm/kernels.so", os.urandom(3 << 20))
        archive.writestr("vllm/v1/worker/worker.py", "WORKER = 1\n")
        archive.writestr("vllm/v1/worker/kernel.cu", "not Python")
        archive.writestr("vllm/models/model.py", "MODEL = 1\n")
        archive.writestr("vllm/version.py", "__version__ = '0.10.0'\n")
    return file.getvalue()


class Index(BaseHTTPRequestHandler):
    is_json = True
    has_ranges = True
    wheel = b""
    sent: list[int]

    def do_GET(self) -> None:
        if self.path == "/simple/vllm/":
            kind, body = self._simple()
        elif self.path == "/pypi/vllm/json":
            files = {version: [{"filename": wheel_name(version), "upload_time": DAYS[version]}] for version in DAYS}
            kind, body = "application/json", json.dumps({"releases": files}).encode()
        else:
            self._send_wheel()
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def _simple(self) -> tuple[str, bytes]:
        if self.is_json:
            files = [
                {"filename": wheel_name(version), "url": f"../../files/{wheel_name(version)}"}
                | {"upload-time": f"{day}T10:00:00Z", "yanked": version == YANKED}
                for version, day in DAYS.items()
            ]
            return package_index._SIMPLE_JSON, json.dumps({"files": files}).encode()
        links = [
            f'<a href="../../files/{wheel_name(version)}#sha256=0" {"data-yanked" if version == YANKED else ""}>'
            f"{wheel_name(version)}</a>"
            for version in DAYS
        ]
        return "text/html", "\n".join(links).encode()

    def _send_wheel(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = self.wheel
        if asked and self.has_ranges:
            part = self.wheel[int(asked[1]) : int(asked[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(self.wheel)}")
        else:
            self.send_response(200)
        self.sent.append(len(part))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Start an index, to which pip is pointed; the cache is empty."""

    @contextmanager
    def serve(**properties: bool) -> Iterator[type[Index]]:
        handler = type("Handler", (Index,), {"wheel": wheel(), "sent": [], **properties})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
            yield handler
            server.shutdown()
            thread.join()

    monkeypatch.setattr(fetch_engines, "ROOT", tmp_path)
    _forget()
    yield serve
    _forget()


def _forget() -> None:
    package_index.wheels.cache_clear()
    package_index._index.cache_clear()


@pytest.mark.parametrize("is_json", [True, False])
def test_releases_have_dates_in_both_forms_of_the_index(served, is_json: bool) -> None:  # type: ignore[no-untyped-def]
    with served(is_json=is_json):
        found = fetch_engines.released("vllm", date(2026, 5, 18))
    assert found == {"0.10.0": date(2026, 6, 2)}  # neither the older one, the yanked one nor the candidate


@pytest.mark.parametrize("has_ranges", [True, False])
def test_only_wanted_files_are_unpacked(served, has_ranges: bool, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with served(has_ranges=has_ranges) as index:
        assert fetch_engines.fetch([("vllm", "0.10.0")])
    folder = fetch_engines.package("vllm", "0.10.0")
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "version.py",
        "v1/worker/worker.py",
    }
    assert (sum(index.sent) < len(index.wheel) / 2) == has_ranges
    assert "1 of 1: vllm 0.10.0: 0.0 MB" in capsys.readouterr().out


def test_an_interrupted_run_continues(served) -> None:  # type: ignore[no-untyped-def]
    with served() as index:
        unfinished = fetch_engines.package("vllm", "0.9.0") / "version.py"
        unfinished.parent.mkdir(parents=True)
        unfinished.write_text("of a list of files that has changed since")
        assert fetch_engines.fetch([("vllm", "0.10.0")])
        requests = len(index.sent)
        assert fetch_engines.fetch([("vllm", "0.10.0"), ("vllm", "0.9.0")])
        assert len(index.sent) == 2 * requests
    assert "__version__" in unfinished.read_text()
    assert {folder.name for folder in unfinished.parents[2].iterdir()} == {"vllm-0.9.0", "vllm-0.10.0"}  # nothing else


def test_a_release_that_the_index_lacks(served, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with served():
        assert not fetch_engines.fetch([("vllm", "0.12.0"), ("vllm", "0.10.0")])
    assert "vllm 0.12.0: not available (the index has no wheel)" in capsys.readouterr().out
    assert fetch_engines.is_fetched("vllm", "0.10.0")


def test_without_an_index(served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple")
        assert not fetch_engines.fetch([("vllm", "0.10.0"), ("vllm", "0.9.0")])
    assert "2 releases of engines are not fetched" in capsys.readouterr().out


def test_the_index_is_pips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[global]\nindex-url = https://example.org/simple\n")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    _forget()
    assert package_index._index() == "https://example.org/simple"
    _forget()
