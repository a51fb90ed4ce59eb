"""Results that are kept, and made once only however many ask at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import RLock
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")


def kept(*, maxsize: int) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """`lru_cache` whose calls wait for each other: a page asks for what the server is just preparing for it."""

    def decorate(make: Callable[Given, Made]) -> Callable[Given, Made]:
        cached = lru_cache(maxsize=maxsize)(make)
        lock = RLock()

        @wraps(make)
        def found(*given: Given.args, **named: Given.kwargs) -> Made:
            with lock:
                return cached(*given, **named)  # type: ignore[arg-type]  # mypy wants Hashable of a ParamSpec

        return found

    return decorate
