"""Readings of a server one after the other, each as an answer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from specmargin.errors import EngineError, nearest_names
from specmargin.live.engine_metrics import EngineReading, read_engine
from specmargin.live.readings import ServerReading
from specmargin.live.server import Server, UnreachableError
from specmargin.verbs.watch.engine import EngineAnswer
from specmargin.verbs.watch.plug_in import WatchAnswer
from specmargin.verbs.watch.request_schema import Look, ReadingKind, WatchRequest


def answers(request: WatchRequest, *, as_json: bool) -> Iterator[WatchAnswer | EngineAnswer]:
    return _answers(request, Server.from_address(request.url), as_json=as_json)


def _answers(request: WatchRequest, server: Server, *, as_json: bool) -> Iterator[WatchAnswer | EngineAnswer]:
    """JSON has readings alone, and one where no number is given."""
    count = 1 if request.once or (as_json and request.count is None) else request.count
    first = _first(server)
    if isinstance(first, EngineReading):
        if request.engine is not None:
            raise EngineError("--engine needs the plug-in: a stock server's metrics are shown over all of its engines")
        only = (first.engine,)
        for own in _looks(first, lambda: read_engine(server, only=only), count, request.interval):
            if own.fault is None or not as_json:
                yield EngineAnswer(request=request, look=own)
        return
    for look in _looks(first, server.read, count, request.interval):
        if look.fault is None or not as_json:
            engines = _engines(look.now, request.engine)
            yield WatchAnswer(request=request, url=server.url, engines=engines, look=look)


def _first(server: Server) -> ServerReading | EngineReading:
    """The plug-in's metrics, or the engine's own where it runs without."""
    try:
        return server.read()
    except UnreachableError:
        raise
    except EngineError as missing:
        try:
            stock = read_engine(server)
        except EngineError:
            raise missing from None
        if stock.plug_in:  # configured, and no engine has reported yet
            raise
        return stock


def _looks(
    first: ReadingKind, read: Callable[[], ReadingKind], count: int | None, every_seconds: float
) -> Iterator[Look[ReadingKind]]:
    """A server that does not answer the first reading is an error; a later failure is one only at the last reading."""
    look = Look(now=first)
    for number in itertools.count(1):
        yield look
        if number == count:
            break
        time.sleep(every_seconds)
        try:
            look = Look(now=read(), before=look.now)
        except EngineError as error:  # unreachable, or restarting and still without its metrics
            look = Look(now=look.now, before=look.before, fault=str(error))
    if look.fault is not None:
        raise EngineError(look.fault)


def _engines(reading: ServerReading, wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(reading.engines)
    if wanted not in reading.engines:
        names = ", ".join(reading.engines)
        raise EngineError(
            f"--engine: there is no engine {wanted!r}{nearest_names(wanted, reading.engines)}; it has {names}"
        )
    return (wanted,)
