"""Requests in order, as binary heaps of their numbers: turns that are sent later, and waiting requests by priority.
Compiled.

In both, the lowest priority value is first, then the earliest arrival, then the lowest number; turns all have one
priority, as they have not arrived.
"""

from __future__ import annotations

from specmargin.compiler import compiled, compiled_apart
from specmargin.records import Rows
from specmargin.simulator.traffic import Client
from specmargin.simulator.workload import Request
from specmargin.step import IntArray


@compiled
def comes_before(requests: Rows[Request], clients: Rows[Client], first: int, second: int, by_priority: bool) -> bool:
    if by_priority and clients[first].priority != clients[second].priority:
        return clients[first].priority < clients[second].priority
    if requests[first].arrival_seconds != requests[second].arrival_seconds:
        return requests[first].arrival_seconds < requests[second].arrival_seconds
    return first < second


@compiled_apart
def push(
    heap: IntArray, size: int, number: int, requests: Rows[Request], clients: Rows[Client], by_priority: bool
) -> None:
    """Add a request to the first `size` entries."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not comes_before(requests, clients, number, heap[parent], by_priority):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = number


@compiled_apart
def pop(heap: IntArray, size: int, requests: Rows[Request], clients: Rows[Client], by_priority: bool) -> None:
    """Remove the first of `size` entries."""
    number, rest, place = heap[size - 1], size - 1, 0
    while True:
        child = 2 * place + 1
        if child >= rest:
            break
        if child + 1 < rest and comes_before(requests, clients, heap[child + 1], heap[child], by_priority):
            child += 1
        if not comes_before(requests, clients, heap[child], number, by_priority):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = number
