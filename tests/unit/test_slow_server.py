"""A server that sends one byte at a time holds no reader past its time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specmargin.live.server import Server, UnreachableError

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n"


@contextmanager
def trickling(head: bytes, drop: bytes, every_seconds: float = 0.05) -> Iterator[str]:
    """Sends `head` at once, then `drop` again and again until the client goes away."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(65536)
                try:
                    connected.sendall(head)
                    while not stop.wait(every_seconds):
                        connected.sendall(drop)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        pytest.param(_HEAD, b"x", id="a slow body"),
        pytest.param(_HEAD.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked"), b"1\r\nx\r\n", id="chunks"),
        pytest.param(_HEAD.replace(b"Content-Length: 1000\r\n", b""), b"x", id="no length"),
        pytest.param(b"", b"H", id="a slow status line"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", id="slow headers"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
def test_a_response_has_one_time_limit_as_a_whole(head: bytes, drop: bytes) -> None:
    with trickling(head, drop) as url:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"no response \(timed out\)"):
            Server.from_address(url, timeout_seconds=0.5).text()
        assert time.monotonic() - began < 1.5


def test_a_slow_response_within_the_limit_is_read() -> None:
    with trickling(_HEAD.replace(b"1000", b"8"), b"ab") as url:
        assert Server.from_address(url, timeout_seconds=10.0).text() == "abababab"
