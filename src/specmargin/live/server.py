"""Reads a server's metrics over HTTP. Every failure is a one-sentence error."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
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
    clock: Callable[[], float] = time.monotonic

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
        return server_reading(self.text(), self.clock(), self.url)

    def text(self) -> str:
        try:
            with urllib.request.urlopen(self.url, timeout=self.timeout_seconds) as response:
                body: bytes = response.read(_LARGEST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    raise UnreachableError(f"{self.url}: the server returned {error.code} ({error.reason})") from None
                raise EngineError(
                    f"{self.url}: the server returned {error.code} ({error.reason}); is this vLLM's port?"
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{self.url}: no response ({_reason(error)})") from None
        return body.decode("utf-8", errors="replace")


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
