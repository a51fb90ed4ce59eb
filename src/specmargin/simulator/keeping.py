"""What runs of the same scenario share is worked out once in a process: tables, look-aheads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The last few values by key. Keys hold identities of objects, so those objects are kept alive with the value."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, tuple[Any, Value]] = OrderedDict()

    def get(self, key: Hashable, owners: Any, make: Callable[[], Value]) -> Value:
        if key not in self._found:
            self._found[key] = (owners, make())
            if len(self._found) > self._most:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return self._found[key][1]
