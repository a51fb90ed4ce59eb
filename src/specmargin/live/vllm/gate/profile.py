"""An honest profile for vLLM's gate: dummy steps whose tokens are not padding.

vLLM marks the tokens of dummy steps as padding, which its routers send to no expert: the time that it measures for a
verify step holds its attention, at one context for all (`VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN`), but none of
the experts that real tokens would read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.worker.gpu.input_batch import InputBatch


@contextmanager
def unpadded_dummies() -> Iterator[None]:
    """Dummy batches made inside this block hold no padding."""
    make = InputBatch.__dict__["make_dummy"]

    def make_dummy(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return make.__func__(cls, *args, **{**kwargs, "is_padding": False})

    InputBatch.make_dummy = classmethod(make_dummy)
    try:
        yield
    finally:
        InputBatch.make_dummy = make
