"""How the hot paths are compiled: with Numba, kept on disk, inlined, and without counting references.

They are handed arrays, change them in place and make none, so there is nothing to count; counting every array of every
call takes ten times as long as the work itself. `_nrt` is Numba's own, private name for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    found: Callable[..., Any] = nb.njit(**options)(function)
    return found
