"""The price of attention in an engine's own kernels where they do not read KV once for all queries of a sequence.

Tables have rows of one query. Four treatments of more (`prices/attention_kernels.py`): KV read once, which the inner
price models; every query as a sequence of its own; one pass over the context that is not split over the GPU; and MLA's
cached latents projected again. None of them is cheaper than the inner price, nor than a step of one query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from specmargin.architecture.precision import Arithmetic
from specmargin.architecture.types import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from specmargin.hardware.device import Device
from specmargin.prices.adjusted import AdjustedPrices
from specmargin.prices.attention import attended_span
from specmargin.prices.attention_kernels import (
    AttentionKernel,
    Queries,
    Release,
    Walk,
    Walkers,
    device_kernel,
)
from specmargin.prices.kernels.model import SiliconPrices, attention_work
from specmargin.prices.model import WorkPrice
from specmargin.prices.triton_mla import triton_mla_price
from specmargin.prices.work import Work
from specmargin.sources import Source
from specmargin.step import FloatArray, Step

# FlashAttention 2 multiplies whole tiles of 64 rows, however few the queries are (flash_fwd_launch_template.h:181), and
# a block of threads loads its keys and values at about 60 GB/s. Together within 20% of the slopes of public prompt rows
# of one sequence and one head (aiconfigurator-core 0.12.0: A100 24.3, L40S 18.8, RTX PRO 6000 19.9 ns per token of head
# size 128; 37.5 and 38.1 ns of 256) and of the RTX 3090's 41 and 90 ns (vllm-project/flash-attention pull request 193).
# On an H200, which runs FlashAttention 3, version 2 takes 19.3 and 36.2 ns: its instructions have half the matrix rate.
_TILE_ROWS = 64.0
_LOAD_BYTES_PER_SECOND = 60e9
_ELEMENT_BYTES = 2.0
_TRITON_ROWS = 16.0  # query rows (queries x heads of a group) of a block of vLLM's Triton kernel
_BF16_BYTES = 2.0


@dataclass(frozen=True, kw_only=True)
class EngineAttention(AdjustedPrices):
    """Prices of `inner`, with attention as the engine's kernels on this device treat several queries."""

    engine: str
    release: Release | None = None  # None: the newest
    build: str = ""  # somebody's own of it

    def adjusted(self, work: Work, price: WorkPrice) -> WorkPrice:
        if work.step is None or work.kv is None or not isinstance(work.subject, _ATTENTION):
            return price
        kernel = device_kernel(self.engine, self.device, work.subject, work.kv, self.release, self.build)
        if kernel.splits_by_rows and isinstance(work.subject, LatentAttention) and work.step.prompt_by_class is None:
            layer = triton_mla_price(self.device, work.subject, work.step, kv=work.kv, ranks=work.ranks, by_rows=True)
            return replace(layer.scaled(np.asarray(work.count)), source=_named(layer.source, kernel))
        return self._of_kernel(kernel, work, work.subject, work.step, price)

    def _of_kernel(
        self, kernel: AttentionKernel, work: Work, attention: Attention, step: Step, price: WorkPrice
    ) -> WorkPrice:
        if not np.any(_verified(kernel, step)):
            return price
        match kernel.queries:
            case Queries.ONCE:
                longer = price
            case Queries.PER_QUERY if kernel.is_triton_mla and self._inner_has_its_grid:
                longer = price
            case Queries.PER_QUERY:
                rows = attention_work(work, attention, step.flattened())
                longer = _no_less(self.inner.price([rows])[0], price)
            case Queries.UNSPLIT:
                longer = _no_shorter(price, work.count * self._walk_seconds(kernel, work, attention, step))
            case Queries.PROJECTED:
                plain = self.inner.price([attention_work(work, attention, step.of_one_query())])[0]
                longer = _added(plain, work.count * self._projection_seconds(kernel, work, attention, step))
            case _:
                assert_never(kernel.queries)
        return replace(longer, source=_named(price.source, kernel))

    @property
    def _inner_has_its_grid(self) -> bool:
        """Prices from kernels have Triton MLA by its grid, with a row for every query."""
        return isinstance(self.inner, SiliconPrices) and self.device.multiprocessors is not None

    def _walk_seconds(self, kernel: AttentionKernel, work: Work, attention: Attention, step: Step) -> FloatArray:
        """Of the longest context, or of all of them where there are more blocks of threads than multiprocessors."""
        walkers, dims, window = _walkers(kernel, attention, work.ranks), _walked_dims(attention), _window(attention)
        verified = _verified(kernel, step)
        span = attended_span(step.run_by_class, step.context_by_class, window) * verified
        tiles = np.ceil(step.run_by_class / walkers.queries) if walkers.queries else 1.0
        processors = float(self.device.multiprocessors or _FEWEST_PROCESSORS)
        share = step.total(span * tiles * walkers.heads) / processors * kernel.overlap
        tokens = np.maximum(np.max(np.where(step.count_by_class > 0, span, 0.0), axis=-1), share)
        return np.asarray(tokens * (kernel.walk or flash_2_walk(self.device)).seconds(dims))

    def _projection_seconds(self, kernel: AttentionKernel, work: Work, attention: Attention, step: Step) -> FloatArray:
        """Every cached latent to the keys and values of the rank's heads, which are written, copied and read."""
        if not isinstance(attention, LatentAttention):
            return np.zeros(())
        tokens = step.total(step.context_by_class * _verified(kernel, step))
        heads = attention.heads / work.ranks
        up = attention.key_dim - attention.rope_dim + attention.value_dim
        width = attention.key_dim + attention.value_dim
        products = tokens * 2.0 * attention.latent_dim * heads * up / self.device.rate(Arithmetic.BF16)
        moved = tokens * heads * (2.0 * up + 2.0 * width) * _BF16_BYTES / self.device.bandwidth_bytes_per_second
        return np.asarray(products + moved)


