"""Requests sent to a server at given moments, and when the tokens of each came back.

    python -m lab.live.trace_client [STREAMS]     how many tokens per second the client itself can read, on this machine

Answers are streamed; the words of a chunk are its tokens, so the model needs a tokenizer whose tokens are words
(`lab/live/models.py`, `word_tokenizer`). Reads are only kept with their time while requests run, and parsed afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from urllib.parse import urlsplit

_TEXT = re.compile(rb'"text":"([^"]*)"')
_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    at_seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Seconds are of the monotonic clock."""

    planned: Planned
    due: float
    sent: float  # when it was handed to the connection; NaN: it could not be
    token_seconds: tuple[float, ...]
    complete: bool
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class _Stream(asyncio.Protocol):
    body: bytes
    sent: float = float("nan")
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    transport: asyncio.BaseTransport | None = None
    failure: str = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self.sent = time.monotonic()
        transport.write(self.body)

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic(), data))


def send_all(
    url: str, model: str, requests: Sequence[Planned], *, vocabulary: int, seconds: float, seed: str
) -> tuple[float, list[Answered]]:
    """Send every request that is due before `seconds`; then close the connections, which aborts what is left.

    Returns the moment that counts as 0, and the answers in the given order.
    """
    address = urlsplit(url)
    due = [request for request in requests if request.at_seconds < seconds]
    bodies = _bodies(due, model, vocabulary, seed, host=address.netloc)
    gc.collect()
    gc.disable()  # its pauses would be read as pauses of the server
    try:
        begun, streams = asyncio.run(_run(address.hostname or "", address.port or 80, due, bodies, seconds))
    finally:
        gc.enable()
    return begun, [
        _answered(request, begun + request.at_seconds, stream) for request, stream in zip(due, streams, strict=True)
    ]


def _bodies(requests: Sequence[Planned], model: str, vocabulary: int, seed: str, *, host: str) -> list[bytes]:
    """Whole HTTP requests, made beforehand. Prompts are random token ids, which no prefix cache has seen."""
    drawn = random.Random(seed)
    written = []
    for request in requests:
        body = {
            "model": model,
            "prompt": [drawn.randrange(2, vocabulary) for _ in range(request.prompt_tokens)],
            "max_tokens": request.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        written.append(head.encode() + content)
    return written


async def _run(
    host: str, port: int, requests: Sequence[Planned], bodies: Sequence[bytes], seconds: float
) -> tuple[float, list[_Stream]]:
    begun = time.monotonic() + 0.2
    streams = [_Stream(body=body) for body in bodies]

    async def send(request: Planned, stream: _Stream) -> None:
        await asyncio.sleep(begun + request.at_seconds - time.monotonic())
        try:
            opening = asyncio.get_running_loop().create_connection(lambda: stream, host, port)
            await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            stream.failure = f"{type(error).__name__}: {error}"

    tasks = [asyncio.create_task(send(*pair)) for pair in zip(requests, streams, strict=True)]
    await asyncio.sleep(begun + seconds - time.monotonic())
    for task in tasks:
        task.cancel()
    for stream in streams:
        if isinstance(stream.transport, asyncio.WriteTransport):
            stream.transport.abort()
    await asyncio.sleep(0.05)
    return begun, streams


def _answered(request: Planned, due: float, stream: _Stream) -> Answered:
    whole = b"".join(data for _, data in stream.reads)
    ends = list(accumulate(len(data) for _, data in stream.reads))
    moments: list[float] = []
    for found in _TEXT.finditer(whole):
        read = min(bisect_right(ends, found.end() - 1), len(ends) - 1)
        moments += [stream.reads[read][0]] * len(found.group(1).split())
    status = whole[:15]
    failure = stream.failure or ("" if not whole or b" 200 " in status else whole[:300].decode(errors="replace"))
    return Answered(
        planned=request,
        due=due,
        sent=stream.sent,
        token_seconds=tuple(moments),
        complete=b"data: [DONE]" in whole,
        failure=failure,
    )


# --- the client's own limit ---

_CHUNK = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" w1 w2",'
)
_CHUNK += b'"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that sends chunks of two tokens as fast as they are taken."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(_CHUNK)
            await writer.drain()
            await asyncio.sleep(0)


def main() -> None:
    import multiprocessing  # noqa: PLC0415

    from lab.live.servers import free_port  # noqa: PLC0415

    streams, port, seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 64, free_port(), 4.0
    server = multiprocessing.Process(target=_serve, args=(port,), daemon=True)
    server.start()
    time.sleep(1.0)
    requests = [Planned(at_seconds=0.0, prompt_tokens=1, output_tokens=1)] * streams
    spent = time.process_time()
    _, answers = send_all(f"http://127.0.0.1:{port}", "m", requests, vocabulary=9, seconds=seconds, seed="0")
    spent = time.process_time() - spent
    server.terminate()
    reads = sum(len(set(answer.token_seconds)) for answer in answers)
    tokens = sum(len(answer.token_seconds) for answer in answers)
    print(f"{tokens / seconds:,.0f} tokens/s read in {reads / seconds:,.0f} reads/s; {1e6 * spent / reads:.0f} µs each")


def _serve(port: int) -> None:
    async def listen() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(listen())


if __name__ == "__main__":
    main()
