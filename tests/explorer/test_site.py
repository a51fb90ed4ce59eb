"""The static site in a real Chromium: its numbers are those of `plan --json`, and it asks nobody for anything."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from specmargin.answers.scenarios import scenario_of
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.schedule import DepthTable, make_schedule
from specmargin.decisions.smoothing import zigzags
from specmargin.formats.rules import DepthRule, choose
from specmargin.verbs.plan import plan
from specmargin.verbs.plan.drafter_plan import DEFAULT_BATCHES
from specmargin.verbs.plan.request_schema import PlanRequest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("vl_convert")
from specmargin.show.site.build import BuiltCell, Selection, build_cells
from specmargin.show.site.pages import write_pages
from tests.explorer.command_agreement import answered as answered_at
from tests.explorer.command_agreement import differences, site_addresses
from tests.explorer.conftest import folder_served

Open = Callable[..., "Page"]
#: Dense and MoE, one GPU and several, a borrowed routing and one of its own, windows; every engine.
CELLS = {
    ("qwen3.6-35b-a3b", "h200"): ("vllm", "sglang"),
    ("qwen3-8b", "h200"): ("sglang", "llamacpp"),
    ("gpt-oss-120b", "b200"): ("trtllm",),
}
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp")
GRID_CONTEXTS, BETWEEN = (1024, 2896, 8192, 32_768, 65_536), (600, 1500, 3000, 5000, 12_000, 24_000, 50_000, 100_000)
ACCEPTANCES = (None, "0.55", "0.7", "0.83", "0.9", "0.85,0.7,0.55,0.4", "length:2.6@3", "accepted:1.9@4")
#: Keys of `plan --json` that the page does not read, and of its rows.
LEFT_OUT = {
    *("schema", "version", "options", "survival", "early_stop", "routing_effect", "inputs", "weakest_source", "check"),
    *("pays_at_batches_without_graph_limit", "stops_at_batch", "verdict_details", "memory"),
    "main_memory",  # the static site has no experts in main memory
}
LEFT_OUT_OF_ROWS = {"hurdle_by_component", "communication_share"}
ROW_KEYS = (
    "speedup",
    "goodput_tokens_per_second",
    "no_spec_tokens_per_second",
    "tpot_seconds",
    "gpu_hours_per_million_tokens",
    "break_even_acceptance",
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    whole = Selection(
        models=tuple(dict.fromkeys(model for model, _ in CELLS)),
        gpus=tuple(dict.fromkeys(gpu for _, gpu in CELLS)),
        engines=ENGINES,
        drafters=("own", "dflash", "ngram"),
    )
    outcomes = []
    for (model, gpu), engines in CELLS.items():
        part = Selection(models=(model,), gpus=(gpu,), engines=engines, drafters=whole.drafters)
        outcomes += build_cells(part, folder, 1)[0]
    built = {(outcome.model, outcome.gpu, outcome.engine) for outcome in outcomes}
    absent = [cell for cell in product(whole.models, whole.gpus, whole.engines) if cell not in built]
    outcomes += [BuiltCell(key="", model=m, gpu=g, engine=e, refused=f"{m} is too large for {g}") for m, g, e in absent]
    write_pages(folder, whole, outcomes, "https://example.org/moe")
    return folder


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """In a folder of its host, as a page of a project is."""
    with folder_served(site.parent) as address:
        yield f"{address}{site.name}/"


@pytest.fixture
def visit(browser: Browser, served: str) -> Iterator[Open]:
    """Open a path of the site; at the end no error, no missing file and no request to anybody else."""
    pages: list[Page] = []
    faults: list[str] = []

    def opened(path: str = "", *, width: int = 1280, **options: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: faults.append(f"exception: {error}"))
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda asked: None if asked.url.startswith((served, "data:")) else faults.append(asked.url))
        page.on("response", lambda got: None if got.status < 400 else faults.append(f"{got.status} {got.url}"))
        page.goto(f"{served}{path if path[:1] not in ('', '?') else 'explore/' + path}")
        return page

    yield opened
    for page in pages:
        page.close()
    assert faults == []


def answered(page: Page) -> Page:
    page.wait_for_selector("#numbers dd")
    return page


# --- numbers ---


def scenarios() -> list[dict[str, Any]]:
    """On the grid and between its contexts, in every engine and with every drafter."""
    draw = random.Random(19)
    found = []
    for number in range(56):
        (model, gpu), engines = list(CELLS.items())[number % len(CELLS)]
        context = draw.choice(GRID_CONTEXTS if number % 2 else BETWEEN)
        if model == "qwen3-8b":
            context = min(context, 8192 if number % 2 else 24_000)
        found.append(
            {
                "model": model,
                "gpu": gpu,
                "engine": engines[number // 3 % len(engines)],
                "drafter": draw.choice(("", "dflash", "ngram")),
                "context": context,
                "acceptance": draw.choice(ACCEPTANCES),
                "batch": draw.choice((1, 7, 16, 40, 64, 100, 256, 300)),
            }
        )
    return found


def planned(scenario: dict[str, Any], gpus: int) -> dict[str, Any]:
    given = {name: value for name, value in scenario.items() if name != "batch" and value not in ("", None)}
    return _planned(gpus, at_batch=scenario.get("batch", 16), **given)


@cache
def _planned(gpus: int, **given: Any) -> dict[str, Any]:
    """Several tests have the same states."""
    return plan(PlanRequest(**given, gpus=gpus)).to_dict()


def made(page: Page, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of the site's own provider, one state at a time."""
    texts = [{name: "" if value is None else str(value) for name, value in state.items()} for state in states]
    answers: list[dict[str, Any]] = page.evaluate(
        """async (states) => {
          const { modules: { api: { answer } } } = await import(new URL("static/app.js", document.baseURI));
          const all = [];
          for (const state of states) all.push((await answer([state])).answers[0]);
          return all.map(({ plan, here }) => ({ plan, here }));
        }""",
        texts,
    )
    return answers


