"""Compiles what most tests need, in one process: `tests/conftest.py` starts it beside the first tests of a run.

Otherwise every worker of pytest-xdist would compile the same functions at the same time.
"""

from __future__ import annotations

import pytest

from tests.unit.test_one_kernel import test_the_same_rounds_give_the_same_decisions as compile_all

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        compile_all(patch, gated=True, candidates=None)
