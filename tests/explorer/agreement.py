"""Random states of the page: do its line, strip, bullets, tiles, flags and table agree with each other?

Everything is read from the page as a reader sees it, and the flags by `tests.engine_readers`, as the engine reads them.
`tests/explorer/test_agreement.py` tries 30 states; `python -m tests.explorer.agreement` (in `make test-matrix`) 200.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import EngineConfig
from tests.engine_readers import READERS

if TYPE_CHECKING:
    from playwright.sync_api import Page

STATES = 200
MODELS = (
    *("qwen3.6-35b-a3b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "llama-3.1-8b", "qwen3.6-27b"),
    *("mixtral-8x7b", "deepseek-v3", "glm-4.5-air"),
)
GPUS = ("h200", "h100", "b200", "a100", "mi300x", "l40s", "h20", "rtx-5090")
DRAFTERS = ("", "", "eagle", "dflash", "ngram", "ssd", "free", "dspark")
BATCHES = (1, 4, 16, 64, 256, 512, 1024)
_READ = """() => {
  const text = (id) => document.getElementById(id).textContent;
  const all = (selector, take) => [...document.querySelectorAll(selector)].map(take);
  return {
    says: document.getElementById("answer").dataset.says, line: text("line"), title: text("flags-title"),
    flags: text("flags"), flagsShown: !document.getElementById("flags").hidden, why: text("no-flags"),
    copies: !document.getElementById("copy").disabled, batch: Number(document.getElementById("strip").dataset.batch),
    strip: all("#strip li", (e) => ({
      first: +e.dataset.first, last: +e.dataset.last, depth: +e.dataset.depth, here: e.classList.contains("here"),
    })),
    bullets: all("#bullets li", (e) => e.textContent),
    tiles: Object.fromEntries(
      all("#numbers div", (e) => [e.dataset.tile, e.querySelector("dd").firstChild.textContent])),
    head: all("#rows thead th", (e) => e.textContent),
    rows: all("#rows tbody tr", (e) => [...e.cells].map((c) => c.textContent)),
    marked: all("#rows tr.here", (e) => Number(e.dataset.batch)),
    notices: text("notices"), error: text("error"), serve: text("serve"),
  };
}"""


@dataclass(frozen=True, slots=True)
class State:
    fields: tuple[tuple[str, str], ...]

    @property
    def address(self) -> str:
        return f"/?{urlencode(dict(self.fields))}"


def states(count: int, seed: int = 19) -> Iterator[State]:
    generator = random.Random(seed)
    for index in range(count):
        pick = generator.choice
        fields = {
            "model": pick(MODELS),
            "gpu": pick(GPUS),
            "gpus": pick(("1", "1", "2", "8")),
            "engine": pick(("vllm", "sglang", "trtllm", "llamacpp")),
            "drafter": pick(DRAFTERS),
            "batch": str(pick(BATCHES)),
            "context": str(pick((512, 1024, 8192, 32_768))),
            "acceptance": pick(("", "", "0.35", "0.6", "0.9", "0.7,0.5,0.3", "length:2.4@3")),
            "prices": pick(("", "datasheet")),
            "weights": pick(("", "", "fp8")),
            "depth": pick(("8", "3")),
        }
        if index % 10 == 9:  # a load: simulated, so slower
            fields |= {"concurrency": str(pick((4, 64))), "isl": str(pick((256, 4096))), "osl": "128"}
        yield State(tuple((name, value) for name, value in fields.items() if value))


def shown(page: Page, server: str, state: State) -> dict[str, Any]:
    """What the page says. A model that needs more GPUs gets them; what cannot be answered is shown refused."""
    page.goto(f"{server}{state.address}")
    page.wait_for_selector("#numbers dd, #answer[data-says=refused]", timeout=120_000)
    engine = page.input_value("[name=engine]")
    values: dict[str, Any] = page.evaluate(_READ)
    return values | {"engine": engine}


def faults(seen: dict[str, Any]) -> Iterator[str]:
    """Every contradiction between two parts of the page."""
    if seen["says"] == "refused":  # the page then shows why, and nothing else
        return
    drafting = any(part["depth"] for part in seen["strip"])
    if seen["copies"] != bool(seen["flags"]) or seen["copies"] != seen["flagsShown"]:
        yield f"copy button {seen['copies']} beside flags {seen['flags']!r}"
    if bool(seen["why"]) == seen["copies"]:
        yield f"{seen['why']!r} beside flags {seen['flags']!r}"
    if seen["says"] in ("yes", "only", "up-to") and not seen["copies"]:
        yield f"{seen['line']!r} without flags"
    if seen["copies"] and not drafting:
        yield "flags, and a strip that never drafts"
    if drafting and not seen["copies"] and "leave speculation disabled" in seen["why"]:
        yield f"the strip drafts, there are no flags, and the page says {seen['line']!r}"
    if not seen["bullets"]:
        yield "no bullets"
    if any(word in f"{seen['line']} {seen['bullets']}" for word in ("NaN", "undefined", "null", "Infinity", "--")):
        yield f"not words: {seen['line']} {seen['bullets']}"
    yield from _strip_faults(seen)
    yield from _flag_faults(seen)
    yield from _table_faults(seen)
    yield from _line_faults(seen)


def _strip_faults(seen: dict[str, Any]) -> Iterator[str]:
    strip = seen["strip"]
    if strip[0]["first"] != 1 or any(a["last"] + 1 != b["first"] for a, b in pairwise(strip)):
        yield f"gaps in the strip: {strip}"
    inside = seen["batch"] <= strip[-1]["last"]
    if [part["here"] for part in strip].count(True) != int(inside):
        yield f"batch {seen['batch']} is marked wrongly in {strip}"
    if inside and seen["says"] != "too-large" and not _loaded(seen):  # of a load, the tile has the mean
        depth = next(part["depth"] for part in strip if part["here"])
        if str(depth or "off") != seen["tiles"]["draft"]:
            yield f"the strip drafts {depth} at batch {seen['batch']}, the tile {seen['tiles']['draft']}"


def _flag_faults(seen: dict[str, Any]) -> Iterator[str]:
    """The strip, against the flags as the engine reads them."""
    if not seen["flags"]:
        return
    text, file = seen["flags"], ""
    if text.startswith("cat > "):  # a command that writes its file
        _, file, _, text = text.split("\n", 3)
    if text.strip() not in seen["serve"] and seen["engine"] != "trtllm":
        yield "the whole command lacks the flags"
    config = EngineConfig(text=text, schedule=Schedule.fixed(0, last=1), file_text=file or None)
    for part in seen["strip"]:
        for batch in (part["first"], part["last"]):
            depth = READERS[seen["engine"]](config, batch)
            if depth != part["depth"]:
                yield f"at batch {batch} the strip drafts {part['depth']}, the flags {depth}"


def _loaded(seen: dict[str, Any]) -> bool:
    return "tpot" in seen["tiles"]


def _table_faults(seen: dict[str, Any]) -> Iterator[str]:
    for cells in seen["rows"]:
        row = dict(zip(seen["head"], cells, strict=True))
        batch = int(re.sub(r"\D", "", row["batch"].partition("(")[0]))
        depth = next((part["depth"] for part in seen["strip"] if part["first"] <= batch <= part["last"]), None)
        fits = "does not fit" not in row["batch"]
        if fits and depth is not None and depth != int(row["draft"]):
            yield f"at batch {batch} the table drafts {row['draft']}, the strip {depth}"
        if fits and depth is None:
            yield f"batch {batch} fits in the table and not in the strip"
        if batch == seen["batch"] and not _loaded(seen) and row["speed-up"] != seen["tiles"]["speed-up"]:
            yield f"speed-up {row['speed-up']} in the table, {seen['tiles']['speed-up']} in the tile"
        if batch == seen["batch"] and not fits and seen["says"] != "too-large":
            yield f"batch {batch} does not fit, and the page says {seen['line']!r}"


def _line_faults(seen: dict[str, Any]) -> Iterator[str]:
    refused = not seen["copies"]  # then the line is about the best draft, and the tile about plain decoding
    numbers = [] if refused else re.findall(r"(\d+\.\d+)×", seen["line"])
    speedup = float(seen["tiles"]["speed-up"].rstrip("×"))
    if numbers and float(numbers[0]) != speedup:
        yield f"{seen['line']!r} beside a speed-up of {speedup}"
    if (seen["says"] == "uncertain") != seen["line"].startswith("Uncertain: "):
        yield f"{seen['line']!r} is marked as {seen['says']}"
    if seen["says"] == "yes" and speedup < 1.0:
        yield f"{seen['line']!r}, and a speed-up of {speedup}"
    if seen["says"] == "no" and seen["copies"] and speedup > 1.004:
        yield f"{seen['line']!r}, and a speed-up of {speedup}"
    advised_off = seen["says"] == "no" and _loaded(seen) and seen["copies"]
    if advised_off != ("leave them out" in seen["title"]):
        yield f"{seen['line']!r} above {seen['title']!r}"


def main() -> int:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    from tests.explorer.conftest import _setup, running  # noqa: PLC0415

    wrong, said = 0, Counter[str]()
    with running() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_setup().chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 500})
        for index, state in enumerate(states(STATES), start=1):
            seen = shown(page, server, state)
            said[seen["says"]] += 1
            for fault in faults(seen):
                wrong += 1
                print(f"{state.address}: {fault}")
            if index % 20 == 0:
                print(f"{index}/{STATES} states of the page, {wrong} contradictions; {dict(said)}", flush=True)
        browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
