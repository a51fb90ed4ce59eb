"""Reads pages of a server over HTTP: each within its time limit as a whole. Every failure is a one-sentence error."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

from specmargin.errors import EngineError
from specmargin.live.readings import ServerReading, server_reading

_LARGEST_BYTES = 16_000_000


class UnreachableError(EngineError):
    """The server did not respond; it may recover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str  # of its metrics
    timeout_seconds: float = 5.0

    @classmethod
    def from_address(cls, address: str, timeout_seconds: float = 5.0) -> Server:
        """`http://HOST:PORT`, with or without `/metrics`."""
        parts = _parts(address)
        if parts is not None and not _valid_port(parts):
            raise EngineError(f"{address!r}: the port must be a number in 1..65535, such as http://localhost:8000")
        if parts is None:
            raise EngineError(
                f"{address!r} is not a server address; it must begin with http:// or https://, such as "
                f"http://{_suggest_host(address)}"
            )
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/metrics')}"
        return cls(url=f"{base}/metrics", timeout_seconds=timeout_seconds)

    def read(self) -> ServerReading:
        return server_reading(self.text(), time.monotonic(), self.url)

    @property
    def base(self) -> str:
        return self.url.removesuffix("/metrics").removesuffix("/prometheus")

    def page(self, path: str) -> str:
        """Another page of the server, such as `/v1/models`."""
        return replace(self, url=self.base + path).text()

    def text(self) -> str:
        try:
            with _opener(time.perf_counter() + self.timeout_seconds).open(
                self.url, timeout=self.timeout_seconds
            ) as reply:
                body: bytes = reply.read(_LARGEST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_IMPLEMENTED:  # llama.cpp's answer
                    raise EngineError(f"{self.url}: not enabled; llama.cpp needs --metrics for it") from None
                if error.code >= 500:
                    raise UnreachableError(f"{self.url}: the server returned {error.code} ({error.reason})") from None
                raise EngineError(
                    f"{self.url}: the server returned {error.code} ({error.reason}); is this the server's port?"
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{self.url}: no response ({_reason(error)})") from None
        return body.decode("utf-8", errors="replace")


# --- the time limit of a whole response: urllib's own holds for each packet, and a server may send one per second ---


class _Timed(io.RawIOBase):
    """What a socket receives until the deadline."""

    def __init__(self, connected: socket.socket, deadline_seconds: float) -> None:
        self._socket, self._deadline_seconds = connected, deadline_seconds
        self._raw = connected.makefile("rb", buffering=0)  # keeps the socket open

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_seconds = self._deadline_seconds - time.perf_counter()
        if left_seconds <= 0.0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_seconds)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, connected: socket.socket, *arguments: Any, deadline_seconds: float, **options: Any) -> None:
        super().__init__(connected, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(connected, deadline_seconds))


def _opener(deadline_seconds: float) -> urllib.request.OpenerDirector:
    def timed(connection: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        def connect(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
            made = connection(*arguments, **options)
            made.response_class = partial(_TimedResponse, deadline_seconds=deadline_seconds)  # type: ignore[assignment]
            return made

        return connect

    class Http(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(timed(http.client.HTTPConnection), request)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(timed(http.client.HTTPSConnection), request)

    return urllib.request.build_opener(Http, Https)


def _parts(address: str) -> SplitResult | None:
    """None if this is not a server address."""
    try:
        parts = urlsplit(address)
    except ValueError:  # brackets that are not an IPv6 address
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def _valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # not a number, or above 65535
        return False


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "timed out"
    return (getattr(reason, "strerror", None) or str(reason) or type(reason).__name__).lower()


def _suggest_host(address: str) -> str:
    host = address.partition("://")[2] or address
    return host if host and "/" not in host and " " not in host else "localhost:8000"
