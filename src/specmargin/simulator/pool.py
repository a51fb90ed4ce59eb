"""KV blocks that keep their content until they are reused: the prefix cache, as vLLM's block pool. Compiled.

A full block is known by its content, a number that stands for its tokens and all before them. Requests that begin with
known blocks share them instead of computing them. Blocks that no request holds are free, and are reused in this order:
blocks without content first, then the least recently freed, and of one request the last block first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specmargin.compiler import compiled, compiled_apart
from specmargin.records import Rows, rows_of
from specmargin.simulator.traffic import Client, Traffic

_NONE = -1


class Block:
    """One KV block. Lists of blocks are circular and linked both ways."""

    holders: int  # requests that hold it; 0: free
    content: int
    before: int  # among the free blocks
    after: int
    alike_before: int  # among the blocks with the same content, the oldest first
    alike_after: int


class PoolRow:
    free_rows: int  # of the tables
    kept: int  # free blocks with content


class BlockPool(NamedTuple):
    """`blocks` has one row more than there are blocks: the ends of the list of free ones."""

    blocks: Rows[Block]
    counts: Rows[PoolRow]  # one row
    oldest: npt.NDArray[np.int32]  # by content: the oldest block that has it
    hashes: npt.NDArray[np.int32]  # that requests list
    tables: npt.NDArray[np.int32]  # (row, position): blocks of a running request
    free_rows: npt.NDArray[np.int32]
    blocks_per_hash: int
    block_tokens: int
    first_content: int  # blocks per sequence before those with content: recurrent states and windows
    dropped: int  # found blocks that are computed again: 1 for heads, which need hidden states of the target


def new_pool(traffic: Traffic, *, blocks: int, sequences: int, positions: int, first: int, dropped: int) -> BlockPool:
    """`positions`: blocks of the longest sequence."""
    rows = rows_of(Block, blocks + 1, content=_NONE)
    order = np.arange(blocks + 1)
    rows["after"][:], rows["before"][:] = np.roll(order, -1), np.roll(order, 1)
    return BlockPool(
        blocks=rows,
        counts=rows_of(PoolRow, free_rows=sequences),
        oldest=np.full(max(traffic.contents, 1), _NONE, dtype=np.int32),
        hashes=traffic.hashes,
        tables=np.zeros((sequences, positions), dtype=np.int32),
        free_rows=np.arange(sequences, dtype=np.int32)[::-1].copy(),
        blocks_per_hash=traffic.blocks_per_hash,
        block_tokens=traffic.block_tokens,
        first_content=first,
        dropped=dropped,
    )


@compiled
def _content(pool: BlockPool, client: Client, index: int) -> int:
    """Of a request's block: from its listed hashes, then numbers of its own."""
    if index >= client.listed_blocks:
        return client.own_content + index - client.listed_blocks
    each = pool.blocks_per_hash
    return int(pool.hashes[client.first_hash + index // each]) * each + index % each


@compiled_apart
def find_prefix(pool: BlockPool, client: Client, tokens: int) -> int:
    """Blocks of the longest known prefix. At least one token is computed, which takes a whole block."""
    most = (tokens - 1) // pool.block_tokens
    found = 0
    while found < most and pool.oldest[_content(pool, client, found)] != _NONE:
        found += 1
    return max(found - pool.dropped, 0)


@compiled_apart
def free_among(pool: BlockPool, client: Client, found: int) -> int:
    """How many of the found blocks are free: holding them takes as many from those that can be reused."""
    free = 0
    for index in range(found):
        if pool.blocks[pool.oldest[_content(pool, client, index)]].holders == 0:
            free += 1
    return free


@compiled_apart
def begin(pool: BlockPool, client: Client, found: int) -> None:
    """Give a request a table, and let it hold the found blocks."""
    counts = pool.counts[0]
    counts.free_rows -= 1
    client.table = pool.free_rows[counts.free_rows]
    client.known_blocks = found
    for index in range(found):
        number = pool.oldest[_content(pool, client, index)]
        block = pool.blocks[number]
        if block.holders == 0:
            _unlink(pool, number)
            counts.kept -= 1
        block.holders += 1
        pool.tables[client.table, pool.first_content + index] = number


@compiled_apart
def take(pool: BlockPool, client: Client, position: int, count: int) -> None:
    """Take `count` free blocks, whose content is then lost, into the table from `position` on."""
    ends = pool.blocks.size - 1
    for index in range(position, position + count):
        number = pool.blocks[ends].after
        _unlink(pool, number)
        _forget(pool, number)
        pool.blocks[number].holders = 1
        pool.tables[client.table, index] = number


@compiled_apart
def learn(pool: BlockPool, client: Client, tokens: int) -> None:
    """Make the full blocks of these computed tokens known."""
    for index in range(client.known_blocks, tokens // pool.block_tokens):
        content, number = _content(pool, client, index), pool.tables[client.table, pool.first_content + index]
        block, oldest = pool.blocks[number], pool.oldest[content]
        block.content = content
        if oldest == _NONE:
            pool.oldest[content] = block.alike_before = block.alike_after = number
        else:
            newest = pool.blocks[oldest].alike_before
            block.alike_before, block.alike_after = newest, oldest
            pool.blocks[newest].alike_after = pool.blocks[oldest].alike_before = number
        client.known_blocks = index + 1


@compiled_apart
def end(pool: BlockPool, client: Client, count: int) -> int:
    """Free a request's `count` blocks and its table. Returns how many no other request holds."""
    counts, ends, freed = pool.counts[0], pool.blocks.size - 1, 0
    table = pool.tables[client.table]
    for index in range(count):
        pool.blocks[table[index]].holders -= 1
    for index in range(count):  # without content: reused first, the last of them before the others
        block = pool.blocks[table[index]]
        if block.holders == 0 and block.content == _NONE:
            _link(pool, ends, table[index])
            freed += 1
    for index in range(count - 1, -1, -1):
        block = pool.blocks[table[index]]
        if block.holders == 0 and block.content != _NONE:
            _link(pool, pool.blocks[ends].before, table[index])
            counts.kept += 1
            freed += 1
    pool.free_rows[counts.free_rows] = client.table
    counts.free_rows += 1
    return freed


# --- lists ---


@compiled
def _link(pool: BlockPool, before: int, number: int) -> None:
    """Put a block into the list of free blocks, after another one or after its ends."""
    after = pool.blocks[before].after
    block = pool.blocks[number]
    block.before, block.after = before, after
    pool.blocks[before].after = pool.blocks[after].before = number


@compiled
def _unlink(pool: BlockPool, number: int) -> None:
    block = pool.blocks[number]
    pool.blocks[block.before].after, pool.blocks[block.after].before = block.after, block.before


@compiled
def _forget(pool: BlockPool, number: int) -> None:
    """A block that is reused loses its content; the next oldest with the same content takes its place."""
    block = pool.blocks[number]
    if block.content == _NONE:
        return
    pool.counts[0].kept -= 1
    if block.alike_after == number:
        pool.oldest[block.content] = _NONE
    else:
        pool.blocks[block.alike_before].alike_after = block.alike_after
        pool.blocks[block.alike_after].alike_before = block.alike_before
        if pool.oldest[block.content] == number:
            pool.oldest[block.content] = block.alike_after
    block.content = _NONE
