"""Collectives of ranks on one machine through shared memory, in place of torch's over TCP.

Between two processes of a small machine, one all-reduce over TCP takes up to 2 ms, and a step has dozens of them. On a
GPU machine it takes microseconds, as it does here: ranks write, then poll until all have written. Only calls of the
main thread come here: every rank makes those in the same order, whatever their group.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_BYTES = 4 << 20  # of a rank's message; longer ones go over TCP
_POLL_SECONDS, _NAP_SECONDS = 5e-3, 2e-4
_FILE = "collectives.bin"


def prepare(folder: Path, ranks: int) -> None:
    """Before the server starts."""
    np.memmap(folder / _FILE, dtype=np.uint8, mode="w+", shape=(ranks * (8 + 2 * _BYTES),)).flush()


def install(folder: Path, ranks: int) -> None:
    """In each rank. The counters need plain writes to keep their order, as they do on x86; elsewhere TCP stays."""
    if platform.machine() != "x86_64":
        return
    import torch  # noqa: PLC0415 (vLLM has imported it)

    distributed, channel = torch.distributed, _Channel(folder / _FILE, ranks)

    def replace(name: str, fast: Callable[..., None], arguments: int) -> None:
        over_tcp = getattr(distributed, name)

        def call(*given: Any, group: Any = None, **options: Any) -> Any:
            plain = len(given) == arguments and not options and group is not None and group.size() == ranks
            if plain and threading.current_thread() is threading.main_thread() and given[-1].nbytes <= _BYTES:
                return fast(*given, group.rank())
            return over_tcp(*given, group=group, **options)

        setattr(distributed, name, call)

    def all_reduce(tensor: Any, rank: int) -> None:
        tensor.copy_(torch.from_numpy(sum(channel.exchange(tensor.numpy(), rank))))

    def all_gather(parts: list[Any], tensor: Any, rank: int) -> None:
        for part, found in zip(parts, channel.exchange(tensor.numpy(), rank), strict=True):
            part.copy_(torch.from_numpy(found))

    replace("all_reduce", all_reduce, 1)
    replace("all_gather", all_gather, 2)


class _Channel:
    """Each rank has a count of its messages and two places, which it uses in turn: when all have written message n + 1,
    all have read message n.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        whole = np.memmap(path, dtype=np.uint8, mode="r+")
        self._counts = whole[: 8 * ranks].view(np.int64)
        self._places = whole[8 * ranks :].reshape(ranks, 2, _BYTES)
        self._number = 0

    def exchange(self, message: Any, rank: int) -> list[Any]:
        """All ranks' messages, of one shape and kind."""
        self._number += 1
        place, size = self._number % 2, message.nbytes
        self._places[rank, place, :size] = np.ascontiguousarray(message).reshape(-1).view(np.uint8)
        self._counts[rank] = self._number
        begun = time.perf_counter()
        while self._counts.min() < self._number:
            if time.perf_counter() - begun < _POLL_SECONDS:
                os.sched_yield()
            else:
                time.sleep(_NAP_SECONDS)
        return [one[place, :size].copy().view(message.dtype).reshape(message.shape) for one in self._places]
