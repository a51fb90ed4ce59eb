"""A running `llama-server`, asked over HTTP. Every failure is one sentence with the address and the fix."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from specmargin.errors import InputError

OLDEST = "b5200 of April 2025"  # `timings`, `id_slot` and `build_info` as they are read here


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What the server says of one request."""

    prompt_tokens: int  # that were not in its cache
    prompt_seconds: float
    tokens: int  # the first comes with the prompt
    seconds: float  # of the steps after the first token
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Timings:
        return cls(
            prompt_tokens=int(fields["prompt_n"]),
            prompt_seconds=float(fields["prompt_ms"]) / 1e3,
            tokens=int(fields["predicted_n"]),
            seconds=float(fields["predicted_ms"]) / 1e3,
            drafted=int(fields.get("draft_n", 0)),
            accepted=int(fields.get("draft_n_accepted", 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    patience_seconds: float = 60.0

    @classmethod
    def at(cls, address: str, patience_seconds: float = 60.0) -> Server:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(f"--url: {address!r} is not a server's address; give one such as http://localhost:8080")
        return cls(url=address.rstrip("/"), patience_seconds=patience_seconds)

    def about(self) -> Properties:
        """An error if it is no llama-server, or too old a one."""
        fields = self._json("/props")
        missing = [name for name in ("build_info", "total_slots", "default_generation_settings") if name not in fields]
        if len(missing) == 3:
            raise InputError(
                f"{self.url} answers, but is not llama-server: its /props has none of {', '.join(missing)}"
            )
        if missing:
            raise InputError(
                f"{self.url} is another version of llama-server: its /props lacks {', '.join(missing)}; use {OLDEST} "
                "or later"
            )
        models = self._json("/v1/models").get("data") or [{}]
        found = Properties.of(fields, models[0].get("meta") or {})
        return found if found.speculation or not self._speculates() else replace(found, speculation=("draft",))

    def _speculates(self) -> bool:
        """Slots say whether they draft; the properties of a server give defaults of requests, which say none."""
        try:
            slots = self._page("/slots")
        except InputError:  # started with --no-slots
            return False
        return isinstance(slots, list) and any(isinstance(slot, dict) and slot.get("speculative") for slot in slots)

    def complete(self, prompt: list[int], *, tokens: int, slot: int) -> Timings:
        """Greedy tokens after the prompt, of which the slot's cache keeps what it can."""
        body = {"prompt": prompt, "n_predict": tokens, "id_slot": slot, "cache_prompt": True, "ignore_eos": True}
        answer = self._json("/completion", {**body, "temperature": 0.0, "stream": False})
        fields = answer.get("timings") or {}
        missing = [name for name in ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms") if name not in fields]
        if missing:
            raise InputError(
                f"{self.url} is another version of llama-server: its answers lack timings.{missing[0]}; use {OLDEST} "
                "or later"
            )
        return Timings.of(fields)

    def rounds(self, prompt: list[int], *, tokens: int, slot: int) -> list[Timings]:
        """The same, with the timings after every token: from them come depth and time of each round."""
        body = {"prompt": prompt, "n_predict": tokens, "id_slot": slot, "cache_prompt": True, "ignore_eos": True}
        body |= {"temperature": 1.0, "stream": True, "timings_per_token": True}
        with self._open("/completion", body) as reply:
            lines = [line.decode() for line in reply if line.startswith(b"data: ")]
        chunks = [json.loads(line[6:]) for line in lines if line[6:].strip() != "[DONE]"]
        return [Timings.of(chunk["timings"]) for chunk in chunks if "prompt_n" in (chunk.get("timings") or {})]

    def _json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found = self._page(path, body)
        if not isinstance(found, dict):
            raise InputError(f"{self.url}{path} is not llama-server's: the answer is not an object")
        return found

    def _page(self, path: str, body: Mapping[str, Any] | None = None) -> object:
        with self._open(path, body) as reply:
            text = self._read(reply, path)
        try:
            return json.loads(text)
        except ValueError:
            raise InputError(f"{self.url}{path} is not llama-server's: the answer is not JSON") from None

    def _read(self, reply: http.client.HTTPResponse, path: str) -> bytes:
        try:
            return reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(path, error) from None

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            reply: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self.patience_seconds)
        except urllib.error.HTTPError as error:
            with error:
                raise InputError(_refusal(self.url + path, error.code, error.read(4000))) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(path, error) from None
        return reply

    def _failure(self, path: str, error: Exception) -> InputError:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return InputError(
                f"{self.url}{path}: no answer within {self.patience_seconds:g} s; if the server is slow or busy, give "
                "it longer with --patience SECONDS"
            )
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return InputError(f"{self.url}: nothing answers there ({why}); start llama-server, or give its --url")


def _refusal(address: str, code: int, body: bytes) -> str:
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = ""
    if code == 404:
        return f"{address}: the server has no such page, so it is not llama-server, or one before {OLDEST}"
    if code == 501:
        return f"{address}: not enabled ({said or 'start llama-server with --props'})"
    return f"{address}: the server returned {code}{f' ({said})' if said else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a server says about itself and its model."""

    build: str
    slots: int
    slot_tokens: int  # that fit in a slot's cache
    speculation: tuple[str, ...]  # types, such as draft-simple; () without
    model_path: str
    vocabulary: int
    weight_bytes: int  # 0: not said

    @classmethod
    def of(cls, fields: Mapping[str, Any], model: Mapping[str, Any]) -> Properties:
        settings = fields["default_generation_settings"]
        given = str((settings.get("params") or {}).get("speculative.types", "none"))
        types = tuple(name for name in given.replace(" ", "").split(",") if name and name != "none")
        return cls(
            build=str(fields["build_info"]),
            slots=int(fields["total_slots"]),
            slot_tokens=int(settings.get("n_ctx", 0)),
            speculation=types,
            model_path=str(fields.get("model_path", "")),
            vocabulary=int(model.get("n_vocab", 0)) or 1000,
            weight_bytes=int(model.get("size", 0)),
        )
