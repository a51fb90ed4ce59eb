"""Random states of the page against the command line that the page itself offers to copy.

Of each state: the verdict with its limits and its largest unknown, bottleneck, break-even, hurdle, warnings and
sources, at the marked batch and in every row of the table. `tests/explorer/test_agreement.py` tries a sample of the
local page's, `tests/explorer/test_site.py` of the static site's; `python -m tests.explorer.command_agreement` (in
`make test-matrix`) 200 and 60.
"""

from __future__ import annotations

import random
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from specmargin.show.explorer.words import bottleneck
from specmargin.show.site.build import Selection, build_cells
from specmargin.show.site.grids import CONTEXTS
from specmargin.show.site.pages import write_pages
from tests.command_line import payload, run
from tests.explorer.agreement import STATES, states

if TYPE_CHECKING:
    from playwright.sync_api import Page

SITE_STATES = 60
HURDLE_TOLERANCE = 0.005  # of the site, which shows none: it stores what one more position adds in steps of 0.0002
_READ = """async () => {
  const all = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
  navigator.clipboard.writeText = async (text) => { window.copied = text; };
  document.getElementById("copy-command").click();
  const { modules } = await import(new URL("static/app.js", document.baseURI)); // of the static site
  const computed = async () => (await modules.api.answer([modules.state.parse(location.search)])).answers[0].plan;
  const behind = await (modules ? computed() : fetch(document.getElementById("json").href).then((got) => got.json()));
  return {
    hurdles: behind.rows.map(({ batch, hurdle, hurdle_note }) => [batch, hurdle, hurdle_note]),
    command: window.copied, verdict: document.getElementById("sentence").textContent,
    notes: all("#notes li"), sources: all("#sources li"), memory: all('#bullets [data-topic="memory"]').join(" "),
    batch: Number(document.getElementById("strip").dataset.batch),
    tiles: Object.fromEntries([...document.querySelectorAll("#numbers div")].map(
      (e) => [e.dataset.tile, [...e.querySelector("dd").childNodes].map((n) => n.textContent)])),
    head: all("#rows thead th"),
    rows: [...document.querySelectorAll("#rows tbody tr")].map((r) => [...r.cells].map((c) => c.textContent)),
  };
}"""


def answered(page: Page, address: str) -> bool:
    """Whether the state of an address is answered: one that fits nowhere is refused."""
    page.goto(address)
    page.wait_for_selector("#answer[data-says]", timeout=120_000)
    return page.get_attribute("#answer", "data-says") != "refused"


def differences(page: Page) -> Iterator[str]:
    """Between what the page says and the command that it offers."""
    seen: dict[str, Any] = page.evaluate(_READ)
    program, *arguments = shlex.split(seen["command"])
    assert program == "specmargin"
    plan = payload(*arguments)
    if seen["verdict"] != plan["verdict"]:
        yield f"the page says {seen['verdict']!r}, the command {plan['verdict']!r}"
    if absent := [text for text in plan["warnings"] if text not in seen["notes"]]:
        yield f"not on the page: {absent}"
    if seen["sources"] != [f"{name}: {source}" for name, source in plan["sources"].items()]:
        yield f"other sources: {seen['sources']}"
    fitting = plan["largest_batch"] if any(depth for _, _, depth in plan["schedule"]) else plan["no_spec_largest_batch"]
    if seen["memory"] and not re.search(rf"\b{fitting:,}\b", seen["memory"]):
        yield f"{fitting} sequences fit, and the page says {seen['memory']!r}"
    yield from _row_differences(seen, {row["batch"]: row for row in plan["rows"]})
    yield from _hurdle_differences(seen, plan, arguments)


def _hurdle_differences(seen: dict[str, Any], plan: dict[str, Any], arguments: Sequence[str]) -> Iterator[str]:
    """The survival that one more token needs, in the JSON behind both; what it adds, where the page shows it."""
    for (batch, hurdle, note), row in zip(seen["hurdles"], plan["rows"], strict=True):
        right, noted = row["hurdle"], row["hurdle_note"]
        near = hurdle is right or (None not in (hurdle, right) and abs(hurdle - right) <= HURDLE_TOLERANCE)
        if batch != row["batch"] or note != noted or not near:
            yield f"hurdle {hurdle} ({note}) at batch {batch}, in the command {right} ({noted}) at {row['batch']}"
    if "one more token" not in seen["head"]:
        return
    explained = run(*arguments, "--explain").out.replace("-", "−")
    told = dict(_ONE_MORE.findall(explained))
    for cells in seen["rows"]:
        batch, more = (dict(zip(seen["head"], cells, strict=True))[name] for name in ("batch", "one more token"))
        if told[batch.partition(" ")[0]] != more.replace("–", "−"):
            yield f"one more token adds {more} at batch {batch}, in the command {told}"


