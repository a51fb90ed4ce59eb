"""Values that are worked out once and kept: by the identity of what they are made from, or whoever asks first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from threading import RLock
from typing import Any, Generic, ParamSpec, TypeVar

Value = TypeVar("Value")
Given = ParamSpec("Given")


class IdentityCache(Generic[Value]):
    """The last few values by key. Keys hold identities of objects, so those objects are kept alive with the value."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[Any, Value]] = OrderedDict()

    def get(self, key: Hashable, owners: Any, make: Callable[[], Value]) -> Value:
        if key not in self._values:
            self._values[key] = (owners, make())
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key][1]


def made_once(*, maxsize: int) -> Callable[[Callable[Given, Value]], Callable[Given, Value]]:
    """`lru_cache` whose calls wait for each other: a page asks for what the server is just preparing for it."""

    def decorate(make: Callable[Given, Value]) -> Callable[Given, Value]:
        cached = lru_cache(maxsize=maxsize)(make)
        lock = RLock()

        @wraps(make)
        def locked(*given: Given.args, **named: Given.kwargs) -> Value:
            with lock:
                return cached(*given, **named)  # type: ignore[arg-type]  # mypy wants Hashable of a ParamSpec

        return locked

    return decorate
