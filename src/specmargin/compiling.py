"""How the hot paths are compiled: with Numba, kept on disk, inlined, and without counting references.

They are handed arrays, change them in place and make none, so there is nothing to count; counting every array of every
call takes ten times as long as the work itself. `_nrt` is Numba's own, private name for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
from numba.core import types


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    found: Callable[..., Any] = nb.njit(**options)(function)
    return found


class Kept(types.StructRef):
    """The type of a structure that compiled code keeps: arrays are handed over once, not in every call. One a class of
    them: `structref.register` a subclass, and `structref.define_proxy` who holds it in Python."""

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(given)) for name, given in fields)  # type: ignore[no-untyped-call]