def test_the_numbers_are_those_of_the_command_line(visit: Open) -> None:
    """On the grid: the same depths and flags, and speed-ups to 0.1%. Between contexts: speed-ups to 1%."""
    states = scenarios()
    assert len(states) >= 40
    page = answered(visit())
    faults: list[Any] = []
    for state, answer in zip(states, made(page, states), strict=True):
        plan = answer["plan"]
        expected = planned(state, plan["gpus"])
        on_grid = state["context"] in GRID_CONTEXTS
        if on_grid:
            same = (
                "config",
                "config_supported",
                "config_file",
                "config_needs",
                "config_notes",
                "schedule",
                "serve",
                "largest_batch",
            )
            faults += [(state, key, plan[key], expected[key]) for key in same if plan[key] != expected[key]]
        tolerance = 1e-3 if on_grid else 1e-2
        assert [row["batch"] for row in plan["rows"]] == [row["batch"] for row in expected["rows"]]
        for row, right in zip(plan["rows"], expected["rows"], strict=True):
            keys = ROW_KEYS if on_grid else ROW_KEYS[:1]
            if on_grid and row["depth"] != right["depth"]:
                faults.append((state, row["batch"], row["depth"], right["depth"]))
            faults += [
                (state, row["batch"], key, row[key], right[key])
                for key in keys
                if not close(row[key], right[key], tolerance)
            ]
    assert faults == []


def test_any_batch_and_its_benchmark_are_those_of_the_command_line(visit: Open) -> None:
    """The row of the slider, between the batches of the table too; and the commands of every engine."""
    states = [state | {"context": tokens} for state in scenarios()[:12] for tokens in (1024, 3100)]
    states += [state | {"batch": 1} for state in states]
    page = answered(visit())
    for state, answer in zip(states, made(page, states), strict=True):
        plan, here, on_grid = answer["plan"], answer["here"], state["context"] == 1024
        expected = planned(state, plan["gpus"])
        speedup = priced(state, plan["gpus"], here["depth"]) if plan["config"] else 1.0
        assert close(here["speedup"], speedup, 1e-3 if on_grid else 1e-2), state
        if state["batch"] == expected["rows"][0]["batch"]:
            for name, right in expected["check"].items():
                if name != "note":  # about lengths that vary, which a plan by batch has not
                    shown = here["check"][name]
                    assert shown == right if isinstance(right, str) else close(shown, right, 1e-2), (state, name)
    assert {state["engine"] for state in states} == set(ENGINES)


def priced(state: dict[str, Any], gpus: int, depth: int) -> float:
    """The speed-up of a depth at the state's batch."""
    given = {name: value for name, value in state.items() if name != "batch" and value not in ("", None)}
    grid = Pricer(scenario_of(PlanRequest(**given, gpus=gpus))[1]).grid([state["batch"]], max(depth, 1))
    return float(grid.goodput[0, depth] / grid.no_spec_goodput[0])


def close(value: float | None, right: float | None, tolerance: float) -> bool:
    if value is None or right is None:
        return value is right
    return abs(value - right) <= tolerance * abs(right)


