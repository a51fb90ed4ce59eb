"""Write `src/specmargin/catalog/front.json`, the cells of the page's front table (`make front`, about ten minutes).

Every cell is what `plan` answers at its defaults, with the bundled laws as prices where the GPU has some: so it is the
same whether or not measured tables are installed.
`tests/explorer/test_table.py` compares a sample of the cells with `plan`. A stopped run resumes with `--resume`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from specmargin.catalog.drafters import default_kind
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.lookup import find_device, named_model
from specmargin.errors import InputError
from specmargin.show.explorer.fewest import enough_gpus
from specmargin.show.explorer.front import FrontCell, bundled_prices, front_cell
from specmargin.verbs.plan.request_schema import PlanRequest

OUT = Path(__file__).parents[1] / "src" / "specmargin" / "catalog" / "front.json"
ENGINES, DRAFTERS = ("vllm", "sglang", "trtllm"), ("own", "ngram")
GPUS = ("h100", "h200", "b200", "b300", "mi300x", "mi355x", "a100", "l40s", "rtx-pro-6000", "rtx-5090")
MODELS = (
    "deepseek-v3", "deepseek-r1", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "qwen3-30b-a3b",
    "qwen3-235b-a22b", "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "qwen3.5-397b-a17b",
    "qwen3.6-35b-a3b", "gpt-oss-20b", "gpt-oss-120b", "glm-4.5-air", "glm-4.5", "glm-5", "kimi-k2", "kimi-k2.5",
    "minimax-m2.5", "mimo-v2-flash", "llama-4-scout", "llama-4-maverick", "mixtral-8x7b", "nemotron-3-nano-30b-a3b",
    "step-3.5-flash", "gemma-4-26b-a4b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-32b", "qwen3.6-27b",
)  # fmt: skip


def cells_of(model: str, gpu: str) -> dict[str, dict[str, Any]]:
    """By engine and drafter."""
    running = engines_of(find_device(gpu))
    return {
        engine: {name: _cell(model, gpu, engine, name) for name in DRAFTERS} for engine in ENGINES if engine in running
    }


def _cell(model: str, gpu: str, engine: str, drafter: str) -> Any:
    kind = default_kind(named_model(model)) if drafter == "own" else drafter
    prices = bundled_prices(gpu)
    try:
        gpus = enough_gpus(model, gpu, kind, prices)
    except InputError as error:
        return FrontCell(refused=str(error)).values()
    request = PlanRequest(model=model, gpu=gpu, gpus=gpus, engine=engine, drafter=kind, prices=prices)
    return front_cell(request).values()


def _described(name: str) -> list[Any]:
    model = named_model(name)
    return [name, round(model.parameters / 1e9, 1), model.pools[0].experts if model.pools else None]


def main() -> None:
    known = json.loads(OUT.read_text(encoding="utf-8"))["cells"] if "--resume" in sys.argv and OUT.is_file() else {}
    wanted = [(model, gpu) for model in MODELS for gpu in GPUS if gpu not in known.get(model, {})]
    with ProcessPoolExecutor(2) as pool:
        asked = {pool.submit(cells_of, *pair): pair for pair in wanted}
        for done, future in enumerate(as_completed(asked), 1):
            model, gpu = asked[future]
            known.setdefault(model, {})[gpu] = future.result()
            if done % 20 == 0 or done == len(wanted):
                print(f"{done} of {len(wanted)}", flush=True)
                write(known)


def write(cells: dict[str, Any]) -> None:
    ordered = {
        model: {gpu: cells[model][gpu] for gpu in GPUS if gpu in cells[model]} for model in MODELS if model in cells
    }
    front = {
        "engines": ENGINES,
        "drafters": DRAFTERS,
        "gpus": [[name, find_device(name).title] for name in GPUS],
        "models": [_described(name) for name in ordered],
        "cells": ordered,
    }
    OUT.write_text(json.dumps(front, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
