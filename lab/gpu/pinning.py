"""A processor core for each engine alone, on machines with many: the thread that launches kernels is slowed by whatever
runs on its core, by half while the other hardware thread of the core is busy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_LEAST_OTHERS = 2  # cores for servers, client and the rest of the machine
_ENGINE = "EngineCor"  # vLLM names the process of an engine so; Linux cuts names


def cores() -> list[tuple[int, ...]]:
    """Processors that this process may use, by core."""
    usable = sorted(os.sched_getaffinity(0))
    return sorted({tuple(cpu for cpu in _siblings(one) if cpu in usable) for one in usable})


def _siblings(cpu: int) -> list[int]:
    """As Linux lists them: 0-1, or 0,8."""
    try:
        listed = Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:
        return [cpu]
    ranges = [part.partition("-") for part in listed.split(",")]
    return [one for first, _, last in ranges for one in range(int(first), int(last or first) + 1)]


def pin(groups: Sequence[int]) -> list[int]:
    """Keep a core for the main thread of each process group's engine; all else of the groups gets the other cores,
    which are returned. Nothing changes on a machine with few cores: then all are returned."""
    every = cores()
    if len(every) < len(groups) + _LEAST_OTHERS:
        return sorted(os.sched_getaffinity(0))
    others = sorted(cpu for core in every[len(groups) :] for cpu in core)
    for group, core in zip(groups, every, strict=False):
        for process in _processes(group):
            for thread in _threads(process):
                alone = thread == process and _ENGINE in _name(process)
                with suppress(OSError):  # it has ended
                    os.sched_setaffinity(thread, core[:1] if alone else others)
    return others


def _processes(group: int) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getpgid(int(path.name)) == group:
                found.append(int(path.name))
    return found


def _threads(process: int) -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    return []


def _name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text()
    return ""
