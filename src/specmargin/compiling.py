"""How hot paths are compiled: with Numba, cached on disk.

`compiled` is for functions that call each other: inlined, and without reference counting. They take arrays, change them
in place and allocate none, so counting is not needed; it would take ten times as long as the work itself. (`_nrt` is
Numba's private name of that option.) `entry` is for functions that Python calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numba as nb
from numba.core import types

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    dispatcher: Callable[P, R] = nb.njit(**options)(function)
    return dispatcher


def entry(function: Callable[P, R]) -> Callable[P, R]:
    dispatcher: Callable[P, R] = nb.njit(cache=True, nogil=True, error_model="numpy")(function)
    return dispatcher


def fast_entry(function: Callable[P, R]) -> Callable[P, R]:
    """For inner loops over finite numbers, where sums may be taken in any order."""
    dispatcher: Callable[P, R] = nb.njit(cache=True, nogil=True, error_model="numpy", fastmath=True)(function)
    return dispatcher


class StructType(types.StructRef):
    """The type of a structure held by compiled code, so that its arrays are passed once and not in every call.

    Use: `structref.register` a subclass, and `structref.define_proxy` the class that holds it in Python.
    """

    def preprocess_fields(self, fields: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
        return tuple((name, types.unliteral(field_type)) for name, field_type in fields)  # type: ignore[no-untyped-call]
