"""Caches: by the identity of the inputs, and an `lru_cache` that computes each value once under concurrency."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from threading import RLock
from typing import Any, Generic, ParamSpec, TypeVar

Value = TypeVar("Value")
Params = ParamSpec("Params")


class IdentityCache(Generic[Value]):
    """The last few values by key. Keys hold identities of objects, so the cache keeps those (`owners`) alive."""

    def __init__(self, maxsize: int = 8) -> None:
        self._maxsize = maxsize
        self._values: OrderedDict[Hashable, tuple[Any, Value]] = OrderedDict()

    def get(self, key: Hashable, owners: Any, make: Callable[[], Value]) -> Value:
        if key not in self._values:
            self._values[key] = (owners, make())
            if len(self._values) > self._maxsize:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key][1]


_clear: list[Callable[[], None]] = []  # of every cache of `made_once` that holds several values


def forget() -> None:
    """Empty the caches whose values depend on what was asked: a file that they were made of is gone."""
    for clear in _clear:
        clear()


def made_once(*, maxsize: int) -> Callable[[Callable[Params, Value]], Callable[Params, Value]]:
    """`lru_cache` with a lock: a request for a value that is being computed waits for it."""

    def decorate(make: Callable[Params, Value]) -> Callable[Params, Value]:
        cached = lru_cache(maxsize=maxsize)(make)
        lock = RLock()
        if maxsize > 1:
            _clear.append(cached.cache_clear)

        @wraps(make)
        def locked(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            with lock:
                return cached(*args, **kwargs)  # type: ignore[arg-type]  # mypy wants Hashable of a ParamSpec

        return locked

    return decorate