def test_the_rest_of_a_plan_on_the_grid(visit: Open) -> None:
    """Ranges, hurdles, bottlenecks, where it pays, and what would change the answer."""
    states = [state for state in scenarios() if state["context"] in GRID_CONTEXTS][:14]
    page = answered(visit())
    for state, answer in zip(states, made(page, states), strict=True):
        plan, expected = answer["plan"], planned(state, answer["plan"]["gpus"])
        assert set(expected) - LEFT_OUT <= set(plan)
        assert set(expected["rows"][0]) - LEFT_OUT_OF_ROWS <= set(plan["rows"][0])
        for key in ("advice", "surely_pays_at_batches", "uncertain_at_batches"):
            assert plan[key] == expected[key], (state, key)
        for key in ("no_spec_largest_batch", "stops_at_context", "weights", "kv_cache", "prices", "drafter"):
            assert plan[key] == expected[key], (state, key)
        assert plan["warnings"] == expected["warnings"], state
        assert plan["verdict"] == expected["verdict"], state
        for key, value in expected["headline"].items():
            assert close(plan["headline"][key], value, 2e-3), (state, key)
        assert close(plan["switch_acceptance"], expected["switch_acceptance"], 1e-3), state
        assert close(plan["peak_tokens_per_second"], expected["peak_tokens_per_second"], 1e-2), state
        for row, right in zip(plan["rows"], expected["rows"], strict=True):
            where = (state, row["batch"])
            assert row["fits"] == right["fits"], where
            assert (row["better_depth"], row["hurdle_note"]) == (right["better_depth"], right["hurdle_note"]), where
            assert row["bound_by"] == right["bound_by"], where
            experts = 2e-3 if row["batch"] in DEFAULT_BATCHES else 5e-3  # between those it is interpolated
            for key, tolerance in {"speedup_low": 2e-3, "speedup_high": 2e-3, "distinct_experts": experts}.items():
                assert close(row[key], right[key], tolerance), (*where, key, row[key], right[key])
            # Between sampled batches the price of one position is interpolated over steps of kernels' tiles.
            if right["hurdle"] is not None and row["batch"] in DEFAULT_BATCHES:
                assert abs(row["hurdle"] - right["hurdle"]) < 5e-3, where


def test_its_pages_say_what_their_commands_print(visit: Open, served: str) -> None:
    """Verdict with its limits and unknowns, bottleneck, break-even, memory, warnings and sources, at any batch."""
    page, wrong, checked = visit(), [], 0
    for path in site_addresses(24, CELLS):
        if answered_at(page, served + path):
            checked += 1
            wrong += [f"{path}: {text}" for text in differences(page)]
    assert not wrong, "\n".join(wrong)
    assert checked >= 20


RULES = (
    DepthRule(),
    DepthRule(ends=(1, 2, 4, 8, 12, 16, 20, 24, 32)),
    DepthRule(never_off="never off", deepest_first="deepest first", beyond="keeps"),
    DepthRule(one_depth="one depth"),
)


def test_schedules_are_those_of_python(visit: Open) -> None:
    """Of random prices, many of which zigzag: by the rules of every engine, to the last batch."""
    cases, zigzag = [], 0
    for seed in range(60):
        random_prices = np.random.default_rng(seed)
        best = np.repeat(random_prices.integers(0, 6, 40), 1 + seed % 4)[:40, np.newaxis]
        speedup = 1.6 - 0.006 * np.abs(np.arange(6) - best) - 0.004 * random_prices.random((40, 6))
        allowed = np.add.outer(np.arange(40), np.arange(6)) <= 40
        fits = np.array([400, 300, 280, 260, 250, 250])
        prices = {"speedup_by_batch_depth": speedup, "allowed_by_batch_depth": allowed, "fits_by_depth": fits}
        table, rule = DepthTable(batches=np.arange(1, 41), **prices), RULES[seed % len(RULES)]
        chosen = choose(rule, table, (1, 2, 4, 8, 16, 32), 0.01)
        unsmoothed = make_schedule(table, min_gain=0.01)
        zigzag += zigzags(unsmoothed) and not zigzags(chosen.schedule)
        said = {"batches": table.batches, "speedup": speedup, "allowed": allowed, "fits": fits}
        wanted = [[entry.first, entry.last, entry.depth] for entry in chosen.schedule.ranges]
        cases.append(({name: array.tolist() for name, array in said.items()}, asdict(rule), wanted, [*chosen.limits]))
    assert zigzag >= 10
    found = answered(visit()).evaluate(
        """async (cases) => {
          const { modules: { rules: { choose } } } = await import(new URL("static/app.js", document.baseURI));
          return cases.map(([table, rule]) => choose(rule, table, [1, 2, 4, 8, 16, 32], 0.01));
        }""",
        [[table, rule] for table, rule, _, _ in cases],
    )
    assert [[each["schedule"], each["limits"]] for each in found] == [
        [wanted, limits] for _, _, wanted, limits in cases
    ]


