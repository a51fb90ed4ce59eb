"""Requests and what their clients do: sessions of several turns, shared prefixes, priorities, cancelled requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specmargin.errors import ScenarioError
from specmargin.records import Rows, rows_of
from specmargin.simulator.engine import BLOCK_TOKENS
from specmargin.simulator.workload import (
    BlockHashes,
    ClosedLoop,
    Poisson,
    Request,
    Sessions,
    Trace,
    Workload,
    draw,
    draw_lengths,
    lengths_by_category,
)
from specmargin.step import IntArray

_HASH_TOKENS = 512  # of a listed block of a session, as Mooncake's: fewer hashes than blocks
_MOST_CONTENTS = 2**31 - 1
_NONE = -1


class Client:
    """What concerns one request but not every step: apart from `Request`, and only where a load has such things."""

    priority: int  # lower is served first
    cancel_tokens: int  # output tokens after which the client disconnects; 0: never
    first_hash: int  # in `Traffic.hashes`
    listed_blocks: int  # KV blocks whose content is listed; the others are its own
    own_content: int  # of the first of those
    table: int  # of its KV blocks, while it runs
    known_blocks: int  # of them, those with content
    cached_tokens: int  # found in the prefix cache when it was first admitted
    next_turn: int  # request that the session sends next; -1: none
    next_session: int  # first request of the session after this one
    think_seconds: float  # before the next turn
    cancel_seconds: float  # after arrival; infinite: never
    cancelled_seconds: float  # NaN: not cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests in order of arrival, those of sessions in order of their sessions."""

    requests: Rows[Request]
    clients: Rows[Client]  # none if no request needs one
    hashes: npt.NDArray[np.int32]
    blocks_per_hash: int = 1
    contents: int = 0  # distinct KV blocks; 0: not known
    block_tokens: int = BLOCK_TOKENS
    begun: int = 0  # of a closed loop of sessions: first request after those of the first users
    has_sessions: bool = False
    has_cancels: bool = False
    has_priorities: bool = False


def traffic_of(workload: Workload, seed: int) -> Traffic:
    """Drawn from the seed. Without sessions, hashes, priorities and cancelled requests: those of `draw` alone."""
    if workload.sessions is not None:
        return _with_sessions(workload, workload.sessions, seed)
    requests, trace = draw(workload, seed), workload.arrivals
    plain = Traffic(requests=requests, clients=rows_of(Client, 0), hashes=np.zeros(0, dtype=np.int32))
    if not isinstance(trace, Trace):
        return _with_clients(plain, workload, None, seed)
    order = np.argsort(trace.arrival_seconds, kind="stable")
    traffic = _with_clients(plain, workload, (trace, order), seed)
    return traffic if trace.hashes is None else _with_hashes(traffic, trace.hashes, order)


