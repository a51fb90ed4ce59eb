"""The static site's grids: what their files hold, how exactly, and how a build goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.catalog.accuracy import price_errors
from specmargin.catalog.drafters import find_drafter
from specmargin.catalog.lookup import bundled_model
from specmargin.decisions.certainty import step_inputs
from specmargin.errors import InputError
from specmargin.formats import ENGINES
from specmargin.show.explorer.card import Card, CardRow, card_svg
from specmargin.show.explorer.fewest import enough_gpus
from specmargin.show.site import build, grids
from specmargin.show.site.templates import command_templates, templates
from tests.cell_files import unpacked
from tests.command_line import ended

pytest.importorskip("vl_convert")
CELL = grids.Cell(model="qwen3-8b", gpu="h100", gpus=1, engine="vllm", drafters=("eagle", "ngram"))


# --- the files of a cell ---


@given(st.data())
def test_tables_come_back_to_half_a_quantum(data: st.DataObject) -> None:
    """Of logarithms of seconds, which are between minus and plus a few tens."""
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=3))
    seed = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tables = [seed.uniform(-30.0, 30.0, shape) for shape in shapes]
    for exact, read in zip(tables, unpacked(grids.packed(tables), shapes), strict=True):
        assert np.abs(read - exact).max() <= grids.QUANTUM / 2 * (1 + 1e-6)


def test_a_smooth_table_takes_less_than_a_byte_per_number() -> None:
    smooth = np.log(np.sqrt(np.arange(1.0, 513.0)))
    assert len(grids.packed([np.stack([smooth + depth for depth in range(8)])])) < 8 * smooth.size


def test_the_files_hold_the_prices_to_a_few_millionths() -> None:
    """Plain steps, verify steps and rounds at every batch to 512, at a context of the slider; nothing is left over."""
    files = dict(grids.cell_files(CELL))
    header, pricer = json.loads(files[".json"]), CELL.pricer("eagle")[1]
    tokens, depths = header["contexts"][2], [drafter["depth"] for drafter in header["drafters"]]
    assert {f"/{context}.bin" for context in header["contexts"]} | {".json"} == set(files)
    batches, sampled = len(header["batches"]), len(header["sampled"])
    shapes = [(1, batches), (9, batches), *((depth, batches) for depth in depths)]
    shapes += [(9, batches) for _ in depths for _ in ("more", "bound")] + [(depth, sampled) for depth in depths]
    shapes += [(depth, sampled) for depth in depths for _ in ("low", "high", "unknown")]
    plain, verify, rounds, *_, low, high, unknown = unpacked(files[f"/{tokens}.bin"], shapes)
    exact = pricer.grid(np.arange(1, 513), grids.DEPTH, tokens)
    assert np.allclose(np.exp(plain[0, :512]), exact.no_spec_seconds, rtol=2e-6)
    made = np.exp(plain + verify)[:, :512]
    assert np.allclose(made, exact.verify_seconds.T, rtol=4e-6)
    assert np.allclose(made[1:] * np.exp(rounds[:, :512]), exact.round_seconds.T[1:], rtol=6e-6)
    at, name = CELL.pricer(CELL.drafters[-1])[1].with_context(float(tokens)), pricer.scenario.prices.name
    for (prices, *_), depth in zip(step_inputs(at, price_errors(name, CELL.gpu), [1, 1], [1, 3]), (1, 3), strict=True):
        assert np.exp([low[depth - 1, 0], high[depth - 1, 0]]) == pytest.approx([prices.low, prices.high], rel=1e-5)
        assert header["price_unknowns"][round(unknown[depth - 1, 0] / grids.QUANTUM)] == prices.phrase


def test_the_header_holds_memory_and_where_it_stops_paying() -> None:
    header = json.loads(dict(grids.cell_files(CELL))[".json"])
    pricer, drafter = CELL.pricer("eagle")[1], header["drafters"][0]
    assert drafter["bytes"][2][3] == pricer.sequence_bytes(3, header["contexts"][2])
    grid = pricer.grid([1], 3, header["searched"][5])
    assert drafter["ratios"][3][5] == pytest.approx(grid.round_seconds[0, 3] / grid.no_spec_seconds[0], abs=1e-6)


def test_a_large_model_gets_the_gpus_it_needs() -> None:
    assert enough_gpus("qwen3-8b", "h200", "eagle") == 1
    assert enough_gpus("deepseek-v3", "h200", "mtp") >= 8


def test_what_fits_nowhere_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="fits on no number of a10 GPUs that has a price"):
        enough_gpus("qwen3.8-2.4t-a95b", "a10", "mtp")


# --- flags ---


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("drafter", build.DRAFTERS)
def test_settings_have_slots_where_numbers_go(engine: str, drafter: str) -> None:
    made = templates(ENGINES[engine], find_drafter(drafter, bundled_model("qwen3.6-35b-a3b")))
    several = () if made["one_depth"] else ("many", "stops")
    if ENGINES[engine].cannot_draft(drafter, True):
        assert made["one"]["text"] == "" and "nothing to configure yet" in made["one"]["notes"][0]
        return
    for form in ("one", *several):
        text = f"{made[form]['text']} {made[form]['file']}"
        assert ("{depth}" in text or "{positions}" in text) and (form == "one" or "{entries}" in text)
    assert ("{depth}" in made["entry"]) or not several
    assert made["off_one"] and made["off_many"]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_commands_keep_no_made_up_number(engine: str) -> None:
    assert re.search(r"7777|85547", json.dumps(command_templates(engine, "qwen3-8b", 2))) is None


# --- the build ---


def test_names_are_checked_before_anything_is_priced() -> None:
    with pytest.raises(InputError, match=r"--models: 'qwen3\.6-35b' is not bundled; nearest"):
        build.select("qwen3.6-35b", "h200", "vllm", "own")
    with pytest.raises(InputError, match="h201"):
        build.select("qwen3-8b", "h201", "vllm", "own")
    with pytest.raises(InputError, match="unknown engine"):
        build.select("qwen3-8b", "h200", "vlm", "own")
    with pytest.raises(InputError, match="--drafters: 'ssd'"):
        build.select("qwen3-8b", "h200", "vllm", "ssd")


def test_all_means_all() -> None:
    chosen = build.select("all", "all", "all", "all")
    assert len(chosen.models) > 40 and len(chosen.gpus) > 12 and len(chosen.engines) == 5


def test_a_model_without_a_head_has_no_mtp() -> None:
    assert build.drafters_of("qwen3-8b", ("own", "mtp", "ngram")) == ("eagle", "ngram")
    assert build.drafters_of("deepseek-v3", ("own", "ngram")) == ("mtp", "ngram")


def test_a_stopped_build_goes_on(tmp_path: Path) -> None:
    """Finished cells are kept; a missing file, a cut line and other inputs are built again."""
    chosen = build.select("qwen3-8b", "h100,a10", "vllm", "own")
    first, built = build.build_cells(chosen, tmp_path, 2)
    assert built == 2 and all(outcome.path for outcome in first)
    again, built = build.build_cells(chosen, tmp_path, 1)
    assert built == 0 and again == first
    assert first[0].path is not None
    (tmp_path / first[0].path).unlink()
    record = tmp_path / build.FINISHED
    record.write_text(record.read_text() + '{"key": "cut off')
    _, built = build.build_cells(chosen, tmp_path, 1)
    assert built == 1
    more = build.select("qwen3-8b", "h100,a10", "vllm", "own,ngram")
    _, built = build.build_cells(more, tmp_path, 1)
    assert built == 2


_KILLED = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from specmargin.show.site.build import _end_with_the_build
context = multiprocessing.get_context("spawn")
pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_the_build)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""


def test_workers_end_with_a_killed_build() -> None:
    """Its output is closed once nobody holds it: neither the build nor its worker."""
    started = subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE)
    assert started.stdout is not None and int(started.stdout.readline()) != started.pid
    started.kill()
    started.communicate(timeout=60)


# --- the card ---


def test_the_card_names_the_question_and_its_answer() -> None:
    rows = [CardRow(1, 3, 1.84), CardRow(64, 1, 1.1), CardRow(128, 0, 0.99)]
    line = "Uncertain at batch 64: 1.10× (80% range 0.90 to 1.30), with mtp and a long tail of words that go on and on"
    drawn = card_svg(Card(model="m<1>", scenario="on 2 × h200 at batch 64", line=line, rows=rows))
    assert "m&lt;1&gt;" in drawn and "on 2 × h200 at batch 64" in drawn and "does speculation pay?" in drawn
    assert "Uncertain at batch 64: 1.10× (80% range 0.90 to 1.30)," in drawn and "1.84×" in drawn and ">off<" in drawn
    assert "batch" not in card_svg(Card(model="m", scenario="on h200", line="No answer: it does not fit"))


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "gpt-5"], "--models: 'gpt-5' is not bundled"),
        (["--models", ","], "--models is empty; give names, or all"),
        (["--gpus", "h201"], "h201"),
        (["--url", "example.org"], "--url: give a whole address, such as https://example.org/moe"),
        (["--models", "qwen3.8-2.4t-a95b", "--gpus", "a10", "--jobs", "1"], "no cell of this site can be priced"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = ended("site", str(tmp_path / "out"), *arguments)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    said = ended("site", str(tmp_path / "out"))
    assert said.code == 2 and "is a file; give the name of a folder" in said.err


def test_the_command_writes_and_resumes(tmp_path: Path) -> None:
    whole = ["site", str(tmp_path), "--models", "qwen3-8b", "--gpus", "h100", "--engines", "sglang", "--jobs", "1"]
    first, again = (json.loads(ended(*whole, "--json").out) for _ in range(2))
    assert (first["cells"], first["built_now"], again["built_now"]) == (1, 1, 0)
    assert again["bytes"] == first["bytes"] < 3_000_000
    names = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    wanted = {
        "index.html",
        "qwen3-8b/index.html",
        "story/index.html",
        "data/qwen3-8b/refused.json",
        "static/app.js",
        "data/qwen3-8b/h100-sglang.json",
        "data/qwen3-8b/h100-sglang/1024.bin",
    }
    assert wanted <= names
