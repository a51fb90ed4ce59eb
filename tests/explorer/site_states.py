"""Random states of the static site, at any context and batch: do its numbers agree with `plan --json`?

`tests/explorer/test_site.py` tries 56 states of five cells; `python -m tests.explorer.site_states` (in
`make test-matrix`) 400 of 80 random cells, and prints the largest errors.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specmargin.show.site.build import BuiltCell, Selection, build_cell, drafters_of
from specmargin.show.site.pages import write_pages
from tests.explorer.test_site import ACCEPTANCES, answered, made, planned, priced

CELLS, STATES_PER_CELL = 80, 5
MODELS = (
    *("qwen3.6-35b-a3b", "deepseek-v3", "gpt-oss-120b", "gpt-oss-20b", "glm-4.5-air", "llama-3.1-70b", "llama-3.1-8b"),
    *("qwen3-30b-a3b", "kimi-k2", "minimax-m2.5", "gemma-4-26b-a4b", "mimo-v2-flash", "deepseek-v3.2", "mixtral-8x7b"),
    *("qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "llama-4-scout", "qwen3-8b", "glm-5", "deepseek-v4-flash"),
    *("kimi-k3", "step-3.5-flash", "qwen3.6-27b", "minimax-m3"),
)
GPUS = ("h100", "h200", "b200", "a100", "l40s", "mi300x", "h20", "gb200", "rtx-5090", "b300", "rtx-pro-6000", "l4")
ENGINES = ("vllm", "sglang", "trtllm")
DRAFTERS = ("own", "ngram")
TOLERANCE = 0.01


def cells(folder: Path, draw: random.Random) -> Iterator[BuiltCell]:
    """Random ones that fit."""
    found = 0
    while found < CELLS:
        model, gpu, engine = draw.choice(MODELS), draw.choice(GPUS), draw.choice(ENGINES)
        outcome = build_cell((model, gpu, engine, drafters_of(model, DRAFTERS)), folder)
        if outcome.path is not None:
            found += 1
            yield outcome


def states(cell: BuiltCell, folder: Path, draw: random.Random) -> Iterator[dict[str, Any]]:
    longest = json.loads((folder / str(cell.path)).read_bytes())["contexts"][-1]
    for _ in range(STATES_PER_CELL):
        yield {
            "model": cell.model,
            "gpu": cell.gpu,
            "engine": cell.engine,
            "drafter": draw.choice(drafters_of(cell.model, DRAFTERS)),
            "context": round(math.exp(draw.uniform(math.log(512), math.log(longest)))),
            "acceptance": draw.choice(ACCEPTANCES),
            "batch": round(math.exp(draw.uniform(0.0, math.log(512)))),
        }


def compared(state: dict[str, Any], answer: dict[str, Any]) -> tuple[float, bool]:
    """The largest relative error of a speed-up, and whether a depth differs."""
    plan, here = answer["plan"], answer["here"]
    rows = planned(state, plan["gpus"])["rows"]
    errors = [abs(row["speedup"] / right["speedup"] - 1.0) for row, right in zip(plan["rows"], rows, strict=True)]
    if plan["config"] and here["fits"]:
        errors.append(abs(here["speedup"] / priced(state, plan["gpus"], here["depth"]) - 1.0))
    return max(errors), [row["depth"] for row in plan["rows"]] != [row["depth"] for row in rows]


def main() -> int:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    from tests.explorer.conftest import _setup, folder_served  # noqa: PLC0415

    draw = random.Random(7)
    with TemporaryDirectory() as name, folder_served(Path(name)) as address, sync_playwright() as playwright:
        folder = Path(name)
        built = list(cells(folder, draw))
        wanted = [state for cell in built for state in states(cell, folder, draw)]
        models = tuple(dict.fromkeys(cell.model for cell in built))
        write_pages(folder, Selection(models=models, gpus=GPUS, engines=ENGINES, drafters=DRAFTERS), built, None)
        browser = playwright.chromium.launch(executable_path=_setup().chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}{models[0]}/?gpu={built[0].gpu}&engine={built[0].engine}")
        found = [
            (*compared(state, answer), state)
            for state, answer in zip(wanted, made(answered(page), wanted), strict=True)
        ]
        browser.close()
    found.sort(key=lambda entry: -entry[0])
    wrong = [entry for entry in found if entry[0] > TOLERANCE]
    others = sum(differs for _, differs, _ in found)
    print(
        f"{len(found)} states: {len(wrong)} off by more than {TOLERANCE:.0%}, {others} with other depths; the largest:"
    )
    for error, _, state in found[:5]:
        print(f"{error:.3%} {state}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
