"""Timing of kernels on a GPU and of launches on its host; shared by `verify_kernels.py` and `weight_kernels.py`."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

DEVICE = "cuda"
L2_BYTES = 120e6
Row = dict[str, Any]
Work = Callable[[int], Any]


def timed(work: Work, turns: int = 4, repeats: int = 9) -> float:
    """Median seconds of one launch, in a graph of `turns` launches over rotated inputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for turn in range(turns):
            work(turn)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(turns):
            work(turn)
    graph.replay()
    return statistics.median(_once(graph.replay) / turns for _ in range(repeats))


def _once(run: Callable[[], Any]) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) * 1e-3


def row(make: Callable[[], Work], **keys: Any) -> Row:
    try:
        return {**keys, "seconds": timed(make())}
    except Exception as error:  # the next kernel is timed all the same
        torch.cuda.empty_cache()
        return {**keys, "error": f"{type(error).__name__}: {str(error)[:200]}"}


# --- the host: what a launch takes ---


def host() -> Iterator[Row]:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def nothing(pointer, block: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(pointer + tl.arange(0, block), 0.0)

    one = torch.zeros(16, device=DEVICE)
    yield {"what": "cpu", "model": _cpu(), "addition_loop_seconds": _loop_seconds()}
    yield {"what": "PyTorch operation", "seconds": _host_seconds(lambda: one.add_(1.0))}
    yield {"what": "Triton kernel", "seconds": _host_seconds(lambda: nothing[(1,)](one, 16))}
    for kernels in (1, 12, 100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                one.add_(1.0)
        yield {"what": "graph replay", "kernels": kernels, "seconds": _host_seconds(graph.replay, 300)}


def _host_seconds(launch: Callable[[], Any], count: int = 2000) -> float:
    """Host seconds per launch, in short bursts so that the queue never fills."""
    for _ in range(50):
        launch()
    bursts = []
    for _ in range(count // 100):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(100):
            launch()
        bursts.append((time.perf_counter() - begun) / 100)
    return statistics.median(bursts)


def _loop_seconds() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(10_000_000):
        total += number
    return time.perf_counter() - begun


def _cpu() -> str:
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name")), "")
