"""Hooks around an engine's own functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_INSTALLED = "specmargin_hooks"  # attribute of a wrapped function: names of its hooks


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: from now on the function runs in the place of `owner.name`, with the original as its first argument.
    A function of the same name is installed once per process, however often this runs."""

    def install(hook: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)
        installed: frozenset[str] = getattr(original, _INSTALLED, frozenset())
        key = f"{hook.__module__}.{hook.__qualname__}"
        if key not in installed:

            @functools.wraps(original)
            def hooked(*args: Any, **kwargs: Any) -> Any:
                return hook(original, *args, **kwargs)

            setattr(hooked, _INSTALLED, installed | {key})
            setattr(owner, name, hooked)
        return hook

    return install
