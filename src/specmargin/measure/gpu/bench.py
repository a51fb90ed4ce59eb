"""Kernel timing on a GPU: CUDA events, warm-up, median of repeats inside a CUDA graph, inputs rotated to miss L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specmargin.architecture.types import GroupedAttention
from specmargin.errors import InputError
from specmargin.measure.gpu import kernels
from specmargin.measure.gpu.shapes import ExpertShape, Shapes, key_of
from specmargin.measure.nvidia_smi import nvidia_smi

_DEVICE = "cuda"
_WORST_ERROR = 0.02  # relative, of bf16 against float64
_L2_BYTES = 256e6  # several times the largest L2 of current GPUs
_QUERIES = (1, 2, 4, 8, 16)

Record = dict[str, Any]
Work = Callable[[int], Any]  # called with the index of the rotated input


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How often a kernel is timed. `deadline` ends the whole run; `done` holds keys that an earlier run has timed."""

    repeats: int = 15
    copies: int = 8  # launches of one timing, over rotated inputs
    deadline: float
    done: frozenset[str] = frozenset()

    def timed(self, operation: str, make: Callable[[], Work], *, graph: bool = True, **keys: Any) -> Iterator[Record]:
        """One row, unless it is done already or the deadline has passed. `make` allocates the inputs of the work."""
        if key_of({"operation": operation, **keys}) in self.done or time.time() > self.deadline:
            return
        try:
            seconds, spread = self.seconds(make(), graph=graph)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            yield {"record": "failure", "operation": operation, **keys, "error": "out of GPU memory"}
            return
        yield {"record": "row", "operation": operation, **keys, "seconds": seconds, "spread": spread}

    def seconds(self, work: Work, *, graph: bool = True) -> tuple[float, float]:
        """Median time of one launch, and the spread (half of the middle 80%) relative to it."""
        run = self._captured(work) if graph else lambda: [work(i) for i in range(self.copies)]
        for _ in range(3):
            run()
        times = sorted(self._once(run) / self.copies for _ in range(self.repeats))
        middle = statistics.median(times)
        edge = len(times) // 10
        return middle, (times[-1 - edge] - times[edge]) / (2.0 * middle)

    def _captured(self, work: Work) -> Callable[[], Any]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for index in range(self.copies):
                work(index)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(self.copies):
                work(index)
        replay: Callable[[], Any] = graph.replay
        return replay

    @staticmethod
    def _once(run: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


def check_gpu() -> None:
    if not torch.cuda.is_available():
        raise InputError("PyTorch sees no GPU here; `measure gpu` needs one (its driver, and a CUDA build of PyTorch)")


def _gpu_record() -> Record:
    properties = torch.cuda.get_device_properties(0)
    return {
        "record": "gpu",
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": nvidia_smi("driver_version"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device=_DEVICE, dtype=torch.float32) * scale).to(torch.bfloat16)


def _sets(read_bytes: float) -> int:
    """Number of copies of an input that together exceed the L2 cache."""
    return max(1, min(8, int(-(-_L2_BYTES // max(read_bytes, 1.0)))))


def _checked(name: str, output: torch.Tensor, reference: torch.Tensor) -> Record:
    """Refuse to time a kernel whose result is wrong."""
    error = float((output.double() - reference).norm() / reference.norm())
    if not error < _WORST_ERROR:
        raise InputError(f"{name} is wrong on this machine: relative error {error:.2g} against float64")
    return {"record": "check", "kernel": name, "relative_error": error}


# --- what is timed ---


def ceilings(bench: Bench, when: str) -> Iterator[Record]:
    """A large copy, a large product, and a launch that does nothing."""

    def copy() -> Work:
        source, target = (torch.ones(2**30, dtype=torch.float32, device=_DEVICE) for _ in range(2))
        return lambda _: torch.add(source, 1.0, out=target)  # a kernel: copy engines do not reach the memory bandwidth

    def product() -> Work:
        a, b = _random(8192, 8192), _random(8192, 8192)
        return lambda _: a @ b

    def launch() -> Work:
        one = torch.zeros(1, device=_DEVICE)
        return lambda _: one.add_(1.0)

    yield from bench.timed("copy", copy, when=when, bytes=2.0**33)
    yield from bench.timed("product", product, when=when, operations=2.0 * 8192.0**3)
    for graphs in (True, False):
        yield from bench.timed("launch", launch, graph=graphs, when=when, graphs=graphs)
    clocks = nvidia_smi("clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active")
    yield {"record": "clocks", "when": when, "clocks": clocks}


def experts(bench: Bench, shape: ExpertShape) -> Iterator[Record]:
    """Fused experts over positions and distinct experts, each varied at fixed values of the other."""
    yield _check_experts(shape)
    h, i = shape.hidden, shape.intermediate
    pool = [(_random(shape.experts, 2 * i, h, scale=0.02), _random(shape.experts, h, i, scale=0.02)) for _ in range(4)]
    for positions, distinct in expert_grid(shape):

        def make(positions: int = positions, distinct: int = distinct) -> Work:
            hidden = _random(positions, h)
            routes = [kernels.routing(positions, distinct, shape, seed, _DEVICE) for seed in range(4)]
            scratch = kernels.expert_scratch(routes[0], shape, _DEVICE)
            return lambda turn: kernels.fused_experts(hidden, *pool[turn % 4], routes[turn % 4], scratch)

        yield from bench.timed("experts", make, positions=positions, distinct=distinct)


def expert_grid(shape: ExpertShape) -> list[tuple[int, int]]:
    """Every possible pair: at least k distinct experts, at most k per position."""
    k, n = shape.experts_per_token, shape.experts
    distinct = sorted({d for d in (k, 2 * k, 4 * k, n // 2, 3 * n // 4, n) if d <= n})
    return [(t, d) for t in _POSITIONS for d in distinct if d <= t * k]


_POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _check_experts(shape: ExpertShape) -> Record:
    small = ExpertShape(experts=8, experts_per_token=2, hidden=shape.hidden, intermediate=shape.intermediate)
    hidden = _random(5, small.hidden)
    up = _random(8, 2 * small.intermediate, small.hidden, scale=0.05)
    down = _random(8, small.hidden, small.intermediate, scale=0.05)
    route = kernels.routing(5, 6, small, 0, _DEVICE)
    output = kernels.fused_experts(hidden, up, down, route, kernels.expert_scratch(route, small, _DEVICE))
    return _checked("experts", output, kernels.reference_experts(hidden, up, down, route))


def matrices(bench: Bench, shapes: Sequence[tuple[int, int]]) -> Iterator[Record]:
    for outputs, inputs in shapes:
        sets = [_random(outputs, inputs, scale=0.02) for _ in range(_sets(2.0 * outputs * inputs))]
        left = _random(4, inputs)
        yield _checked(f"product {outputs} x {inputs}", left @ sets[0].T, left.double() @ sets[0].double().T)
        for positions in _POSITIONS:

            def make(positions: int = positions, sets: Any = sets, inputs: int = inputs) -> Work:
                rows = _random(positions, inputs)
                return lambda turn: rows @ sets[turn % len(sets)].T

            yield from bench.timed("gemm", make, positions=positions, outputs=outputs, inputs=inputs)


_CONTEXTS_AND_BATCHES = ((1024, 1), (1024, 32), (8192, 1), (8192, 16), (65536, 1), (65536, 4))


def attention(bench: Bench, a: GroupedAttention) -> Iterator[Record]:
    """Several queries per sequence, through every backend of PyTorch; the law uses the fastest."""
    query = _random(2, a.heads, 3, a.key_dim)
    key, value = _random(2, a.kv_heads, 300, a.key_dim), _random(2, a.kv_heads, 300, a.value_dim)
    reference = kernels.reference_attention(query, key, value)
    for name, attend in kernels.GROUPED.items():
        yield _checked(f"attention, {name}", attend(query, key, value), reference)
    for context, batch in _CONTEXTS_AND_BATCHES:
        caches = [
            (_random(batch, a.kv_heads, context, a.key_dim), _random(batch, a.kv_heads, context, a.value_dim))
            for _ in range(_sets(2.0 * batch * a.kv_heads * context * (a.key_dim + a.value_dim)))
        ]
        for run in _QUERIES:
            query = _random(batch, a.heads, run, a.key_dim)
            for name, attend in kernels.GROUPED.items():

                def make(attend: Any = attend, query: Any = query, caches: Any = caches) -> Work:
                    return lambda turn: attend(query, *caches[turn % len(caches)])

                yield from bench.timed("attention", make, batch=batch, context=context, queries=run, backend=name)


def everything(bench: Bench, shapes: Shapes) -> Iterator[Record]:
    """All records, in order; ceilings and clocks before and after, to detect throttling."""
    check_gpu()
    torch.manual_seed(0)
    yield _gpu_record()
    yield from ceilings(bench, "before")
    if shapes.experts is not None:
        yield from experts(bench, shapes.experts)
    yield from matrices(bench, (*shapes.matrices, shapes.head))
    if shapes.attention is not None:
        yield from attention(bench, shapes.attention)
    yield from ceilings(bench, "after")
