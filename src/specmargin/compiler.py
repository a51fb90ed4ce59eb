"""How hot paths are compiled: with Numba, cached on disk.

`compiled` is for functions that only compiled code calls: inlined, and without reference counting. They take arrays,
change them in place and allocate none, so counting is not needed; it would take ten times as long as the work itself.
(`_nrt` is Numba's private name of that option.) `compiled_entry` is the same for a function that Python calls too, and
`entry` counts references. A function that Python can call needs a wrapper, into which everything is inlined once more:
without wrappers the simulator compiles in half the time.

With NUMBA_DISABLE_JIT=1 all of it is plain Python, slow, that a debugger can step through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numba as nb
from numba.core import types
from numba.core.registry import CPUDispatcher
from numba.experimental import structref

P = ParamSpec("P")
R = TypeVar("R")


_CALLED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INLINED: dict[str, Any] = {**_CALLED, "forceinline": True, "_nrt": False}


class _Inner(CPUDispatcher):
    """A compiled function that has no wrapper: calling it from Python would be a segmentation fault."""

    def __call__(self, *_: object, **__: object) -> None:
        raise TypeError(f"{self.py_func.__qualname__} is for compiled code only; Python calls functions under @entry")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    dispatcher: Callable[P, R] = nb.njit(**{**_INLINED, "no_cpython_wrapper": True})(function)
    if isinstance(dispatcher, CPUDispatcher):  # not with NUMBA_DISABLE_JIT
        dispatcher.__class__ = _Inner
    return dispatcher


def compiled_apart(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, but called: for rare work, which would make the loop around it larger and slower if inlined."""
    dispatcher: Callable[P, R] = nb.njit(**{**_CALLED, "_nrt": False, "no_cpython_wrapper": True})(function)
    if isinstance(dispatcher, CPUDispatcher):
        dispatcher.__class__ = _Inner
    return dispatcher


def compiled_entry(function: Callable[P, R]) -> Callable[P, R]:
    dispatcher: Callable[P, R] = nb.njit(**_INLINED)(function)
    return dispatcher


def entry(function: Callable[P, R]) -> Callable[P, R]:
    dispatcher: Callable[P, R] = nb.njit(**_CALLED)(function)
    return dispatcher


def fast_entry(function: Callable[P, R]) -> Callable[P, R]:
    """For inner loops over finite numbers, where sums may be taken in any order."""
    dispatcher: Callable[P, R] = nb.njit(**{**_CALLED, "fastmath": True})(function)
    return dispatcher


class StructType(types.StructRef):
    """The type of a structure held by compiled code, so that its arrays are passed once and not in every call.

    Use: `structref.register` a subclass, and `define_handle` a subclass of `HandleBase`, which holds it in Python.
    """

    def preprocess_fields(self, fields: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
        return tuple((name, types.unliteral(field_type)) for name, field_type in fields)  # type: ignore[no-untyped-call]


_IS_PLAIN = bool(vars(nb.config)["DISABLE_JIT"])
if TYPE_CHECKING:
    HandleBase = structref.StructRefProxy
else:
    HandleBase = object if _IS_PLAIN else structref.StructRefProxy


def define_handle(handle: Any, struct: type[StructType], field: str) -> None:
    """Make a subclass of `HandleBase` that has one field. Without compilation it is a plain object."""
    if _IS_PLAIN:
        handle.__init__ = lambda self, value: setattr(self, field, value)
    else:
        structref.define_proxy(handle, struct, [field])  # type: ignore[no-untyped-call]
