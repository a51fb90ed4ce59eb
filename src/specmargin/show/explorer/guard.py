"""Access control of the page: loopback by default, other machines with a token; and security headers."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
#: The one view that pages of other sites may frame: an answer without controls.
FRAMED = "/embed"
FRAMED_POLICY = POLICY.replace("frame-ancestors 'none'", "frame-ancestors *")
FRAMED_HEADERS = {name: value for name, value in HEADERS.items() if name != "x-frame-options"} | {
    "content-security-policy": FRAMED_POLICY
}
COOKIE = "specmargin"
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]", "::1"}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI middleware. `hosts`: host names that the server accepts; a page of another site that resolves to this
    server (DNS rebinding) sends its own name and is refused. `token`: required where other machines reach the port."""

    app: ASGIApp
    hosts: frozenset[str]
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send, HEADERS))
            return
        await self.app(scope, receive, _with_headers(send, FRAMED_HEADERS if scope["path"] == FRAMED else HEADERS))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = _name(headers.get("host", ""))
        if self.hosts and host not in self.hosts:
            return _error(421, f"unknown host name {host[:80]!r}; use the address that `specmargin explore` printed")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{headers.get('host', '')}".lower():
            return _error(403, "requests from pages of other sites are refused")
        return None if self.token is None else self._token_refusal(scope, headers, self.token)

    def _token_refusal(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        if _equal(bearer, token) or (cookie is not None and _equal(cookie.value, token)):
            return None
        given = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and _equal(value, token) for name, value in given):
            return _error(401, "this server needs its token: open the address that `specmargin explore` printed")
        rest = urlencode([(name, value) for name, value in given if name != "token"])
        # Removes the token from the address bar, and nothing else of the link.
        redirect = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), status_code=303)
        redirect.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return redirect


def allowed_hosts(host: str) -> frozenset[str]:
    """Names that a browser may use for the listening address; empty (any name) when listening on all addresses."""
    if host in ("0.0.0.0", "::"):
        return frozenset()
    return frozenset(_LOOPBACK | {host}) if is_loopback(host) else frozenset({host, f"[{host}]"})


def _name(host: str) -> str:
    """Without the port; IPv6 addresses keep their brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def _equal(candidate: str, token: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(candidate.encode(), token.encode())


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message, "field": None}, status_code=status)


def _with_headers(send: Send, added: Mapping[str, str]) -> Callable[[Message], Awaitable[None]]:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers[name] = value
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
        await send(message)

    return wrapped