# --- the page ---


_ANSWERED = """
new MutationObserver(() => {
  if (!window.answeredAt && document.querySelector("#numbers dd")) window.answeredAt = performance.now();
}).observe(document, { childList: true, subtree: true });
"""
_LOADED = """() => performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
  .map((entry) => [entry.name, entry.startTime < window.answeredAt, entry.encodedBodySize])"""


def test_little_is_loaded_before_the_answer(browser: Browser, served: str) -> None:
    """Charts and their library come after it."""
    page = browser.new_page()
    page.add_init_script(_ANSWERED)
    page.goto(f"{served}explore/")
    answered(page)
    page.locator("#figure-overlay-speedup").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-overlay-speedup svg .mark-line path")
    loaded = page.evaluate(_LOADED)
    before = {name.removeprefix(served): size for name, early, size in loaded if early}
    assert "data/qwen3.6-35b-a3b/h200-vllm/1024.bin" in before and "static/lib/vega-bundle.js" not in before
    assert sum(before.values()) <= 300_000, before
    assert any(name.endswith("vega-bundle.js") for name, early, _ in loaded if not early)
    page.close()


def test_a_reader_moves_the_controls_and_sends_the_link(visit: Open, served: str) -> None:
    page = answered(visit())
    assert page.inner_text("#line").startswith("Only if 161 sequences at a time are enough: ")
    first = page.inner_text("#flags")
    page.eval_on_selector("#alpha", "(e) => { e.value = 0.5; e.dispatchEvent(new Event('input', { bubbles: true })); }")
    page.wait_for_function("(old) => document.querySelector('#flags').textContent !== old", arg=first)
    page.select_option("select[name=engine]", "sglang")
    page.wait_for_function("() => document.querySelector('#flags').textContent.includes('--speculative-num-steps')")
    page.select_option("select[name=model]", "qwen3-8b")
    page.wait_for_function("() => document.querySelector('#subject').textContent.startsWith('qwen3-8b')")
    assert page.url == f"{served}qwen3-8b/?engine=sglang&acceptance=0.50"
    again = answered(visit(page.url.removeprefix(served)))
    assert again.inner_text("#line") == page.inner_text("#line")
    assert again.inner_text("#flags") == page.inner_text("#flags")


def test_back_and_forward_lead_through_the_folders_of_models(visit: Open, served: str) -> None:
    page = answered(visit("?engine=sglang"))
    first = page.inner_text("#line")
    page.select_option("select[name=model]", "qwen3-8b")
    page.wait_for_selector("#subject:has-text('qwen3-8b')")
    page.select_option("select[name=model]", "qwen3.6-35b-a3b")
    page.wait_for_selector("#subject:has-text('qwen3.6-35b-a3b')")
    page.go_back()
    page.wait_for_selector("#subject:has-text('qwen3-8b')")
    assert page.url == f"{served}qwen3-8b/?engine=sglang"
    page.go_back()
    page.wait_for_function("(line) => document.querySelector('#line').textContent === line", arg=first)
    page.go_forward()
    page.wait_for_selector("#subject:has-text('qwen3-8b')")
    page.reload()
    page.wait_for_selector("#subject:has-text('qwen3-8b')")


def test_a_pasted_id_is_a_model_of_the_site_or_a_command(visit: Open) -> None:
    page = answered(visit("?engine=sglang"))
    page.fill("#paste", "Qwen/Qwen3-8B")
    page.keyboard.press("Enter")
    page.wait_for_selector("#subject:has-text('qwen3-8b')")
    for text, model in (("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct"), ('{"a": 1}', "config.json")):
        page.fill("#paste", text)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#paste-note code:has-text('specmargin plan {model} --gpu h200 --engine sglang')")
    assert "qwen3-8b" in page.inner_text("#subject")
    absent = visit("?model=kimi-k2&batch=4")
    absent.wait_for_selector("#fixes code:has-text('specmargin plan kimi-k2 --gpu h200')")
    assert absent.inner_text("#line") == "No answer for kimi-k2 on h200"
    absent.click("#fixes button:has-text('qwen3.6-35b-a3b')")
    assert answered(absent).inner_text("#line").startswith("Only if 161 sequences at a time ")