def by_arrival(requests: Rows[Request], clients: Rows[Client]) -> tuple[Rows[Request], Rows[Client]]:
    """Requests of sessions after a run, in the order in which they arrived."""
    order = np.argsort(requests["arrival_seconds"], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    sorted_requests, sorted_clients = (cast("Any", np.asarray(rows)[order]) for rows in (requests, clients))
    following = sorted_clients["next_turn"]
    following[:] = np.where(following >= 0, place[following], _NONE)
    return sorted_requests, sorted_clients


# --- priorities and cancelled requests ---


def _with_clients(traffic: Traffic, workload: Workload, traced: tuple[Trace, IntArray] | None, seed: int) -> Traffic:
    """Priorities and cancelled requests, of the categories or as the trace recorded them."""
    trace = None if traced is None else traced[0]
    columns = () if trace is None else (trace.priority, trace.cancel_tokens, trace.cancel_seconds, trace.hashes)
    given = any(category.priority is not None for category in workload.categories)
    cancels = workload.cancels is not None and workload.cancels.share > 0.0
    if not (given or cancels or workload.sessions or any(column is not None for column in columns)):
        return traffic
    requests = traffic.requests
    clients = rows_of(
        Client, requests.size, cancel_seconds=np.inf, cancelled_seconds=np.nan, next_turn=_NONE, next_session=_NONE
    )
    priorities = np.array([category.priority or 0 for category in workload.categories])
    clients["priority"][:] = priorities[requests["category"]]
    _cancel_some(clients, workload, seed)
    if traced is not None:
        _as_recorded(clients, *traced)
    return replace(
        traffic,
        clients=clients,
        has_cancels=bool((clients["cancel_tokens"] > 0).any() or np.isfinite(clients["cancel_seconds"]).any()),
        has_priorities=given or (trace is not None and trace.priority is not None),
    )


def _cancel_some(clients: Rows[Client], workload: Workload, seed: int) -> None:
    cancels = workload.cancels
    if cancels is None:
        return
    chosen = np.random.default_rng([seed, 6]).random(clients.size) < cancels.share
    if cancels.tokens is not None:
        tokens = draw_lengths(cancels.tokens, clients.size, np.random.default_rng([seed, 9]))
        clients["cancel_tokens"][:] = np.where(chosen, tokens, 0)
    if cancels.seconds is not None:
        clients["cancel_seconds"][:] = np.where(chosen, cancels.seconds, np.inf)


def _as_recorded(clients: Rows[Client], trace: Trace, order: IntArray) -> None:
    for name in ("priority", "cancel_tokens", "cancel_seconds"):
        column = getattr(trace, name)
        if column is not None:
            clients[name][:] = column[order]


# --- contents of blocks ---


def _with_hashes(traffic: Traffic, hashes: BlockHashes, order: IntArray) -> Traffic:
    """What a trace lists covers prompts. Outputs are unlike any other block: no trace says what repeats them."""
    requests, clients = traffic.requests, traffic.clients
    distinct, dense = np.unique(hashes.ids, return_inverse=True)
    clients["first_hash"][:] = hashes.first[:-1][order]
    listed_tokens = np.diff(hashes.first)[order] * hashes.block_tokens
    clients["listed_blocks"][:] = np.minimum(requests["prompt_tokens"], listed_tokens) // BLOCK_TOKENS
    per_hash = hashes.block_tokens // BLOCK_TOKENS
    contents = _give_own_contents(requests, clients, first=distinct.size * per_hash)
    return replace(traffic, hashes=dense.astype(np.int32), blocks_per_hash=per_hash, contents=contents)


def _give_own_contents(requests: Rows[Request], clients: Rows[Client], *, first: int) -> int:
    """Number the blocks that no hash lists, from `first` on. Returns the number of contents."""
    blocks = (requests["prompt_tokens"] + requests["output_tokens"]) // BLOCK_TOKENS + 1
    own = np.maximum(blocks - clients["listed_blocks"], 0)
    ends = first + np.cumsum(own)
    if ends[-1] > _MOST_CONTENTS:
        raise ScenarioError(f"{ends[-1]:,} distinct KV blocks are too many: simulate fewer requests")
    clients["own_content"][:] = ends - own
    return int(ends[-1])


# --- sessions ---


def _with_sessions(workload: Workload, sessions: Sessions, seed: int) -> Traffic:
    arrivals = workload.arrivals
    assert isinstance(arrivals, ClosedLoop | Poisson)  # `Workload` has checked it
    turns = draw_lengths(sessions.turns, arrivals.requests, np.random.default_rng([seed, 8]))
    count = int(np.searchsorted(np.cumsum(turns), arrivals.requests)) + 1
    turns = turns[:count]
    turns[-1] -= turns.sum() - arrivals.requests  # the last session ends with the last request
    begun = draw(replace(workload, arrivals=replace(arrivals, requests=count), sessions=None), seed)
    requests = rows_of(Request, arrivals.requests, first_token_seconds=np.nan, finish_seconds=np.nan)
    requests["category"][:] = np.repeat(begun["category"], turns)
    for name, length, stream in (("prompt_tokens", "prompt", 3), ("output_tokens", "output", 4)):
        lengths = [getattr(each, length) or getattr(workload, length) for each in workload.categories]
        generator = np.random.default_rng([seed, stream])
        requests[name][:] = lengths_by_category(lengths, requests["category"], generator)
    plain = Traffic(requests=requests, clients=rows_of(Client, 0), hashes=np.zeros(0, dtype=np.int32))
    traffic = _with_clients(plain, workload, None, seed)
    first = np.cumsum(turns) - turns
    requests["arrival_seconds"][:] = np.inf
    requests["arrival_seconds"][first] = begun["arrival_seconds"]
    traffic.clients["think_seconds"][:] = np.random.default_rng([seed, 10]).exponential(size=arrivals.requests)
    traffic.clients["think_seconds"] *= sessions.think_seconds
    _chain(traffic.clients, first, turns)
    kept = _add_history(traffic, first, turns, sessions.shared_tokens)
    traffic = _list_sessions(traffic, first, turns, kept, sessions.shared_tokens)
    at_once = int(np.isfinite(begun["arrival_seconds"]).sum())
    return replace(traffic, begun=int(turns[:at_once].sum()), has_sessions=True)


def _chain(clients: Rows[Client], first: IntArray, turns: IntArray) -> None:
    following = np.arange(1, clients.size + 1)
    last = first + turns - 1
    clients["next_turn"][:] = following
    clients["next_turn"][last] = _NONE
    clients["next_session"][:] = np.repeat(last + 1, turns)


def _add_history(traffic: Traffic, first: IntArray, turns: IntArray, shared: int) -> IntArray:
    """Add to each turn's new tokens what came before them. Returns prompt and answer of each turn, as the next one
    repeats them: of an answer cancelled by its tokens, what the client has read."""
    requests, cancelled = traffic.requests, traffic.clients["cancel_tokens"]
    new, answers = requests["prompt_tokens"].copy(), requests["output_tokens"]
    read = np.where(cancelled > 0, np.minimum(answers, cancelled), answers)
    total = np.cumsum(new + read)
    before = np.repeat(total[first] - (new + read)[first], turns)
    kept = np.asarray(shared + total - before)
    requests["prompt_tokens"][:] = kept - read
    return kept


def _list_sessions(traffic: Traffic, first: IntArray, turns: IntArray, kept: IntArray, shared: int) -> Traffic:
    """Hashes of each session's history, which all of its turns share; of a system prompt, those of its category."""
    requests, clients = traffic.requests, traffic.clients
    shared -= shared % BLOCK_TOKENS
    tokens = math.gcd(shared, _HASH_TOKENS)
    system = shared // tokens
    listed = -(-kept[first + turns - 1] // tokens)
    starts = np.cumsum(listed) - listed
    categories = int(requests["category"].max()) + 1
    place = np.arange(listed.sum()) - np.repeat(starts, listed)
    own = categories * system + np.cumsum(listed - system) - (listed - system)
    category = requests["category"][first]
    hashes = np.where(
        place < system,
        np.repeat(category, listed) * system + place,
        np.repeat(own, listed) + place - system,
    )
    clients["first_hash"][:] = np.repeat(starts, turns)
    clients["listed_blocks"][:] = kept // BLOCK_TOKENS
    per_hash = tokens // BLOCK_TOKENS
    distinct = categories * system + int((listed - system).sum())
    contents = _give_own_contents(requests, clients, first=distinct * per_hash)
    return replace(traffic, hashes=hashes.astype(np.int32), blocks_per_hash=per_hash, contents=contents)
