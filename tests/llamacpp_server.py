"""Stands in for llama-server b11434: its recorded answers, with the times of the steps that were recorded of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parent / "recordings" / "llamacpp"
PAGES: dict[str, Any] = json.loads((RECORDED / "server-b11434.json").read_text(encoding="utf-8"))
MEASURED = Path(__file__).parents[1] / "lab" / "data" / "measurements" / "llamacpp-cpu"


def measured(form: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((MEASURED / f"{form}.json").read_text(encoding="utf-8"))
    return values


class FakeServer:
    """A cache per slot, as llama-server keeps one."""

    def __init__(self, *, drafts: bool = False, without: tuple[str, ...] = (), delay_seconds: float = 0.0) -> None:
        self.drafts, self.without, self.delay_seconds = drafts, without, delay_seconds
        rows = measured("q8_0")["rows"]
        self.seconds = {(row["batch"], row["depth"], row["prompt"]): row["seconds"] for row in rows}
        self.cached: dict[int, list[int]] = {}
        self.requests = 0

    def page(self, path: str) -> Any:
        if path == "/slots":
            return [{"id": 0, "speculative": self.drafts}]
        fields = PAGES[{"/props": "props", "/v1/models": "models"}[path]]
        return {name: value for name, value in fields.items() if name not in self.without}

    def complete(self, body: dict[str, Any]) -> Any:
        time.sleep(self.delay_seconds)
        self.requests += 1
        slot, prompt = body["id_slot"], body["prompt"]
        held = self.cached.get(slot, [])
        same = int((np.array(held[: len(prompt)]) == np.array(prompt[: len(held)])).cumprod().sum()) if held else 0
        fresh = max(len(prompt) - same, 1)
        self.cached[slot] = list(prompt)
        if body["stream"]:
            return PAGES["stream"]
        step = self.seconds.get((1, fresh - 1, len(prompt) - fresh), 1e-3)
        plain = self.seconds.get((1, 0, len(prompt)), 2e-3)
        timings = PAGES["completion"]["timings"] | {"prompt_n": fresh, "prompt_ms": 1e3 * step}
        timings |= {"predicted_n": body["n_predict"], "predicted_ms": 1e3 * plain * (body["n_predict"] - 1)}
        return {"timings": {name: value for name, value in timings.items() if name not in self.without}}


@contextmanager
def served(fake: FakeServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(json.dumps(fake.page(self.path)).encode())

        def do_POST(self) -> None:
            found = fake.complete(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if isinstance(found, list):
                self._answer(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in found))
            else:
                self._answer(json.dumps(found).encode())

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
