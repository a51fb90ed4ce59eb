"""`plan --grid`: every batch at every depth, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specmargin.answers.blocks import Block, Table, bold, dim, right
from specmargin.errors import InputError
from specmargin.files import TABLE_ENDINGS, is_table, write_table, write_text
from specmargin.verbs.plan.drafter_plan import DrafterPlan

_ENDINGS = (*TABLE_ENDINGS, ".json")
_SHOWN_DEPTHS = 9  # columns that fit in 80


def grid_rows(of: DrafterPlan) -> list[dict[str, Any]]:
    """Depth 0 is an engine without speculation."""
    plan = of.plan
    pricer, setting = plan.pricer, plan.setting
    grid = pricer.grid([row.batch for row in plan.rows], setting.max_depth)
    in_graphs, gpus = setting.in_graphs(grid), pricer.scenario.layout.gpus
    rooms = [pricer.no_spec_largest_batch, *(pricer.largest_batch(depth) for depth in range(1, setting.max_depth + 1))]
    rows = []
    for i, batch in enumerate(int(size) for size in grid.batches):
        for depth in range(setting.max_depth + 1):
            plain = depth == 0
            seconds = float(grid.no_spec_seconds[i] if plain else grid.round_seconds[i, depth])
            tokens = 1.0 if plain else float(grid.committed[depth])
            rows.append(
                {
                    "batch": batch,
                    "depth": depth,
                    "speedup": tokens * float(grid.no_spec_seconds[i]) / seconds,
                    "tokens_per_second": batch * tokens / seconds,
                    "tokens_per_second_per_gpu": batch * tokens / seconds / gpus,
                    "tpot_seconds": seconds / tokens,
                    "round_seconds": seconds,
                    "tokens_per_round": tokens,
                    "in_cuda_graph": bool(in_graphs[i, depth]),
                    "fits": batch <= rooms[depth],
                }
            )
    return rows


def check_grid(path: Path) -> None:
    if path.suffix not in _ENDINGS:
        raise InputError(f"{path}: the name of a grid must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}")


def write_grid(path: Path, rows: list[dict[str, Any]], *, force: bool) -> None:
    if is_table(path):
        write_table(path, rows, force=force)
    else:
        write_text(path, json.dumps(rows, indent=1) + "\n", force=force)


def grid_blocks(of: DrafterPlan) -> Iterator[Block]:
    rows = grid_rows(of)
    depths = sorted({row["depth"] for row in rows})[1:_SHOWN_DEPTHS]
    cells = {(row["batch"], row["depth"]): row for row in rows}
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    yield bold("speed-up by batch and draft depth")
    yield Table(
        columns=right("batch", *map(str, depths)),
        rows=[[f"{batch:,}", *(_speedup(cells[batch, depth]) for depth in depths)] for batch in batches],
    )
    if not all(cells[batch, depth]["fits"] for batch in batches for depth in depths):
        yield dim("(parentheses: does not fit in memory)")


def _speedup(row: dict[str, Any]) -> str:
    return f"{row['speedup']:.2f}" if row["fits"] else f"({row['speedup']:.2f})"