#: Batch and what one more token adds, of a row of `--explain`.
_ONE_MORE = re.compile(r"^ *([\d,]+) +[\d.,]+ +(?:never|[\d.]+) +([+−][\d.]+%|−) ", re.MULTILINE)


def _row_differences(seen: dict[str, Any], rows: dict[int, dict[str, Any]]) -> Iterator[str]:
    shown = {}
    for cells in seen["rows"]:
        named = dict(zip(seen["head"], cells, strict=True))
        shown[int(re.sub(r"\D", "", named["batch"].partition("(")[0]))] = named
    if missing := set(shown) ^ set(rows):
        yield f"rows of batches {sorted(missing)} are on one side alone"
    for batch, row in rows.items():
        limit, even = bottleneck(row["bound_by"]), _even(row)
        if batch in shown and (shown[batch]["bottleneck"], shown[batch]["break-even"]) != (limit, even):
            yield f"at batch {batch} the table has {shown[batch]}, the command {limit}, {even}"
        if batch != seen["batch"]:
            continue
        component, *rest = seen["tiles"]["bottleneck"]
        if (f"{component} ({rest[0]})" if rest and rest[0] else component) != limit:
            yield f"bottleneck {seen['tiles']['bottleneck']} in the tile, {limit} in the command"
        if seen["tiles"]["break-even"][0] != even:
            yield f"break-even {seen['tiles']['break-even']} in the tile, {even} in the command"


def _even(row: dict[str, Any]) -> str:
    return "never" if row["break_even_acceptance"] is None else f"{row['break_even_acceptance']:.2f}"


# --- states of the static site: what its controls can be set to ---


SITE = {  # dense and MoE, routing borrowed and own, one GPU and several
    ("qwen3.6-35b-a3b", "h200"): ("vllm", "sglang"),
    ("qwen3-8b", "h200"): ("sglang", "vllm"),
    ("gpt-oss-120b", "b200"): ("trtllm",),
    ("deepseek-v3", "h200"): ("vllm",),
}


def write_site(folder: Path) -> None:
    drafters = ("own", "ngram")
    outcomes = []
    for (model, gpu), engines in SITE.items():
        part = Selection(models=(model,), gpus=(gpu,), engines=engines, drafters=drafters)
        outcomes += build_cells(part, folder, 1)[0]
    models, gpus = (tuple(dict.fromkeys(names)) for names in zip(*SITE, strict=True))
    whole = Selection(models=models, gpus=gpus, engines=("vllm", "sglang", "trtllm"), drafters=drafters)
    write_pages(folder, whole, outcomes, None)


def site_addresses(count: int, cells: Mapping[tuple[str, str], Sequence[str]] = SITE, seed: int = 36) -> Iterator[str]:
    """`cells`: engines by model and GPU."""
    generator = random.Random(seed)
    for _ in range(count):
        (model, gpu), engines = generator.choice(list(cells.items()))
        fields = {
            "gpu": gpu,
            "engine": generator.choice(engines),
            "drafter": generator.choice(("", "", "ngram")),
            "batch": str(generator.choice((1, 3, 8, 16, 40, 64, 100, 256, 300))),
            "context": str(generator.choice(CONTEXTS[:13])),  # those of the slider, as far as all of them reach
            "acceptance": generator.choice(("", "", "0.55", "0.8", "0.85,0.7,0.55,0.4", "length:2.6@3")),
        }
        yield f"{model}/?{urlencode({name: value for name, value in fields.items() if value})}"


def main() -> int:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    from tests.explorer.conftest import _setup, folder_served, running  # noqa: PLC0415

    wrong = refused = 0
    with TemporaryDirectory() as name, sync_playwright() as playwright, running() as server:
        write_site(Path(name))
        browser = playwright.chromium.launch(executable_path=_setup().chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 500})
        with folder_served(Path(name)) as site:
            sides = {
                "the page": [f"{server}{state.address}" for state in states(STATES)],
                "the static site": [f"{site}{path}" for path in site_addresses(SITE_STATES)],
            }
            for side, addresses in sides.items():
                for index, address in enumerate(addresses, start=1):
                    found = list(differences(page)) if answered(page, address) else None
                    refused += found is None
                    wrong += len(found or ())
                    for text in found or ():
                        print(f"{address}: {text}", flush=True)
                    if index % 20 == 0:
                        done = f"{index}/{len(addresses)} states of {side}"
                        print(f"{done}: {wrong} differences, {refused} refused", flush=True)
        browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