def has_other_kernels(engine: str, device: Device) -> bool:
    """Whether this engine's attention on this device may differ from KV read once: not on Hopper and B200, B300."""
    capability = device.compute_capability
    if engine in ("vllm", "sglang"):
        return capability is None or capability // 10 not in (9, 10)
    return engine == "mlx" or (engine == "llamacpp" and (device.architecture or "").startswith("apple"))


_ATTENTION = (GroupedAttention, LatentAttention, CompressedAttention, LinearAttention)
_FEWEST_PROCESSORS = 64  # where a device's table does not say


def flash_2_walk(device: Device) -> Walk:
    rate = device.rate(Arithmetic.BF16) / (device.multiprocessors or _FEWEST_PROCESSORS)
    seconds = 2.0 * _TILE_ROWS / rate + _ELEMENT_BYTES / _LOAD_BYTES_PER_SECOND
    return Walk(token_seconds=0.0, element_seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walkers:
    heads: float  # blocks of threads per sequence and tile of queries
    queries: float  # that a tile holds; 0: all


def _walkers(kernel: AttentionKernel, attention: Attention, ranks: int) -> _Walkers:
    heads = float(getattr(attention, "heads", 1))
    kv_heads = float(attention.kv_heads) if isinstance(attention, GroupedAttention) else 1.0
    if kernel.walkers is Walkers.HEADS:
        return _Walkers(heads=max(1.0, heads / ranks), queries=_TILE_ROWS)
    return _Walkers(heads=max(1.0, kv_heads / ranks), queries=max(1.0, _TRITON_ROWS // (heads / kv_heads)))


def _walked_dims(attention: Attention) -> float:
    match attention:
        case GroupedAttention():
            return float(attention.key_dim + attention.value_dim)
        case LatentAttention():
            return float(2 * attention.latent_dim + attention.rope_dim)
        case _:
            return 0.0


def _window(attention: Attention) -> int | None:
    return attention.window if isinstance(attention, GroupedAttention) else None


def _verified(kernel: AttentionKernel, step: Step) -> FloatArray:
    """1 for decoding sequences of a launch in which some have several queries, 0 for prompts and for plain steps.

    One launch serves the whole batch, and with some kernels prompts: sequences of one query are treated like the rest.
    """
    decodes = np.ones_like(step.run_by_class) if step.prompt_by_class is None else 1.0 - step.prompt_by_class
    launched = step.count_by_class > 0 if kernel.one_launch else (step.count_by_class > 0) & (decodes > 0)
    several = np.any((step.run_by_class > 1.0) & launched, axis=-1, keepdims=True)
    return np.asarray(decodes * several)


def _no_less(price: WorkPrice, floor: WorkPrice) -> WorkPrice:
    """`price`, nowhere below `floor`: a table's rows may dip."""
    return _no_shorter(replace(price, source=floor.source), floor.seconds)


def _no_shorter(price: WorkPrice, seconds: FloatArray) -> WorkPrice:
    return _added(price, np.maximum(seconds - price.seconds, 0.0))


def _added(price: WorkPrice, seconds: FloatArray) -> WorkPrice:
    """Waiting of few blocks of threads: memory time, in which other work of the GPU would fit."""
    return replace(
        price,
        seconds=np.asarray(price.seconds + seconds),
        memory_seconds=np.asarray(price.memory_seconds + seconds),
    )


def _named(source: Source, kernel: AttentionKernel) -> Source:
    detail = f"{source.detail}; {kernel}"
    return replace(source, detail=detail, spread=max(source.spread, kernel.spread))
