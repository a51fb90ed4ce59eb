"""How hot paths are compiled: with Numba, cached on disk; without it they are plain Python.

`compiled` is for functions that only compiled code calls: inlined, and without reference counting. They take arrays,
change them in place and allocate none, so counting is not needed; it would take ten times as long as the work itself.
(`_nrt` is Numba's private name of that option.) `compiled_entry` is the same for a function that Python calls too, and
`entry` counts references. A function that Python can call needs a wrapper, into which everything is inlined once more:
without wrappers the simulator compiles in half the time.

Without Numba, or with NUMBA_DISABLE_JIT=1, all of it is plain Python with the same results: some hundred times slower,
so that runs are shortened (`simulator/shortened.py`), and a debugger can step through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

HAS_NUMBA = find_spec("numba") is not None
if TYPE_CHECKING or HAS_NUMBA:
    import numba as nb
    from numba.core import types
    from numba.core.registry import CPUDispatcher
    from numba.experimental import structref

    _IS_PLAIN = bool(vars(nb.config)["DISABLE_JIT"])
else:
    _IS_PLAIN = True


# `fastmath` is stated, because a function without it takes that of the caller that compiles it first: the last bits of
# a result would depend on what was compiled before.
_CALLED: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "fastmath": False,
}
_INLINED: dict[str, Any] = {**_CALLED, "forceinline": True, "_nrt": False}
_FAST: dict[str, Any] = {**_CALLED, "fastmath": True}


def shortened(done: int, whole: int, what: str) -> str | None:
    """What is said where fewer are done than asked for, because nothing is compiled."""
    if done >= whole:
        return None
    return f"only {done:,} of {whole:,} {what}: pip install 'specmargin[fast]' to run all of them"


# --- functions ---


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    return _inner(_jit(function, **_INLINED, no_cpython_wrapper=True))


def compiled_apart(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, but called: for rare work, which would make the loop around it larger and slower if inlined."""
    return _inner(_jit(function, **_CALLED, _nrt=False, no_cpython_wrapper=True))


def compiled_entry(function: Callable[P, R]) -> Callable[P, R]:
    return _jit(function, **_INLINED)


def entry(function: Callable[P, R]) -> Callable[P, R]:
    return _jit(function, **_CALLED)


def fast_entry(function: Callable[P, R]) -> Callable[P, R]:
    """For inner loops over finite numbers, where sums may be taken in any order."""
    return _jit(function, **_FAST)


def fast(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for the same loops."""
    return _inner(_jit(function, **{**_INLINED, "fastmath": True}, no_cpython_wrapper=True))


def fast_apart(function: Callable[P, R]) -> Callable[P, R]:
    """The same without reference counting, for compiled code only."""
    return _inner(_jit(function, **_FAST, _nrt=False, no_cpython_wrapper=True))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """For a few lines in a hot loop, put in its place before types are known."""
    return _jit(function, cache=True, nogil=True, inline="always")


def counting(function: Callable[P, R]) -> Callable[P, R]:
    """For loops over whole files."""
    return _jit(function, cache=True, nogil=True, boundscheck=False)


def _inner(dispatcher: Callable[P, R]) -> Callable[P, R]:
    if not _IS_PLAIN:
        cast(Any, dispatcher).__class__ = _Inner
    return dispatcher


def _jit(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    if _IS_PLAIN:
        return function
    dispatcher: Callable[P, R] = nb.njit(**options)(function)
    return dispatcher


# --- structures ---

if TYPE_CHECKING or not _IS_PLAIN:

    class _Inner(CPUDispatcher):
        """A compiled function that has no wrapper: calling it from Python would be a segmentation fault."""

        def __call__(self, *_: object, **__: object) -> None:
            name = self.py_func.__qualname__
            raise TypeError(f"{name} is for compiled code only; Python calls functions under @entry")

    class StructType(types.StructRef):
        """The type of a structure held by compiled code, so that its arrays are passed once and not in every call.

        Use: `register` a subclass, and `define_handle` a subclass of `HandleBase`, which holds it in Python.
        """

        def preprocess_fields(self, fields: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
            return tuple((name, types.unliteral(field_type)) for name, field_type in fields)  # type: ignore[no-untyped-call]

    HandleBase = structref.StructRefProxy
else:
    StructType = HandleBase = object


def register(struct: type[StructType]) -> type[StructType]:
    if not _IS_PLAIN:
        structref.register(struct)  # type: ignore[no-untyped-call]
    return struct


def define_handle(handle: Any, struct: type[StructType], field: str) -> None:
    """Make a subclass of `HandleBase` that has one field. Without compilation it is a plain object."""
    if _IS_PLAIN:
        handle.__init__ = lambda self, value: setattr(self, field, value)
    else:
        structref.define_proxy(handle, struct, [field])  # type: ignore[no-untyped-call]