def test_controls_outside_the_grid_are_gone(visit: Open) -> None:
    page = answered(visit())
    for name in ("gpus", "parallel", "weights", "kv_cache", "prices", "routing", "concurrency", "depth"):
        assert page.locator(f"[name={name}]").first.is_hidden(), name
    for name in ("model", "gpu", "engine", "drafter", "acceptance", "gpu_hour_price"):
        assert page.locator(f"[name={name}]").is_visible(), name
    assert (
        page.locator("#file").is_hidden() and page.locator("#json").is_hidden() and page.locator("#report").is_hidden()
    )
    assert page.get_attribute("#context", "min") == "9"


def test_what_the_site_lacks_is_refused_in_one_sentence(visit: Open, served: str) -> None:
    page = visit("?gpu=b200")  # not built for the first model
    page.wait_for_selector("#fixes button")
    assert "too large for b200" in page.inner_text("#error") and page.url == f"{served}explore/?gpu=b200"
    assert page.inner_text("#line") == "No answer for qwen3.6-35b-a3b on b200" and not page.is_visible("#verdict")
    page.click("#fixes button:has-text('H200')")
    answered(page)
    page.go_back()
    page.wait_for_selector("#line:has-text('No answer')")
    assert page.url == f"{served}explore/?gpu=b200"
    typo = answered(visit("?acceptance=much&engine=vlm"))
    typo.wait_for_selector("#notices:not([hidden])")
    assert "vlm" in typo.inner_text("#notices")


def test_drafters_are_compared_in_one_chart(visit: Open) -> None:
    page = answered(visit())
    page.click("#all-drafters")
    page.wait_for_selector("#sides li:nth-child(3)")
    page.wait_for_selector("#figure-overlay-speedup svg .mark-line path", state="attached")
    assert "vs=" in page.url
    assert page.locator("#compared tbody tr").count() == 3


def test_prices_per_hour_become_savings(visit: Open) -> None:
    page = answered(visit("?gpu_hour_price=3"))
    assert "saves" in page.inner_text("[data-tile='$/M tokens']")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "story/"])
def test_nothing_serious_for_axe(visit: Open, axe_source: str, theme: str, path: str) -> None:
    page = visit(path, width=400 if theme == "dark" else 1280, color_scheme=theme)
    page.wait_for_selector("#paragraphs section" if path else "#numbers dd")
    page.evaluate(axe_source)
    found = page.evaluate("() => axe.run()")["violations"]
    assert [entry["id"] for entry in found if entry["impact"] in ("serious", "critical")] == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_the_story_is_part_of_it(visit: Open) -> None:
    page = answered(visit())
    page.click("#to-story")
    page.wait_for_selector("#paragraphs section")
    assert page.locator("#paragraphs section").count() >= 6
    page.click("#to-explore")
    answered(page)


def test_an_answer_is_embedded_with_its_question(visit: Open, served: str) -> None:
    page = answered(visit("?engine=sglang&batch=4"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#embed")
    page.wait_for_selector("#done:has-text('Embed copied')")
    code = page.evaluate("() => navigator.clipboard.readText()")
    address = html.unescape(code.split('src="')[1].split('"')[0])
    assert address.startswith(f"{served}embed/?model=qwen3.6-35b-a3b") and 'title="Does speculation pay for ' in code
    framed = answered(visit(address.removeprefix(served)))
    assert framed.inner_text("#question") == page.title() == framed.title()
    assert "at batch 4" in framed.title() and framed.inner_text("#line") == page.inner_text("#line")
    assert not framed.is_visible("#controls") and not framed.is_visible("#engine")
    assert framed.url == address
    assert framed.eval_on_selector("#to-page", "e => e.href").startswith(f"{served}qwen3.6-35b-a3b/?")


def test_every_model_has_a_preview_card(site: Path) -> None:
    for model, _ in CELLS:
        text = (site / model / "index.html").read_text()
        tags = dict(re.findall(r'<meta property="(og:[a-z:]+)" content="([^"]*)">', text))
        assert tags["og:image"] == f"https://example.org/moe/cards/{model}.png"
        assert tags["og:url"] == f"https://example.org/moe/{model}/"
        assert tags["og:title"].startswith(f"Does speculation pay for {model} on ")
        assert model in tags["og:description"]
        assert (site / "cards" / f"{model}.png").read_bytes().startswith(b"\x89PNG")
