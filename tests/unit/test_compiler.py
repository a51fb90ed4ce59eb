"""Functions for compiled code only: quick to compile, and an exception instead of a crash if Python calls one."""

from __future__ import annotations

import pytest

from specmargin.compiler import compiled, entry, fast_entry


@compiled
def _twice(value: int) -> int:
    return 2 * value


@entry
def _four_times(value: int) -> int:
    return _twice(_twice(value))


@compiled
def _rounded(value: float) -> float:
    return (value + 1e16) - 1e16


@fast_entry
def _fast(value: float) -> float:
    return _rounded(value)


def test_results_do_not_depend_on_the_caller_that_compiles_first() -> None:
    """Numba would give `_rounded` the fast arithmetic of its caller, in which nothing is rounded away."""
    assert _fast(0.5) == 0.0


def test_compiled_code_calls_it_and_python_does_not() -> None:
    assert _four_times(3) == 12
    with pytest.raises(TypeError, match=r"^_twice is for compiled code only; Python calls functions under @entry$"):
        _twice(3)
    with pytest.raises(TypeError, match="only"):
        _twice(value=3)
