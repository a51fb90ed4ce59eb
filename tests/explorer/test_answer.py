"""The answer of the page: its word and colour follow the whole verdict, which is the command line's."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from specmargin.cli.main import run
from tests.explorer.test_api import planned

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
LOADED = ("--concurrency", "256", "--isl", "1000", "--osl", "1000")


def answered(page: Page) -> Page:
    page.wait_for_selector("#numbers dd", timeout=120_000)
    return page


def says(page: Page) -> str | None:
    return page.get_attribute("#answer", "data-says")


def dot(page: Page) -> str:
    style = "getComputedStyle(document.querySelector('#line'), '::before')"
    return str(page.evaluate(f"() => {style}.borderTopColor"))


def tile(page: Page, name: str) -> str:
    return " ".join(page.inner_text(f"[data-tile='{name}'] dd").split())


def test_a_yes_with_a_limit_is_not_marked_as_a_warning(open_page: Open) -> None:
    limited = answered(open_page("/?prices=laws&model=qwen3-8b&batch=4"))
    assert limited.inner_text("#line").startswith("Yes, up to batch ") and says(limited) == "up-to"
    assert dot(limited) == "rgb(22, 138, 125)"
    paid_for = answered(open_page("/?prices=laws"))
    assert (
        paid_for.inner_text("#line").startswith("Only if 161 sequences at a time are enough: ")
        and says(paid_for) == "only"
    )
    assert dot(paid_for) != dot(limited)


def test_a_gain_whose_first_tokens_come_far_later_is_no_plain_yes(open_page: Open) -> None:
    """Preset Batch: 1.2 times the tokens per second, but requests queue for seconds."""
    page = answered(open_page("/?prices=laws"))
    green = dot(answered(open_page("/?prices=laws&model=qwen3-32b&acceptance=0.9&batch=1")))
    assert green == "rgb(22, 138, 125)"
    page.select_option("#preset", "batch")
    page.wait_for_selector("#line:has-text('concurrency 256')", timeout=120_000)
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", *LOADED)
    assert plan["advice"] == "speculate-with-slower-first-token"
    assert page.inner_text("#line") == plan["verdict"].splitlines()[0]
    assert page.inner_text("#line").startswith("Only if a time to first token of ") and says(page) == "only"
    assert dot(page) != green
    service = plan["service"]
    side = service["speculating"]
    assert side["ttft_seconds"] > 10 > 20 * service["plain"]["ttft_seconds"]
    assert tile(page, "ttft").startswith(f"{side['ttft_seconds']:.1f} s ")  # not 12094.31 ms
    assert tile(page, "draft").startswith(f"{side['depth']:.1f} on average at batch {side['sequences']:.0f},")


def test_a_range_that_spans_one_is_uncertain_in_its_own_colour_with_what_to_measure(open_page: Open) -> None:
    colours = []
    for batch in (4, 64):
        page = answered(open_page(f"/?prices=laws&model=qwen3-30b-a3b&drafter=ngram&engine=trtllm&batch={batch}"))
        arguments = ("qwen3-30b-a3b", "--gpu", "h200", "--prices", "laws", "--drafter", "ngram", "--engine", "trtllm")
        plan = planned(*arguments, batch=batch)
        row = next(row for row in plan["rows"] if row["batch"] == batch)
        spans = row["depth"] > 0 and row["speedup_low"] <= 1 <= row["speedup_high"]
        assert not spans or (says(page) == "uncertain" and page.inner_text("#line").startswith("Uncertain: "))
        colours.append((says(page), dot(page)))
        if spans:
            said = page.inner_text("#bullets")
            assert "Largest uncertainty: " in said and "narrow it with specmargin " in said
    assert "uncertain" in dict(colours)
    known = answered(open_page("/?prices=laws&model=qwen3-32b&acceptance=0.9&batch=1"))
    assert dot(known) not in [colour for said, colour in colours if said == "uncertain"]


def test_an_answer_without_drafts_names_the_load_and_no_range_or_drafter(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&model=llama-3.1-8b&acceptance=0.02&concurrency=4&isl=4096&osl=64"))
    assert " at concurrency 4 with eagle, likely " in page.inner_text("#line")
    assert (tile(page, "draft"), tile(page, "speed-up")) == ("off", "1.00×")
    assert re.search(r"drafts of \d|accept length", tile(page, "break-even"))
    assert "undefined" not in page.inner_text("main")


def test_a_missed_latency_target_is_in_the_line_and_its_colour(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&batch=24&tpot_slo=3"))
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--tpot-slo", "3", batch=24)
    assert plan["advice"] == "misses-target" and says(page) == "only"
    assert page.inner_text("#line") == plan["verdict"].splitlines()[0]
    assert page.inner_text("#line").startswith("Not enough: ")


def test_one_more_token_is_one_number_on_page_and_command_line(kept_page: Page) -> None:
    shown = tile(kept_page, "one more token").split()[0].replace("−", "-")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run("plan", ["qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--at-batch", "16", "--explain"])
    row = next(line for line in out.getvalue().splitlines() if re.match(r" *16 .*%", line))
    assert shown in row.split()
    assert "hurdle" not in kept_page.inner_text("main").lower()


def test_what_is_borrowed_is_said_beside_the_answer(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&model=deepseek-v3&gpus=8"))
    assert "acceptance: borrowed; routing: borrowed" in page.inner_text("#subject")
    said = page.locator("#bullets li[data-topic=borrowed]").all_inner_texts()
    assert any(text.startswith("Acceptance is borrowed: Qwen3.6-35B-A3B MTP head") for text in said)
    assert any(text.startswith("Routing is borrowed: ") and "qwen3.6-35b-a3b" in text for text in said)


@pytest.mark.parametrize(
    ("model", "title"),
    [
        ("llama-3.1-8b", "an EAGLE-3 head (you need one)"),
        ("qwen3.6-35b-a3b", "the model's MTP head"),
        ("gemma-4-12b", "google/gemma-4-12B-it-assistant (MTP head)"),
    ],
)
def test_the_drafter_is_called_what_it_is(client: httpx.Client, model: str, title: str) -> None:
    answer = client.get("/api/view", params={"model": model, "prices": "laws"}).json()["answers"][0]
    assert answer["here"]["drafter_titles"][""] == title


def test_the_page_shows_the_drafters_titles(kept_page: Page) -> None:
    options = kept_page.locator("[name=drafter] option").all_text_contents()
    assert options[0] == "default: the model's MTP head"
    assert "dflash: z-lab/Qwen3.6-35B-A3B-DFlash (DFlash head)" in options
    assert "the model's MTP head" in tile(kept_page, "draft")


def test_the_tooltip_of_a_speed_up_says_what_is_compared(open_page: Open, kept_page: Page) -> None:
    kept_page.hover("[data-tile='speed-up'] .term")
    assert kept_page.inner_text("#tip").startswith("Output tokens per second with these flags")
    page = answered(open_page("/?prices=laws&model=llama-3.1-8b&qps=2&isl=500&osl=100"))
    assert "same cost at this load" in page.inner_text("[data-tile='$/M tokens']")  # both serve the same requests
    page.hover("[data-tile='speed-up'] .term")
    assert page.inner_text("#tip").startswith("Time per output token (TPOT) without speculation over")


def test_copied_commands_carry_the_batch_and_give_the_pages_numbers(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&engine=llamacpp&batch=24"))
    written = page.evaluate(
        "async () => { const { commandLine, python } = await import('/static/commands.js');"
        " const { parse } = await import('/static/state.js');"
        " return [commandLine(parse(location.search)), python(parse(location.search))]; }"
    )
    words = shlex.split(written[0])
    assert words[:2] == ["specmargin", "plan"] and "at_batch=24" in written[1]
    plan = planned(*[word for word in words[2:] if word not in ("--at-batch", "24")], batch=24)
    assert words[words.index("--at-batch") + 1] == "24"
    assert [page.inner_text("#line")] == plan["verdict"].splitlines()[:1]
    row = next(row for row in plan["rows"] if row["batch"] == 24)
    assert tile(page, "speed-up").startswith(f"{row['speedup']:.2f}×")


def test_sglangs_flags_are_one_command_that_writes_its_file(open_page: Open, tmp_path: Path) -> None:
    page = answered(open_page("/?prices=laws&engine=sglang"))
    command = page.text_content("#flags") or ""
    assert page.inner_text("#copy") == "Copy command" and "python -m sglang.launch_server" in command
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\n')
    (tmp_path / "python").chmod(0o755)
    script = f"PATH=$PWD:$PATH\n{command}\n"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    name = arguments[arguments.index("--speculative-adaptive-config") + 1]
    plan = planned("qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws", "--engine", "sglang")
    assert json.loads((tmp_path / name).read_text()) == json.loads(plan["config_file"])


def test_a_batch_that_does_not_fit_saves_no_money(open_page: Open) -> None:
    page = answered(open_page("/?prices=laws&batch=512&gpu_hour_price=3"))
    assert says(page) == "too-large" and page.inner_text("#line").startswith("No: batch 512 does not fit")
    assert page.locator("[data-tile='$/M tokens']").count() == 0 and "saves" not in page.inner_text("#verdict")


def test_gpus_that_are_left_out_of_a_comparison_are_named(open_page: Open, client: httpx.Client) -> None:
    parameters = {"model": "llama-3.1-8b", "drafter": "eagle"}
    fitting = client.get("/api/alternatives/gpu", params=parameters).json()
    page = answered(open_page("/?model=llama-3.1-8b&drafter=eagle"))
    page.click("#all-gpus")
    page.wait_for_selector("#compared tbody tr >> nth=1", timeout=120_000)
    shown = page.locator("#compared tbody th").all_inner_texts()
    note = page.inner_text("#compare-note")
    left = note.removeprefix("At most 12 scenarios; left out: ").rstrip(".").split(", ") if note else []
    assert sorted([*shown, *left]) == sorted(fitting) and len(left) > 1
